package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/diskroom"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

func init() {
	children["small disk"] = onASmallDisk
}

// runChild runs a child process and returns its output and exit code.
func runChild(t *testing.T, command *exec.Cmd) (string, int) {
	t.Helper()
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if err := await.Result(command.Wait); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String(), command.ProcessState.ExitCode()
}

// wantAcknowledged opens a journal after a child has ended: it must have all batches that the
// child acknowledged, and at most one more.
func wantAcknowledged(t *testing.T, dir, output string) {
	t.Helper()
	states := historyStates()
	acknowledged := strings.Count(output, "ack ")
	found := load(t, open(t, dir))
	for i := acknowledged; i <= min(acknowledged+1, historyLength); i++ {
		if maps.Equal(found, states[i]) {
			return
		}
	}
	t.Errorf("after %d acknowledged batches the journal has the state after batch %s", acknowledged, found["last"])
}

// wantFailure checks that a child said why it ended, and what to do.
func wantFailure(t *testing.T, output string, code int, says ...string) {
	t.Helper()
	_, reason, failed := strings.Cut(output, "failed: ")
	if code != 3 || !failed {
		t.Fatalf("the child ended with code %d and says\n%s", code, output)
	}
	for _, text := range append(says, "/tenure.", "journal: ") {
		if !strings.Contains(reason, text) {
			t.Errorf("the failure %q does not say %q", reason, text)
		}
	}
}

// crashed returns a directory in which a process crashed in the middle of the history, without some bytes of
// the last commit.
func crashed(t *testing.T, without int64) (dir string, acknowledged int) {
	t.Helper()
	dir = must(filepath.EvalSymlinks(t.TempDir()))
	output, code := runChild(t, child("commit and crash", dir))
	if err := os.Truncate(filepath.Join(dir, "tenure.log"), size(t, dir)-without); err != nil || code != 0 {
		t.Fatalf("code %d, %v: %s", code, err, output)
	}
	return dir, strings.Count(output, "ack ")
}

// failing runs the history in a child, in which a call fails.
func failing(t *testing.T, dir, inject string) (output string, code int) {
	t.Helper()
	output, code = runChild(t, child("commit", dir, prerequisite.Program(t, "strace", "strace"), "-f", "-qq", "-o", "/dev/null", "-e", "inject="+inject))
	if strings.Contains(output, "Operation not permitted") && strings.Contains(output, "strace:") {
		prerequisite.Missing(t, "this process may not trace another: "+output)
	}
	return output, code
}

func TestInvariant34AFailureOfTheRepairEndsTheJournal(t *testing.T) {
	for _, inject := range []string{
		"ftruncate,?ftruncate64:error=EIO:when=1", "pwrite64:error=EIO:when=2", "pwrite64:error=EIO:when=3",
		"fsync:error=EIO:when=3", "fsync:error=EIO:when=4",
	} {
		dir, acknowledged := crashed(t, 10)
		output, code := failing(t, dir, inject)
		wantFailure(t, output, code, "replace the disk")
		if found := load(t, open(t, dir)); !maps.Equal(found, historyStates()[acknowledged-1]) {
			t.Errorf("%s: the journal has the state after batch %s, not after %d batches", inject, found["last"], acknowledged-1)
		}
	}
}

// A call that fails once ends the journal, whatever call it is.
func TestInvariant34AFailedSystemCallEndsTheJournal(t *testing.T) {
	for _, test := range []struct{ inject, says string }{
		{"fsync:error=EIO:when=1", "replace the disk"}, // of a new file
		{"fsync:error=EIO:when=2", "replace the disk"},
		{"fsync:error=EIO:when=3", "input/output error"}, // of the name of the holder
		{"fsync:error=EIO:when=4", "input/output error"}, // of the directory
		{"fsync:error=EIO:when=5", "replace the disk"},   // of a commit
		{"fsync:error=EIO:when=9", "replace the disk"},
		{"fsync:error=ENOSPC:when=10", "free space"},
		{"pwrite64:error=EIO:when=1", "replace the disk"},
		{"pwrite64:error=EIO:when=2", "replace the disk"},
		{"pwrite64:error=EIO:when=3", "replace the disk"},
		{"pwrite64:error=EIO:when=30", "replace the disk"},
		{"pwrite64:error=ENOSPC:when=7", "free space"},
		{"pwrite64:error=EDQUOT:when=40", "raise the quota"},
		{"rename,renameat,renameat2:error=EIO:when=1", "replace the disk"},
		{"rename,renameat,renameat2:error=EIO:when=3", "replace the disk"}, // for a compaction
		{"rename,renameat,renameat2:error=EIO:when=4", "replace the disk"},
	} {
		t.Run(test.inject, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			output, code := failing(t, dir, test.inject)
			// The writes are not the same in each run. One of the copy that a compaction makes may
			// find no room, and nothing is lost then.
			if roomless := strings.HasPrefix(test.inject, "pwrite64") && !strings.Contains(test.inject, "EIO"); !roomless || code != 0 {
				wantFailure(t, output, code, test.says)
			}
			wantAcknowledged(t, dir, output)
		})
	}
}

// namespaced starts a child that may mount disks of its own, without rights of this process.
func namespaced(command *exec.Cmd) *exec.Cmd {
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return command
}

