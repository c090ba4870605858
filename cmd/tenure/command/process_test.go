//go:build unix

package command

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

// The log is a pipe that is open but not read: a write to it blocks once it holds 64 KiB.
func TestAnUnreadLogBlocksNeitherRequestsNorTheEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // for the whole test
	defer cancel()
	cmd := exec.CommandContext(ctx, build(t), "serve", "--memory", "--addr", "127.0.0.1:0", "--verbose")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	address, _ := launch(t, cmd, "listening on ")
	client, err := transport.Dial(ctx, address, transport.Options{ClientID: strings.Repeat("x", 60)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range 2000 { // each request logs a line of more than 100 bytes
		if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// The pipe stays open until the process has ended.
	if err := await.Result(cmd.Wait); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

func TestAServerKeepsFileDescriptorsInReserveAndSaysHowToGetMore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	const limit, reserve = 200, 64
	cmd := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" serve --memory --addr 127.0.0.1:0`, limit), build(t))
	var log logbuffer.Buffer
	cmd.Stderr = &log
	address, _ := launch(t, cmd, "listening on ")
	client, err := transport.Dial(ctx, address, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	tcp := strings.TrimPrefix(address, "mqtt://")
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}()
	refused := 0
	for i := range limit {
		conn, err := net.Dial("tcp", tcp)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
		_ = conn.SetDeadline(time.Now().Add(patience))
		connect := fmt.Sprintf("\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04c%03d", i)
		_, _ = io.WriteString(conn, connect)
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			refused++
		}
	}
	if want := limit - (limit - reserve - 1); refused != want {
		t.Errorf("%d connections were refused, want %d", refused, want)
	}
	if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Errorf("a client that was connected before: %v", err)
	}
	await.Until(func() bool { return strings.Contains(log.String(), "omitted=") })
	text := log.String()
	for _, want := range []string{"too many files and sockets are open", "limit=136", "ulimit -n", "LimitNOFILE", "remote=127.0.0.1:", "omitted="} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the log:\n%s", want, text)
		}
	}
	if lines := strings.Count(text, "closed a connection"); lines > 30 {
		t.Errorf("%d lines about %d connections", lines, refused)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	again, err := transport.Dial(ctx, address, transport.Options{})
	if err != nil {
		t.Fatalf("after the connections closed: %v", err)
	}
	_ = again.Close()
}

// Invariant 34: here the limit on the size of files stands for a disk that is full.
func TestInvariant34AServerThatCannotWriteItsDataEndsAndSaysWhy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	s := &durableStore{t: t, path: build(t), dir: filepath.Join(t.TempDir(), "data"), host: "127.0.0.1:0"}
	s.cmd = exec.CommandContext(ctx, "sh", "-c", `ulimit -f 400 && exec "$0" serve --addr 127.0.0.1:0 --data "$1"`, s.path, s.dir)
	var stderr strings.Builder
	s.cmd.Stderr = &stderr
	s.address, s.stdout = launch(t, s.cmd, "listening on ")
	client := s.dial(ctx)
	value := []byte(strings.Repeat("v", 10_000))
	acknowledged := 0
	for acknowledged < 1000 {
		requesting, cancel := context.WithTimeout(ctx, patience/10)
		_, err := client.Set(requesting, fmt.Sprint("k", acknowledged), value, transport.SetOptions{})
		cancel()
		if err != nil {
			break
		}
		acknowledged++
	}
	for s.stdout.Scan() {
		t.Errorf("standard output has %q", s.stdout.Text())
	}
	err := await.Result(s.cmd.Wait)
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	last := lines[len(lines)-1]
	if s.cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(last, "tenure: ") || !strings.Contains(last, s.dir) ||
		!strings.Contains(last, "file too large") || !strings.Contains(last, "mend the cause and start again") {
		t.Errorf("%v, want exit status 1 and the cure in the last line of\n%s", err, stderr.String())
	}
	if acknowledged == 0 || acknowledged == 1000 {
		t.Fatalf("%d writes were acknowledged", acknowledged)
	}
	s.start()
	client = s.dial(ctx)
	for i := range acknowledged {
		if entry, err := client.Get(ctx, fmt.Sprint("k", i)); err != nil || string(entry.Value) != string(value) {
			t.Fatalf("write %d of %d, which was acknowledged: %d bytes, %v", i+1, acknowledged, len(entry.Value), err)
		}
	}
}

