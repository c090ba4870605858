package main_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/transport"
)

// smallDisk returns the directory of a disk of this size. It is in memory.
func smallDisk(t *testing.T, mebibytes int) string {
	t.Helper()
	dir := etcdtest.Dir(t, t.Cleanup)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", mebibytes)); err != nil {
		prerequisite.Missing(t, fmt.Sprintf("this process may not mount a disk: %v; run the test as root", err))
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill takes the room that is left on a disk, but for some bytes.
func fill(t *testing.T, dir string, but int64) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	_ = os.Remove(name) // of an earlier call
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if left := int64(disk.Bavail)*int64(disk.Bsize) - but; left > 0 {
		if err := syscall.Fallocate(int(file.Fd()), 0, 0, left); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAMemberThatEndsForAFullDiskSaysWhy(t *testing.T) {
	for round := range 4 {
		disk := smallDisk(t, 256)
		store, client := startAlone(t, filepath.Join(disk, "data"))
		mustSet(t, client, "k", "v")
		fill(t, disk, 0)
		ctx, cancel := context.WithCancel(t.Context())
		var writing sync.WaitGroup
		writing.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = client.Set(ctx, fmt.Sprint(i), make([]byte, 100<<10), transport.SetOptions{})
			}
		})
		for _, open := await.Next(store.lines); open; _, open = await.Next(store.lines) {
		}
		_ = await.Result(store.cmd.Wait)
		cancel()
		await.Done(writing.Wait)
		if log := store.log.String(); !strings.Contains(log, "no space left on device") || !strings.Contains(log, "free space") {
			t.Errorf("round %d: a member whose disk is full ended with the log\n%s", round, log)
		}
	}
}

// A member without room must say so, and say nothing about a log to repair. Its store must not say that
// it listens.
func TestAMemberThatHasNoRoomToStartSaysHowMuchItNeeds(t *testing.T) {
	disk := smallDisk(t, 256)
	dir := filepath.Join(disk, "data")
	store, client := startAlone(t, dir)
	mustSet(t, client, "k", "v")
	store.mustStop()
	for _, test := range []struct {
		why  string
		dir  string
		left int64
		want string
	}{
		{"a new member", filepath.Join(disk, "new"), 100 << 20, "needs 138 MiB to start"},
		{"a full disk", dir, 0, "has 0 MiB free, and this member needs 77 MiB to start"},
	} {
		fill(t, disk, test.left)
		again := launch(t, "serve", "--member", "a", "--cluster", "a=http://"+etcdtest.Addresses(t, 1)[0], "--data", test.dir, "--addr", "127.0.0.1:0")
		for line, open := await.Next(again.lines); open; line, open = await.Next(again.lines) {
			t.Errorf("%s: it said %q", test.why, line)
		}
		if err := await.Result(again.cmd.Wait); err == nil || !strings.Contains(again.log.String(), test.want) {
			t.Errorf("%s: %v, log:\n%s", test.why, err, again.log)
		}
	}
	if err := os.Remove(filepath.Join(disk, "filler")); err != nil {
		t.Fatal(err)
	}
	store = store.again()
	store.mustSay("standing by on ")
	store.mustSay("listening on ")
}
