//go:build unix

package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

func TestServeSaysWhereItListensAndStopsOnASignal(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		r := begin(t, "serve", "--memory", "--addr", "127.0.0.1:0", "--log-level", "warn")
		mustSet(t, dialTest(t, r.mustPrint(`listening on (\S+) with data in memory only`), "client"), "k", "v")
		r.mustEndAfter(signal, 0, "stopped")
		if log := r.stderr.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "a restart forgets every key, lease and fence") {
			t.Errorf("the log is %q", log)
		}
	}
}

// The log is a pipe that is open but not read: a write to it blocks once it holds 64 KiB.
func TestAnUnreadLogBlocksNeitherRequestsNorTheEnd(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(built.Path(t), "serve", "--memory", "--addr", "127.0.0.1:0", "--log-level", "debug")
	unread, log, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	defer log.Close()
	cmd.Stderr = log
	r := start(t, cmd)
	client := dialTest(t, r.mustPrint(`listening on (\S+) .*`), strings.Repeat("x", 60))
	for range 2000 { // each request logs a line of more than 100 bytes
		mustSet(t, client, "k", "v")
	}
	r.mustEndAfter(syscall.SIGTERM, 0, "stopped")
}

func TestAServerKeepsFileDescriptorsInReserveAndSaysHowToGetMore(t *testing.T) {
	t.Parallel()
	const limit, reserve = 200, 64
	serve := start(t, exec.Command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" serve --memory --addr 127.0.0.1:0`, limit), built.Path(t)))
	address, log := serve.mustPrint(`listening on (\S+) .*`), serve.stderr
	client := dialTest(t, address, "client")
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
		connect := fmt.Sprintf("\x10\x11\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x04c%03d", i)
		_, _ = io.WriteString(conn, connect)
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			refused++
		}
	}
	if want := limit - (limit - reserve - 1); refused != want {
		t.Errorf("%d connections were refused, want %d", refused, want)
	}
	mustSet(t, client, "k", "v") // it was connected before
	await.Until(func() bool { return strings.Contains(log.String(), "omitted=") })
	for _, want := range []string{"too many files and sockets are open", "limit=136", "ulimit -n", "LimitNOFILE"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, log)
		}
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	dialTest(t, address, "again")
}

// Invariant 34: here the limit on the size of files stands for a disk that is full.
func TestInvariant34AServerThatCannotWriteItsDataEndsAndSaysWhy(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "data")
	limited := start(t, exec.Command("sh", "-c", `ulimit -f 400 && exec "$0" serve --addr 127.0.0.1:0 --data "$1"`, built.Path(t), dir))
	client := dialTest(t, limited.mustPrint(`listening on (\S+) .*`), "client")
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
	if printed := limited.rest(); printed != nil {
		t.Errorf("standard output has %q", printed)
	}
	err := await.Result(limited.cmd.Wait)
	lines := strings.Split(strings.TrimSpace(limited.stderr.String()), "\n")
	last := lines[len(lines)-1]
	if limited.cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(last, "tenure: ") || !strings.Contains(last, dir) ||
		!strings.Contains(last, "file too large") || !strings.Contains(last, "mend the cause and start again") {
		t.Errorf("%v, want exit status 1 and the cure in the last line of\n%s", err, limited.stderr)
	}
	if acknowledged == 0 || acknowledged == 1000 {
		t.Fatalf("%d writes were acknowledged", acknowledged)
	}
	client = dialTest(t, begin(t, "serve", "--addr", "127.0.0.1:0", "--data", dir).mustPrint(`listening on (\S+) .*`), "client")
	for i := range acknowledged {
		if entry, err := client.Get(ctx, fmt.Sprint("k", i)); err != nil || string(entry.Value) != string(value) {
			t.Fatalf("write %d of %d, which was acknowledged: %d bytes, %v", i+1, acknowledged, len(entry.Value), err)
		}
	}
}

// A terminal that closes sends SIGHUP and no longer reads the log. Neither stops a store.
func TestAStoreSurvivesSIGHUPAndAClosedLog(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(built.Path(t), "serve", "--memory", "--addr", "127.0.0.1:0")
	log, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = stderr
	r := start(t, cmd)
	_ = stderr.Close()
	address := r.mustPrint(`listening on (\S+) .*`)
	r.signal(syscall.SIGHUP)
	if said := readUntil(log, "nothing to read again"); !strings.Contains(said, "SIGHUP: there is nothing to read again") {
		t.Errorf("the log says %q", said)
	}
	_ = log.Close()
	r.signal(syscall.SIGHUP) // it logs that into a broken pipe
	mustSet(t, dialTest(t, address, "client"), "k", "v")
	r.mustEndAfter(syscall.SIGTERM, 0, "stopped")
}

