package member_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
)

// asAnother calls do with the rights of a user that owns nothing. Only its thread gets them.
func asAnother(t *testing.T, do func()) {
	t.Helper()
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := syscall.Setfsuid(65534)
		if err == nil {
			do()
		}
		ended <- err
	}()
	if err := await.Receive(ended); err != nil {
		t.Fatal(err)
	}
}

func TestAMemberWithoutRightsToItsDirectorySaysWhatToDo(t *testing.T) {
	dir := etcdtest.Dir(t, t.Cleanup)
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	for _, below := range []string{"new", ""} { // it cannot make the directory, or not write to it
		options := member.Options{Name: "a", Dir: filepath.Join(dir, below), Cluster: "a=" + freeURL(t)}
		var err error
		asAnother(t, func() { _, err = member.Start(options) })
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "run it as the user that owns it") {
			t.Errorf("in %q: the error is %v", options.Dir, err)
		}
	}
}
