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

// fill takes the space that is left on a disk.
func fill(t *testing.T, dir string) {
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
	if err := syscall.Fallocate(int(file.Fd()), 0, 0, int64(disk.Bavail)*int64(disk.Bsize)); err != nil {
		t.Fatal(err)
	}
}

func TestAMemberThatEndsForAFullDiskSaysWhy(t *testing.T) {
	disk := smallDisk(t, 256)
	store, client := startAlone(t, filepath.Join(disk, "data"))
	mustSet(t, client, "k", "v")
	fill(t, disk)
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
		t.Errorf("a member whose disk is full ended with the log\n%s", log)
	}
	// Started again, it says what it needs, and nothing about a log to repair. It does not say that it listens.
	_ = os.Remove(filepath.Join(disk, "filler"))
	fill(t, disk)
	again := store.again()
	for line, open := await.Next(again.lines); open; line, open = await.Next(again.lines) {
		t.Errorf("it said %q", line)
	}
	const want = "has 0 MiB free, and this member needs "
	if err := await.Result(again.cmd.Wait); err == nil || !strings.Contains(again.log.String(), want) {
		t.Errorf("%v, log:\n%s", err, again.log)
	}
}
