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
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if left := int64(disk.Bavail)*disk.Bsize - but; left > 0 {
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
