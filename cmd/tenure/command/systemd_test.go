//go:build unix

package command

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
)

// A serviceManager is the socket on which systemd hears a service.
type serviceManager struct{ *net.UnixConn }

// startService starts a command as systemd does, with a directory for its data.
func startService(t *testing.T, arguments ...string) (manager serviceManager, cmd *exec.Cmd) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	cmd = exec.Command(build(t), arguments...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=60000", "STATE_DIRECTORY="+filepath.Join(dir, "state"))
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // if it still runs
		_ = await.Result(cmd.Wait)
	})
	return serviceManager{socket}, cmd
}

// wait receives until a message has want in it, and returns that message.
func (m serviceManager) wait(t *testing.T, want string) string {
	t.Helper()
	if err := m.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	for {
		n, err := m.Read(message)
		if err != nil {
			t.Fatalf("waiting for %q: %v", want, err)
		}
		if strings.Contains(string(message[:n]), want) {
			return string(message[:n])
		}
	}
}

func TestServeTellsSystemdThatItListensWorksAndStops(t *testing.T) {
	manager, cmd := startService(t, "serve", "--addr", "127.0.0.1:0")
	if ready := manager.wait(t, "READY=1"); !strings.Contains(ready, "STATUS=listening on mqtt://127.0.0.1:") || !strings.HasSuffix(ready, "/state") {
		t.Errorf("ready with %q", ready)
	}
	for range 3 {
		manager.wait(t, "WATCHDOG=1")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	manager.wait(t, "STOPPING=1")
}

func TestAttachTellsSystemdWhenItAnswers(t *testing.T) {
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	manager, cmd := startService(t, "attach", broker, "--probe-messages", "0")
	if ready := manager.wait(t, "READY=1"); !strings.Contains(ready, "STATUS=attached to "+broker) {
		t.Errorf("ready with %q", ready)
	}
	manager.wait(t, "WATCHDOG=1")
	spare, _ := startService(t, "attach", broker, "--probe-messages", "0", "--wait")
	if ready := spare.wait(t, "READY=1"); !strings.Contains(ready, "STATUS=standing by on "+broker) {
		t.Errorf("the spare is ready with %q", ready)
	}
	spare.wait(t, "WATCHDOG=1")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	manager.wait(t, "STOPPING=1")
	if ready := spare.wait(t, "READY=1"); !strings.Contains(ready, "STATUS=attached to "+broker) {
		t.Errorf("the spare is ready with %q", ready)
	}
}

func TestRunTellsSystemdWhetherItHoldsTheLease(t *testing.T) {
	serve := exec.Command(build(t), "serve", "--memory", "--addr", "127.0.0.1:0")
	broker, _ := launch(t, serve, "listening on ")
	// The child would write to the socket, if it found it.
	child := []string{"sh", "-c", `test -z "$NOTIFY_SOCKET$WATCHDOG_USEC" && echo unknown > "$STATE_DIRECTORY" && exec sleep 1000`}
	manager, cmd := startService(t, append([]string{"run", "--broker", broker, "poller", "--"}, child...)...)
	if ready := manager.wait(t, "READY=1"); !strings.HasSuffix(ready, "STATUS=standing by for the lease poller") {
		t.Errorf("ready with %q", ready)
	}
	if status := manager.wait(t, "STATUS=holding"); !strings.HasSuffix(status, "and running sh") {
		t.Errorf("status %q", status)
	}
	manager.wait(t, "WATCHDOG=1")
	state := filepath.Join(filepath.Dir(manager.LocalAddr().String()), "state")
	deadline := time.Now().Add(await.Patience)
	for {
		if content, err := os.ReadFile(state); err == nil && len(content) > 0 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the child finds the socket of systemd")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	manager.wait(t, "STOPPING=1")
}

// A store whose locks are held for ever still has its other goroutines. Only the watchdog can tell.
func TestTheWatchdogAsksTheStoreThatServes(t *testing.T) {
	p := new(process)
	if !p.answers() {
		t.Error("a process that loads its data does not work")
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	stop := p.serves(func() { close(entered); await.Receive(leave) })
	answered := make(chan bool, 1)
	go func() { answered <- p.answers() }()
	await.Receive(entered)
	select {
	case <-answered:
		t.Error("a store that does not answer works")
	default:
	}
	close(leave)
	if !await.Receive(answered) {
		t.Error("a store that answers does not work")
	}
	stop()
	if !p.answers() {
		t.Error("a process without a store does not work")
	}
}
