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

func TestMessagesReachTheManagerAndNoChildInheritsIt(t *testing.T) {
	socket := listen(t, 0)
	m := FromEnvironment(silent)
	defer m.Close()
	m.Ready("listening on\nMAINPID=1")
	m.Status(strings.Repeat("ä", 300))
	m.Stopping()
	for _, want := range []string{`READY=1` + "\n" + `STATUS=listening on\x0aMAINPID=1`, "STATUS=" + strings.Repeat("ä", 128) + "…", "STOPPING=1\nSTATUS=stopping"} {
		if got := receive(t, socket); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
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
	asked, answers := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		m.Watch(ctx, func() {
			select {
			case asked <- struct{}{}:
				await.Receive(answers)
			case <-ctx.Done():
			}
		})
	})
	defer await.Done(watching.Wait)
	defer cancel()
	await.Receive(asked)
	time.Sleep(50 * time.Millisecond) // for several of its intervals it is not answered
	m.Status("silent")
	if heard := receive(t, socket); heard != "STATUS=silent" {
		t.Errorf("the watchdog heard %q", heard)
	}
	answers <- struct{}{}
	if heard := receive(t, socket); heard != "WATCHDOG=1" {
		t.Errorf("the watchdog heard %q", heard)
	}
}

func TestAManagerThatIsNotThereOrOfAnotherProcessChangesNothing(t *testing.T) {
	listen(t, time.Second)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getppid()))
	for _, m := range []*Manager{new(Manager), FromEnvironment(silent), FromEnvironment(silent)} { // the last has no socket
		m.Ready("x")
		m.Status("x")
		m.Watch(t.Context(), func() { t.Error("asked") })
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
