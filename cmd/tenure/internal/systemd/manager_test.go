//go:build unix

package systemd

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// listen makes the socket of a service manager, and sets the environment as systemd does.
func listen(t *testing.T, watchdog time.Duration) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", strconv.FormatInt(watchdog.Microseconds(), 10))
	return socket
}

// receive returns the next message.
func receive(t *testing.T, socket *net.UnixConn) string {
	t.Helper()
	if err := socket.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	n, err := socket.Read(message)
	if err != nil {
		t.Fatal(err)
	}
	return string(message[:n])
}

var silent = slog.New(slog.DiscardHandler)

func TestMessagesReachTheManager(t *testing.T) {
	socket := listen(t, 0)
	m := FromEnvironment(silent)
	defer m.Close()
	m.Ready("listening on\nMAINPID=1")
	m.Status(strings.Repeat("ä", 300))
	m.Stopping()
	for _, want := range []string{"READY=1\nSTATUS=listening on MAINPID=1", "STATUS=" + strings.Repeat("ä", 128) + "…", "STOPPING=1\nSTATUS=stopping"} {
		if got := receive(t, socket); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	m.Watch(t.Context(), func() bool { t.Error("asked without a watchdog"); return true }) // returns at once
}

func TestAChildDoesNotInheritTheManager(t *testing.T) {
	listen(t, time.Second)
	FromEnvironment(silent).Close()
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if value, ok := os.LookupEnv(name); ok {
			t.Errorf("%s is still %q", name, value)
		}
	}
}

func TestTheWatchdogHearsNothingWhileTheProcessDoesNotAnswer(t *testing.T) {
	socket := listen(t, 40*time.Millisecond)
	m := FromEnvironment(silent)
	defer m.Close()
	asked, release := make(chan int), make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	calls := 0
	watching.Go(func() {
		m.Watch(ctx, func() bool {
			calls++
			select {
			case asked <- calls:
			case <-ctx.Done():
				return false
			}
			select {
			case answers := <-release:
				return answers
			case <-ctx.Done():
				return false
			}
		})
	})
	defer await.Done(watching.Wait)
	defer cancel()
	ask := func() {
		t.Helper()
		await.Receive(asked)
	}
	ask()
	m.Status("asked") // what the watchdog hears before and after is in order
	release <- true
	ask()
	release <- false
	ask()
	m.Status("did not answer")
	release <- true
	for _, want := range []string{"STATUS=asked", "WATCHDOG=1", "STATUS=did not answer", "WATCHDOG=1"} {
		if got := receive(t, socket); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestTheWatchdogOfTheParentIsNotForThisProcess(t *testing.T) {
	listen(t, time.Second)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getppid()))
	m := FromEnvironment(silent)
	defer m.Close()
	m.Watch(t.Context(), func() bool { t.Error("asked"); return true })
}

func TestAManagerThatIsNotThereChangesNothing(t *testing.T) {
	var none *Manager
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "1000")
	for _, m := range []*Manager{none, new(Manager), FromEnvironment(silent)} {
		m.Ready("x")
		m.Status("x")
		m.Watch(t.Context(), func() bool { t.Error("asked"); return true })
		m.Stopping()
		m.Close()
	}
}

func TestAManagerThatIsGoneIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	FromEnvironment(logger).Close()
	if !strings.Contains(log.String(), "cannot reach systemd") {
		t.Errorf("log %q", log.String())
	}
	log.Reset()
	socket := listen(t, 0)
	m := FromEnvironment(logger)
	defer m.Close()
	_ = socket.Close()
	m.Status("a")
	m.Status("b")
	if strings.Count(log.String(), "cannot tell systemd") != 1 {
		t.Errorf("log %q", log.String())
	}
}

func TestAManagerThatDoesNotReadDelaysNothingForLong(t *testing.T) {
	listen(t, 0)
	m := FromEnvironment(slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer m.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for { // until the socket's queue is full: then the write gives up
			m.Status("x")
			m.mu.Lock()
			full := m.lost
			m.mu.Unlock()
			if full {
				return
			}
		}
	}()
	await.Receive(done)
}
