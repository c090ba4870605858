package supervise

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
)

// A cutter is a network that passes everything on until a client sends what cuts it. Then it loses
// everything, and keeps the connections open.
type cutter struct {
	address string
	isCut   chan struct{} // closed when it was cut
}

// startCutter starts a network to a broker. cuts reports whether bytes of a client cut it, and closes
// whether they end their connection instead, with a refusal if they have a Will; nil: none do.
func startCutter(t *testing.T, broker string, cuts, closes func(sent []byte) bool) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{address: "mqtt://" + listener.Addr().String(), isCut: make(chan struct{})}
	var tasks sync.WaitGroup
	var once sync.Once
	ended, end := context.WithCancel(t.Context())
	t.Cleanup(func() {
		end()
		_ = listener.Close()
		await.Done(tasks.Wait)
	})
	pass := func(to, from net.Conn, sends bool) {
		defer context.AfterFunc(ended, func() { _ = from.Close() })()
		defer to.Close()
		defer from.Close()
		for buffer := make([]byte, 32<<10); ; {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if sends && closes != nil && closes(buffer[:n]) {
				if hasWill(buffer[:n]) {
					_, _ = from.Write([]byte{0x20, 3, 0, 0x83, 0}) // a CONNACK; the connection ends either way
				}
				return
			}
			if sends && cuts != nil && cuts(buffer[:n]) {
				once.Do(func() { close(c.isCut) })
			}
			select {
			case <-c.isCut:
			default:
				_, _ = to.Write(buffer[:n])
			}
		}
	}
	tasks.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(broker, "mqtt://"))
			if err != nil {
				_ = near.Close()
				continue
			}
			tasks.Go(func() { pass(far, near, true) })
			tasks.Go(func() { pass(near, far, false) })
		}
	})
	return c
}

// cutsAt is for networks that are cut by a command of the store.
func cutsAt(command string) func([]byte) bool {
	return func(sent []byte) bool { return bytes.Contains(sent, []byte("\r\n"+command+"\r\n")) }
}

// interruptUntilItEnds signals a supervisor until it ends, and returns its exit code.
func (n *node) interruptUntilItEnds() int {
	n.t.Helper()
	await.Until(func() bool {
		n.trySignal(unix.SIGTERM)
		return len(n.over) > 0
	})
	return n.awaitExit()
}

// A tenure that was not cleared up costs the others a TTL. So the end waits for that, but no longer
// than its user does.
func TestAFurtherInterruptEndsTheWaitForABrokerThatIsAway(t *testing.T) {
	t.Parallel()
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		t.Run(verb+", acquiring", func(t *testing.T) {
			network := startCutter(t, broker, cutsAt("SET"), nil)
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address, "polite", verb, "--ttl", "1h", "--timeout", "1h", "press")
			await.Next(network.isCut)
			if code := n.interruptUntilItEnds(); code != 128+int(unix.SIGTERM) || strings.Count(n.log.String(), "level=WARN") != 1 ||
				!strings.Contains(n.log.String(), "may hold the lease until its TTL ends") {
				t.Errorf("exit code %d, want 143, and one warning of what is left", code)
			}
		})
		t.Run(verb+", releasing", func(t *testing.T) {
			network := startCutter(t, broker, cutsAt("VDEL"), nil)
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address, "polite", verb, "--ttl", "1h", "--timeout", "1h", "press/"+verb)
			n.awaitStart()
			n.signal(unix.SIGTERM)
			await.Next(network.isCut) // the program is gone
			if code := n.interruptUntilItEnds(); code != 0 || !strings.Contains(n.log.String(), "the lease could not be released") {
				t.Errorf("exit code %d, want 0, the code of the program, and a warning", code)
			}
		})
	}
}