// A serviceManager is the socket on which systemd hears a service.
type serviceManager struct{ *net.UnixConn }

// startService starts a command as systemd does, with a directory for its data.
func startService(t *testing.T, arguments ...string) (manager serviceManager, r *running) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	cmd := exec.Command(built.Path(t), arguments...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=60000", "STATE_DIRECTORY="+filepath.Join(dir, "state"))
	return serviceManager{socket}, start(t, cmd)
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
	t.Parallel()
	manager, r := startService(t, "serve", "--addr", "127.0.0.1:0")
	if ready := manager.wait(t, "READY=1"); !strings.Contains(ready, "STATUS=listening on mqtt://127.0.0.1:") || !strings.HasSuffix(ready, "/state") {
		t.Errorf("ready with %q", ready)
	}
	for range 3 {
		manager.wait(t, "WATCHDOG=1")
	}
	r.signal(syscall.SIGTERM)
	manager.wait(t, "STOPPING=1")
}

func TestRunTellsSystemdWhetherItHoldsTheLease(t *testing.T) {
	t.Parallel()
	broker := startMemory(t)
	// The child would write to the socket, if it found it.
	child := []string{"sh", "-c", `test -z "$NOTIFY_SOCKET$WATCHDOG_USEC" && echo unknown > "$STATE_DIRECTORY" && exec sleep 1000`}
	manager, r := startService(t, append([]string{"run", "--broker", broker, "poller", "--"}, child...)...)
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
	r.signal(syscall.SIGTERM)
	manager.wait(t, "STOPPING=1")
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
	t.Parallel()
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
	l, err := lease.New(client, "press", lease.Options{TTL: ttl, RequestTimeout: 2 * time.Second,
		Clock: func() time.Duration { return lease.SystemClock() + time.Duration(ahead.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := l.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h := &holderProcess{holdFlags: &holdFlags{ttl: ttl, connection: connection{timeout: await.Patience}}}
	silent.Store(true)
	if err := h.confirm(tenure); err != nil {
		t.Error(err)
	}
	if tenure.Remaining() > 0 {
		t.Error("the deadline has not passed: nothing was tested")
	}
	if err := h.confirm(tenure); err == nil {
		t.Error("the deadline had passed before the child ended")
	}
}

// Where the broker hangs once the child has ended by itself, a signal ends the wait for it long before --timeout.
func TestASignalEndsTheWaitForTheReleaseAfterTheChild(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"lock", "run"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			store := begin(t, "serve", "--memory", "--addr", "127.0.0.1:0")
			address := store.mustPrint(`listening on (\S+) .*`)
			stop := fmt.Sprintf("kill -STOP %d", store.cmd.Process.Pid)
			r := begin(t, command, "--broker", address, "--ttl", "5m", "--timeout", "5m", "--log-level", "info", "jobs", "--", "sh", "-c", stop)
			await.Until(func() bool { return strings.Contains(r.stderr.String(), "the child ended") })
			r.mustEndAfter(os.Interrupt, 0)
			if log := r.stderr.String(); !strings.Contains(log, "the lease could not be released") {
				t.Errorf("the log is %s", log)
			}
		})
	}
}

func TestWhatBecomesOfASignal(t *testing.T) {
	const end, child, pass, giveUp = true, true, true, true
	began := time.Now()
	type step struct {
		after         time.Duration // the first one
		end, hasChild bool
		pass, giveUp  bool
	}
	for name, steps := range map[string][]step{
		"the child's":                        {{0, !end, child, pass, !giveUp}, {time.Second, !end, !child, pass, !giveUp}},
		"once":                               {{0, end, child, !pass, !giveUp}, {0, !end, child, pass, !giveUp}},
		"twice at once, as from timeout(1)":  {{0, end, child, !pass, !giveUp}, {sameSignal - 1, end, child, !pass, !giveUp}},
		"the second one kills the child":     {{0, end, child, !pass, !giveUp}, {sameSignal, end, child, pass, !giveUp}},
		"twice at once without a child":      {{0, end, !child, !pass, !giveUp}, {sameSignal - 1, end, !child, !pass, !giveUp}},
		"a further one without a child":      {{0, end, !child, !pass, !giveUp}, {sameSignal, end, !child, !pass, giveUp}},
		"the child has ended after the kill": {{0, end, child, !pass, !giveUp}, {time.Second, end, child, pass, !giveUp}, {time.Minute, end, !child, !pass, giveUp}},
	} {
		var ends endSignals
		for i, step := range steps {
			if pass, giveUp := ends.use(step.end, step.hasChild, began.Add(step.after)); pass != step.pass || giveUp != step.giveUp {
				t.Errorf("%s: %d: pass %v, give up %v", name, i, pass, giveUp)
			}
		}
	}
}
