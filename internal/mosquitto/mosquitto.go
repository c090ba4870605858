// Package mosquitto runs the broker mosquitto for tests.
package mosquitto

import (
	"fmt"
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

// Recommended are the settings that docs/attach.md asks for.
const Recommended = `set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 10000
`

const (
	// patience is how long the broker may take to listen.
	patience = 20 * time.Second
	// attempts is how many ports are tried: what was free a moment ago may be taken.
	attempts = 5
)

// Broker is a running mosquitto. Its methods are for the goroutine of the test.
type Broker struct {
	// Address is its host and port.
	Address string

	t       testing.TB
	path    string
	config  string // file
	output  string // file
	command *exec.Cmd
	ended   chan struct{} // closed when command has
}

// Start runs mosquitto on a free port of this machine until the test ends. It has the
// Recommended settings and admits anonymous clients; more settings may change that. Where
// mosquitto is missing the test is skipped, or fails in CI.
func Start(t testing.TB, more string) *Broker {
	t.Helper()
	dir := t.TempDir()
	b := &Broker{t: t, config: filepath.Join(dir, "mosquitto.conf"), output: filepath.Join(dir, "mosquitto.log")}
	b.path = prerequisite.Program(t, "mosquitto", "mosquitto")
	log := ""
	for range attempts {
		b.Address = FreeAddress(t)
		_, port, _ := net.SplitHostPort(b.Address)
		// Started as root, mosquitto changes its user, and then cannot read the directory of
		// a test.
		config := fmt.Sprintf("user root\nlistener %s 127.0.0.1\nallow_anonymous true\n%s%s", port, Recommended, more)
		if err := os.WriteFile(b.config, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if log = b.try(time.Now().Add(patience)); log == "" {
			t.Cleanup(b.Kill)
			return b
		}
	}
	t.Fatalf("mosquitto does not start:\n%s", log)
	return nil
}

// FreeAddress returns an address of this machine on which no process listens now.
func FreeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// Run starts a stopped or killed broker again and returns when it listens.
func (b *Broker) Run() {
	b.t.Helper()
	var log string
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if log = b.try(end); log == "" {
			return
		}
	}
	b.t.Fatalf("mosquitto does not listen:\n%s", log)
}

// try starts the broker once. If the broker ends, for example because its port is taken, or does
// not listen in time, try returns its output.
func (b *Broker) try(end time.Time) (log string) {
	b.t.Helper()
	output, err := os.Create(b.output)
	if err != nil {
		b.t.Fatal(err)
	}
	defer output.Close() // the broker has its own
	command, ended := exec.Command(b.path, "-c", b.config), make(chan struct{})
	command.Stderr, command.Stdout = output, output
	if err := command.Start(); err != nil {
		b.t.Fatal(err)
	}
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	b.command, b.ended = command, ended
	for {
		// A connection to the port could reach another process. This is the last line before
		// the broker begins.
		if strings.Contains(b.said(), " running\n") {
			return ""
		}
		select {
		case <-b.ended:
			return b.said()
		case <-time.After(2 * time.Millisecond):
		}
		if time.Now().After(end) {
			b.Kill()
			return b.said()
		}
	}
}

// said returns the output of the broker so far.
func (b *Broker) said() string {
	b.t.Helper()
	text, err := os.ReadFile(b.output)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// Kill ends the broker and all its connections at once.
func (b *Broker) Kill() { b.end(syscall.SIGKILL) }

// Stop lets the broker shut down: it publishes Wills and saves its data.
func (b *Broker) Stop() { b.end(syscall.SIGTERM) }

func (b *Broker) end(signal syscall.Signal) {
	_ = b.command.Process.Signal(signal) // fails if it has ended, which is as well
	await.Receive(b.ended)
}
