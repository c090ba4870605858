package server_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
)

// mosquitto is a broker that nobody here wrote.
type mosquitto struct {
	t       testing.TB
	address string
	config  string
	command *exec.Cmd
	log     *syncBuffer
}

// recommended are the settings of docs/attach.md.
const recommended = `
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 10000
`

// startMosquitto runs mosquitto on a free port until the test ends. Without the program,
// the test is skipped, except where CI is true: there it must be installed.
func startMosquitto(t testing.TB, more string) *mosquitto {
	t.Helper()
	path, err := exec.LookPath("mosquitto")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/mosquitto") // not in everybody's PATH
	}
	if err != nil {
		lacking(t, "mosquitto is not installed: apt-get install mosquitto")
	}
	m := &mosquitto{t: t, address: freeAddress(t), config: filepath.Join(t.TempDir(), "mosquitto.conf"), log: new(syncBuffer)}
	_, port, _ := net.SplitHostPort(m.address)
	if !strings.Contains(more, "allow_anonymous") {
		more += "allow_anonymous true\n"
	}
	// Started as root, mosquitto gives its rights away, and then cannot read the
	// directory of a test.
	config := fmt.Sprintf("listener %s 127.0.0.1\nuser root\n%s%s", port, recommended, more)
	if err := os.WriteFile(m.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(path)
	t.Cleanup(m.stop)
	return m
}

// lacking skips a test that cannot run here, or fails it where everything must run.
func lacking(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip("SKIPPED: nothing was tested here. " + what)
}

func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (m *mosquitto) start(path string) {
	m.t.Helper()
	m.command = exec.Command(path, "-c", m.config)
	m.command.Stderr, m.command.Stdout = m.log, m.log
	if err := m.command.Start(); err != nil {
		m.t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial("tcp", m.address)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("mosquitto does not listen: %v\n%s", err, m.log)
		}
	}
}

func (m *mosquitto) stop() {
	if m.command != nil {
		_ = m.command.Process.Kill()
		_ = m.command.Wait()
		m.command = nil
	}
}

// restart kills the broker, and with it all connections, and starts it anew.
func (m *mosquitto) restart() { m.restartAfter(syscall.SIGKILL) }

func (m *mosquitto) restartAfter(signal syscall.Signal) {
	m.t.Helper()
	path := m.command.Path
	if err := m.command.Process.Signal(signal); err != nil {
		m.t.Fatal(err)
	}
	_ = m.command.Wait()
	m.start(path)
}

// attachment is a store that is attached until the test ends.
type attachment struct {
	*server.Attached
	t     testing.TB
	stop  func()
	ended chan struct{}
	err   error // of Serve, once ended
}

// attach returns a store that answers already.
func attach(t testing.TB, address string, options server.AttachOptions) *attachment {
	t.Helper()
	a := beginToAttach(t, address, options)
	a.mustBeReady()
	return a
}

// attachAlone is attach where no other store can be.
func attachAlone(t testing.TB, address string, options server.AttachOptions) *attachment {
	t.Helper()
	store, err := server.Attach("mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	store.Alone()
	a := serveAttached(t, store)
	a.mustBeReady()
	return a
}

// beginToAttach does not wait until it answers.
func beginToAttach(t testing.TB, address string, options server.AttachOptions) *attachment {
	t.Helper()
	store, err := server.Attach("mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	return serveAttached(t, store)
}

func serveAttached(t testing.TB, store *server.Attached) *attachment {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	a := &attachment{Attached: store, t: t, stop: stop, ended: make(chan struct{})}
	go func() {
		a.err = store.Serve(ctx)
		close(a.ended)
	}()
	t.Cleanup(func() {
		stop()
		if err := a.result(); err != nil && !errors.Is(err, server.ErrAnotherStore) {
			t.Errorf("Serve: %v", err)
		}
	})
	return a
}

func (a *attachment) mustBeReady() {
	a.t.Helper()
	select {
	case <-a.Ready():
	case <-a.ended:
		a.t.Fatalf("Serve: %v", a.err)
	case <-time.After(patience):
		a.t.Fatal("the store does not attach")
	}
}

// result waits for the end of Serve.
func (a *attachment) result() error {
	a.t.Helper()
	select {
	case <-a.ended:
		return a.err
	case <-time.After(patience):
		a.t.Fatal("Serve does not return")
		return nil
	}
}
