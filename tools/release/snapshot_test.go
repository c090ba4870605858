//go:build unix

package release

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

var snapshot = flag.String("snapshot", "", "directory with what \"make snapshot\" has made")

// The package that users install: dpkg installs it, the program in it runs as the unit says, and dpkg
// removes it.
func TestTheSnapshotInstallsRunsAndIsRemoved(t *testing.T) {
	if *snapshot == "" {
		t.Skip("SKIPPED: make snapshot, and give its directory with -snapshot")
	}
	dpkg := prerequisite.Program(t, "dpkg", "dpkg")
	packages, err := filepath.Glob(filepath.Join(*snapshot, "tenure_*_amd64.deb"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages: %q, %v", packages, err)
	}
	root := t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// A system of its own, which has nothing but the package. Its scripts run outside of it, and
	// find no systemd that runs there.
	install := func(arguments ...string) {
		t.Helper()
		all := append([]string{"--root=" + root, "--log=" + filepath.Join(root, "var/log/dpkg.log"), "--force-not-root", "--force-script-chrootless"}, arguments...)
		if out, err := exec.CommandContext(t.Context(), dpkg, all...).CombinedOutput(); err != nil {
			t.Fatalf("dpkg %s: %v\n%s", strings.Join(arguments, " "), err, out)
		}
	}
	install("--install", packages[0])
	installed := filepath.Join(root, "usr/bin/tenure")
	if out := (shell{dir: root}).run(t, installed, "--version"); !strings.Contains(out, "snapshot") || !strings.Contains(out, "commit") {
		t.Errorf("tenure --version says %q", out)
	}
	for _, name := range []string{"usr/share/doc/tenure/copyright", "usr/share/bash-completion/completions/tenure", "usr/share/doc/tenure/examples/mosquitto/tenure.acl", "etc/tenure"} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	for name := range units { // TestTheUnitsNameWhatExistsAndSystemdTakesThem checks what is in them
		want := read(t, filepath.Join("../../deploy/systemd", name))
		if got, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not the unit in deploy/systemd: %v", name, err)
		}
	}
	runAsService(t, installed, false)
	if os.Geteuid() == 0 {
		runAsService(t, installed, true)
	} else {
		t.Log("SKIPPED: only root can run it alone in its root directory, as in the image")
	}
	install("--purge", "tenure")
	if _, err := os.Stat(installed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the program is still there: %v", err)
	}
}

// runAsService starts the program as the unit of serve does, and stops it. With scratch, it is alone in
// its root directory, as another user, as in the image; only root can do that.
func runAsService(t *testing.T, path string, scratch bool) {
	t.Helper()
	dir := t.TempDir()
	name, state := filepath.Join(dir, "notify"), filepath.Join(dir, "state")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "serve")
	if scratch {
		const user = 65532
		content, err := os.ReadFile(path)
		if err == nil {
			err = errors.Join(os.WriteFile(filepath.Join(dir, "tenure"), content, 0o755), os.Chmod(name, 0o777), os.Mkdir(state, 0o700), os.Chmod(state, 0o770), os.Chown(state, 0, user))
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd = exec.CommandContext(ctx, "/tenure", "serve")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir, Credential: &syscall.Credential{Uid: user, Gid: user}}
		name, state = "/notify", "/state/data"
	}
	cmd.Env = []string{"NOTIFY_SOCKET=" + name, "STATE_DIRECTORY=" + state, "TENURE_ADDR=127.0.0.1:0"}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"READY=1", "STOPPING=1"} {
		for message := make([]byte, 4096); ; {
			if err := socket.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
				t.Fatal(err)
			}
			n, err := socket.Read(message)
			if err != nil {
				t.Fatalf("no %s: %v", want, err)
			}
			if bytes.Contains(message[:n], []byte(want)) {
				break
			}
		}
		if want == "READY=1" {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := await.Result(cmd.Wait); err != nil {
		t.Errorf("the service ended with %v", err)
	}
}