func TestInvariant34AFullDiskEndsTheJournal(t *testing.T) {
	command := namespaced(child("small disk", t.TempDir()))
	if err := command.Start(); err != nil {
		prerequisite.Missing(t, fmt.Sprintf("this process may make no user namespace: %v", err))
	}
	_ = command.Process.Kill()
	_ = await.Result(command.Wait)
	output, code := runChild(t, namespaced(child("small disk", t.TempDir())))
	if strings.Contains(output, "no disk:") {
		prerequisite.Missing(t, "this process may mount nothing in its namespace: "+output)
	}
	if code != 0 {
		t.Fatalf("code %d: %s", code, output)
	}
}

// leave writes a file that leaves some bytes of a disk.
func leave(dir, filler string, left int64) {
	free, _ := diskroom.Free(dir)
	_ = os.WriteFile(filler, make([]byte, max(0, free-left)), 0o600)
}

// onASmallDisk tests a journal on a disk of 1 MB: full, read-only, and with no room for a copy.
// It writes what is wrong.
func onASmallDisk(dir string) (code int) {
	check := func(ok bool, format string, arguments ...any) {
		if !ok {
			fmt.Printf(format+"\n", arguments...)
			code = 1
		}
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		fmt.Println("no disk:", err)
		return 0
	}
	ctx := context.Background()
	data := filepath.Join(dir, "data")
	value := strings.Repeat("x", 20_000)
	begin := func(options journal.Options) *journal.File {
		file, err := journal.Open(data, options)
		check(err == nil, "Open has error %v", err)
		_, err = file.Load(ctx, func(statestore.Record) error { return nil })
		check(err == nil, "Load has error %v", err)
		return file
	}
	var err error
	file := begin(journal.Options{})
	acknowledged := 0
	for err == nil && acknowledged < 1000 {
		if err = file.Commit(ctx, []statestore.Group{{key(fmt.Sprint(acknowledged), value)}}); err == nil {
			acknowledged++
		}
	}
	check(errors.Is(err, syscall.ENOSPC) && strings.Contains(err.Error(), "free space on the disk"), "on a full disk Commit has error %v", err)
	check(acknowledged > 10, "only %d commits fit on the disk", acknowledged)
	check(errors.Is(file.Commit(ctx, nil), err), "a later Commit has another error")
	check(file.Close() == nil, "Close has an error")

	// A full disk takes no new journal, backup or restore, and keeps no part of one.
	filler := filepath.Join(dir, "filler")
	_ = os.WriteFile(filler, make([]byte, 1<<20), 0o600)
	restored := filepath.Join(dir, "restored", "data")
	_, opened := journal.Open(filepath.Join(dir, "another"), journal.Options{})
	_, backedUp := journal.Backup(ctx, data, filepath.Join(dir, "backup"))
	_, restoring := journal.RestoreBackup(ctx, filepath.Join(data, "tenure.log"), restored)
	for _, err := range []error{opened, backedUp, restoring} {
		check(errors.Is(err, syscall.ENOSPC) && strings.Contains(err.Error(), "free space") && !strings.Contains(err.Error(), "\n"),
			"on the full disk the error is %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*backup*"))
	hidden, _ := filepath.Glob(filepath.Join(dir, ".*backup*"))
	check(len(left)+len(hidden) == 0, "Backup left %q %q", left, hidden)
	check(os.Remove(filler) == nil, "the filler cannot be removed")

	// Everything that was acknowledged is there, read-only too.
	check(syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "") == nil, "the disk cannot be made read-only")
	_, err = journal.Open(data, journal.Options{})
	check(errors.Is(err, syscall.EROFS), "on a read-only disk Open has error %v", err)
	report, err := journal.Check(ctx, data)
	check(err == nil && int(report.Keys) >= acknowledged && int(report.Keys) <= acknowledged+1, "on a read-only disk Check has report %+v, error %v; want %d keys", report, err, acknowledged)
	// There is no room for a compacted copy: the journal goes on.
	check(syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=1200k") == nil, "the disk cannot be made larger")
	check(os.RemoveAll(data) == nil, "the data cannot be removed")
	leave(dir, filler, 120<<10)
	journal.SetSpaceConstant(1 << 10)
	var log bytes.Buffer
	file = begin(journal.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	err = file.Commit(ctx, []statestore.Group{{key("large", strings.Repeat("x", 70_000))}})
	check(err == nil, "the commit has error %v", err)
	check(file.Settle() == nil, "a compaction without room ends the journal")
	for i := range 5 {
		err = errors.Join(err, file.Commit(ctx, []statestore.Group{{key(fmt.Sprint(i), "small")}}))
	}
	check(err == nil, "the commits have error %v", err)
	info, _ := os.Stat(filepath.Join(data, "tenure.log"))
	check(strings.Contains(log.String(), "could not be compacted"),
		"the log of a file with %d bytes, %d of them live, does not say that there is no room:\n%s", info.Size(), file.LiveBytes(), log.String())
	_, err = os.Stat(filepath.Join(data, "tenure.log.new"))
	check(errors.Is(err, fs.ErrNotExist), "a part of the copy was left: %v", err)
	check(file.Close() == nil, "Close has an error")
	return code
}