// A terminal that closes sends SIGHUP and no longer reads the log. Neither stops a store.
func TestAStoreSurvivesSIGHUPAndAClosedLog(t *testing.T) {
	path := build(t)
	for _, test := range []struct {
		name      string
		arguments func(t *testing.T) []string
		ready     string // the beginning of its first line, before an address
	}{
		{"a broker with a store inside", func(*testing.T) []string { return []string{"serve", "--memory", "--addr", "127.0.0.1:0"} }, "listening on "},
		{"an attached store", func(t *testing.T) []string {
			return []string{"attach", "--memory", "mqtt://" + mosquitto.Start(t, "").Address}
		}, "attached to "},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // for the whole test
			defer cancel()
			cmd := exec.CommandContext(ctx, path, test.arguments(t)...)
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			address, _ := start(t, cmd, stdout, test.ready)
			hangUp := func() {
				t.Helper()
				if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
			}
			answers := func(when string) {
				t.Helper()
				client, err := transport.Dial(ctx, address, transport.Options{})
				if err != nil {
					t.Fatalf("%s: %v", when, err)
				}
				defer client.Close()
				if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err != nil {
					t.Errorf("%s: %v", when, err)
				}
			}
			log := bufio.NewScanner(stderr)
			if !log.Scan() || !strings.Contains(log.Text(), "the store is in memory") {
				t.Errorf("the log begins with %q", log.Text())
			}
			for range 2 {
				hangUp()
				if !log.Scan() || !strings.Contains(log.Text(), "SIGHUP") || !strings.Contains(log.Text(), "nothing to read again") {
					t.Errorf("the log says %q", log.Text())
				}
				answers("after SIGHUP")
			}
			_, _ = stdout.Close(), stderr.Close()
			hangUp() // it logs that into a broken pipe
			answers("without a reader of its log")
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := await.Result(cmd.Wait); err != nil {
				t.Errorf("after SIGTERM: %v", err)
			}
		})
	}
}

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
	t.Parallel()
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	manager, cmd := startService(t, "attach", broker)
	if ready := manager.wait(t, "READY=1"); !strings.Contains(ready, "STATUS=attached to "+broker) {
		t.Errorf("ready with %q", ready)
	}
	manager.wait(t, "WATCHDOG=1")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	manager.wait(t, "STOPPING=1")
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
	await.Until(func() bool { // the child does not find the socket of systemd
		content, err := os.ReadFile(state)
		return err == nil && len(content) > 0
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	manager.wait(t, "STOPPING=1")
}

// A store whose locks are held for ever still has its other goroutines. Only the watchdog can tell.
func TestTheWatchdogAsksTheStoreThatServes(t *testing.T) {
	p := &process{node: admin.NewNode()}
	if !p.answers() {
		t.Error("a process that loads its data does not work")
	}
	entered, leave := make(chan struct{}), make(chan struct{})
	p.node.Serve(admin.Store{Usage: func() server.Usage {
		close(entered)
		await.Receive(leave)
		return server.Usage{}
	}})
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
	p.node.Loading()
	if !p.answers() {
		t.Error("a process without a store does not work")
	}
}

// silentConn is a connection over which no GET arrives, once it is silent.
type silentConn struct {
	net.Conn
	silent *atomic.Bool
	asked  func() // called for each of them
}

func (c silentConn) Write(p []byte) (int, error) {
	if c.silent.Load() && bytes.Contains(p, []byte("GET\r\n")) {
		c.asked()
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A child that ended by itself while the lease was held keeps its code, though the broker is away, and the
// deadline passes while the store is asked once more.
func TestTheDeadlineMayPassWhileTheStoreIsAskedOnceMore(t *testing.T) {
	for _, test := range []struct {
		name        string
		passesFirst bool // the deadline passes before the child ends
	}{{"while it is asked", false}, {"before", true}} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			const ttl = time.Hour // so nothing else is sent meanwhile
			var silent atomic.Bool
			var ahead atomic.Int64
			pass := func() { ahead.Store(int64(2 * ttl)) }
			client, err := transport.Dial(ctx, startMemory(t), transport.Options{Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return silentConn{conn, &silent, pass}, err
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			l, err := lease.New(client, "press", lease.Options{TTL: ttl, RequestTimeout: 100 * time.Millisecond,
				Clock: func() time.Duration { return lease.SystemClock() + time.Duration(ahead.Load()) }})
			if err != nil {
				t.Fatal(err)
			}
			tenure, err := l.Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			h := &holderProcess{holdFlags: &holdFlags{ttl: ttl, connection: connection{timeout: await.Patience}}, logger: slog.New(slog.DiscardHandler)}
			if err := h.confirm(tenure); err != nil {
				t.Errorf("%v, and the store has the tenure", err)
			}
			silent.Store(true)
			if test.passesFirst {
				pass()
			}
			if err := h.confirm(tenure); (err != nil) != test.passesFirst {
				t.Errorf("%v", err)
			}
			if tenure.Remaining() > 0 {
				t.Error("the deadline has not passed: nothing was tested")
			}
		})
	}
}

func TestWhatBecomesOfASignal(t *testing.T) {
	const end, child = true, true
	type step struct {
		after         time.Duration // the first one
		end, hasChild bool
		want          signalUse
	}
	for name, steps := range map[string][]step{
		"the child's":                        {{0, !end, child, forChild}, {time.Second, !end, !child, forChild}},
		"once":                               {{0, end, child, endsWork}, {0, !end, child, forChild}},
		"twice at once, as from timeout(1)":  {{0, end, child, endsWork}, {sameSignal - 1, end, child, repeated}},
		"the second one kills the child":     {{0, end, child, endsWork}, {sameSignal, end, child, forChild}},
		"twice at once without a child":      {{0, end, !child, endsWork}, {sameSignal - 1, end, !child, repeated}},
		"a further one without a child":      {{0, end, !child, endsWork}, {sameSignal, end, !child, givesUp}, {time.Hour, end, !child, givesUp}},
		"the child has ended after the kill": {{0, end, child, endsWork}, {time.Second, end, child, forChild}, {2 * time.Second, end, !child, givesUp}},
	} {
		var ends endSignals
		began := time.Now()
		for i, step := range steps {
			if got := ends.use(step.end, step.hasChild, nil, began.Add(step.after)); got != step.want {
				t.Errorf("%s: %d: %v, want %v", name, i, got, step.want)
			}
		}
	}
}

func TestWhatBecomesOfASignalAfterTheChildEnded(t *testing.T) {
	ended := time.Now()
	for after, want := range map[time.Duration]signalUse{
		0:              endsWork, // it may have ended the child, too
		sameSignal - 1: endsWork,
		sameSignal:     givesUp,
		time.Hour:      givesUp,
	} {
		var ends endSignals
		if got := ends.use(true, false, &ended, ended.Add(after)); got != want {
			t.Errorf("after %v: %v, want %v", after, got, want)
		}
		if got := ends.use(true, false, &ended, ended.Add(after+sameSignal)); got != givesUp {
			t.Errorf("another one, after %v: %v, want %v", after, got, givesUp)
		}
	}
}