// A program that ended by itself leaves nothing to stop, so one signal ends the wait.
func TestOneInterruptEndsTheWaitOfAProgramThatEnded(t *testing.T) {
	t.Parallel()
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		name := "press/" + verb
		network := startCutter(t, broker, cutsAt(fmt.Sprintf("GET\r\n$%d\r\n%s", len(name), name)), nil) // when the lease is confirmed
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address, "polite", verb, "--ttl", "1h", "--timeout", "1h", name)
		n.awaitStart()
		program := n.program()
		if err := unix.Kill(program, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		awaitLog(t, n, "the child ended")
		await.Next(network.isCut)
		time.Sleep(200 * time.Millisecond) // a signal right after the end counts as what ended the program
		n.signal(unix.SIGTERM)
		if code := n.awaitExit(); code != 0 {
			t.Errorf("%s: exit code %d, want 0, the code of the program", verb, code)
		}
	}
}

// program returns the process id of the program.
func (n *node) program() int {
	n.t.Helper()
	entries, err := descendants(n.guard(), nil)
	if err != nil || len(entries) == 0 {
		n.t.Fatal("there is no program", err)
	}
	return entries[0].pid
}

// What one interrupt leaves at a broker that is away is told once.
func TestWhatAnInterruptLeavesIsToldOnce(t *testing.T) {
	t.Parallel()
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		network := startCutter(t, broker, cutsAt("SET"), nil)
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address, "polite", verb, "--ttl", "2s", "press")
		await.Next(network.isCut)
		n.signal(unix.SIGTERM)
		n.awaitExit()
		if got := strings.Count(n.log.String(), "until its TTL ends"); got != 1 {
			t.Errorf("%s: %d warnings, want 1", verb, got)
		}
	}
}

// hasWill reports whether bytes are a CONNECT with a Will [MQTT-3.1.2].
func hasWill(sent []byte) bool {
	const connect, protocolAndVersion, will = 0x10, 7, 0x04
	_, size := binary.Uvarint(sent[1:]) // of the remaining length
	flags := 1 + size + protocolAndVersion
	return sent[0] == connect && flags < len(sent) && sent[flags]&will != 0
}

// A broker may refuse the Will of --instant. The guard watches the connection all the same, and the
// tenure ends with it all the same: the two agree.
func TestWithInstantAndWithoutAWillTheTenureEndsWithTheConnection(t *testing.T) {
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			var drop atomic.Bool
			network := startCutter(t, broker, nil, func(sent []byte) bool { return hasWill(sent) || drop.CompareAndSwap(true, false) })
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address, "daemon", verb, "--instant", "--ttl", "3s", "press/"+verb)
			n.awaitStart()
			awaitLog(t, n, "there will be no instant failover")
			drop.Store(true)
			n.awaitGone()
			awaitLog(t, n, "cause=\"the connection was lost\"")
			if verb == "run" {
				awaitLogs(t, n, "the child starts", 2)
			} else if code := n.awaitExit(); code != 66 || !strings.Contains(n.log.String(), "the child was ended: lease: tenure of \"press/lock\": the connection was lost") {
				t.Errorf("exit code %d, want 66 and the cause", code)
			}
		})
	}
}

// A client id that is taken over while the node stands by costs no lease, though the node led before.
func TestATakeOverAfterATermIsNoLossOfALease(t *testing.T) {
	t.Parallel()
	broker := server(t)
	dir := t.TempDir()
	first := startNode(t, filepath.Join(dir, "first"), broker, "polite", "run", "--ttl", "2s", "--client-id", "first", "press")
	first.awaitStart()
	second := startNode(t, filepath.Join(dir, "second"), broker, "polite", "run", "--ttl", "2s", "press")
	awaitLog(t, second, "waiting for the lease")
	client := func(arguments ...string) {
		cmd := exec.Command(tenure, append(arguments, "--broker", broker)...)
		cmd.Env = os.Environ()
		if out, err := cmd.CombinedOutput(); err != nil && cmd.ProcessState.ExitCode() != 69 {
			t.Fatalf("%v: %v\n%s", arguments, err, out)
		}
	}
	client("release", "--force", "--yes", "press")
	second.awaitStart()
	awaitLog(t, first, "waiting for the lease")
	client("get", "no-key", "--client-id", "first")
	if code := first.awaitExit(); code != 1 || strings.Contains(first.log.String(), "the child was ended:") {
		t.Errorf("exit code %d, want 1, and no lease that was lost", code)
	}
}
