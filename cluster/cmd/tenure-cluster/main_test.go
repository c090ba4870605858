//go:build unix

package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// built is this command.
var built = compiled.Program{Folder: "."}

func TestMain(m *testing.M) {
	status := testprocess.Run(m)
	built.Remove()
	os.Exit(status)
}

// process is a running command.
type process struct {
	t         *testing.T
	arguments []string
	cmd       *exec.Cmd
	lines     chan string // of standard output
	log       *logbuffer.Buffer
}

// launch starts the command with arguments. It is killed when the test ends.
func launch(t *testing.T, arguments ...string) *process {
	t.Helper()
	path := built.Path(t)
	p := &process{t: t, arguments: arguments, cmd: exec.Command(path, arguments...), lines: make(chan string, 100), log: new(logbuffer.Buffer)}
	p.cmd.Stderr = p.log
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(arguments, " "), p.log)
		}
	})
	return p
}

// mustSay waits for a line of standard output that begins with want, and fails if another one
// comes.
func (p *process) mustSay(want string) {
	p.t.Helper()
	if line, open := await.Next(p.lines); !open || !strings.HasPrefix(line, want) {
		p.t.Fatalf("%v said %q (ended: %t), want %q", p.arguments[:3], line, !open, want)
	}
}

// mustLog waits until standard error contains want.
func (p *process) mustLog(want string) {
	p.t.Helper()
	for began := time.Now(); !strings.Contains(p.log.String(), want); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > await.Patience {
			p.t.Fatalf("%v did not log %q; log:\n%s", p.arguments[:3], want, p.log)
		}
	}
}

func (p *process) signal(signal syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process at once, if it still runs.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	for range p.lines { // until the pipe is closed
	}
	_ = await.Result(p.cmd.Wait)
}

// again starts a process that was killed once more.
func (p *process) again(more ...string) *process {
	p.t.Helper()
	return launch(p.t, append(p.arguments, more...)...)
}

// mustStop ends the process with SIGTERM.
func (p *process) mustStop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	var last string
	for line, open := await.Next(p.lines); open; line, open = await.Next(p.lines) {
		last = line
	}
	if err := await.Result(p.cmd.Wait); err != nil || last != "stopped" {
		p.t.Errorf("%v: %v, said %q; log:\n%s", p.arguments, err, last, p.log)
	}
}

// trio is two stores and a witness on this machine.
type trio struct {
	cluster string
	peers   []string
	clients []string // addresses of the stores
	dirs    []string
	stores  []*process
	witness *process
}

// startTrio starts two stores and a witness. The first store is active.
func startTrio(t *testing.T) *trio {
	t.Helper()
	return startTrioWith(t, "http")
}

// startTrioWith starts them with URLs of this scheme, and with more arguments.
func startTrioWith(t *testing.T, scheme string, more ...string) *trio {
	t.Helper()
	free := etcdtest.Addresses(t, 5)
	tr := &trio{peers: free[:3], clients: free[3:]}
	dir := etcdtest.Dir(t, t.Cleanup)
	for i, name := range []string{"a", "b", "c"} {
		if i > 0 {
			tr.cluster += ","
		}
		tr.cluster += name + "=" + scheme + "://" + tr.peers[i]
		tr.dirs = append(tr.dirs, filepath.Join(dir, name))
	}
	tr.witness = launch(t, append([]string{"witness", "--member", "c", "--cluster", tr.cluster, "--data", tr.dirs[2]}, more...)...)
	tr.witness.mustSay("started member c")
	for i, name := range []string{"a", "b"} {
		p := launch(t, append([]string{"serve", "--member", name, "--cluster", tr.cluster, "--data", tr.dirs[i], "--addr", tr.clients[i]}, more...)...)
		p.mustSay("standing by on mqtt://" + tr.clients[i])
		if i == 0 {
			p.mustSay("listening on mqtt://" + tr.clients[i])
		}
		tr.stores = append(tr.stores, p)
	}
	tr.witness.mustSay("running member c")
	return tr
}

func (tr *trio) dial(t *testing.T, id string) *transport.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, "mqtt://"+tr.clients[0]+",mqtt://"+tr.clients[1], transport.Options{ClientID: id, ReconnectMax: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func mustHold(t *testing.T, client *transport.Client, key, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for {
		entry, err := client.Get(ctx, key)
		if errors.Is(err, transport.ErrOutcomeUnknown) && ctx.Err() == nil {
			continue // the connection was lost just now
		}
		if err != nil || string(entry.Value) != want {
			t.Fatalf("%s holds %q, want %q (%v)", key, entry.Value, want, err)
		}
		return
	}
}

func mustSet(t *testing.T, client *transport.Client, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for {
		_, err := client.Set(ctx, key, []byte(value), transport.SetOptions{})
		if errors.Is(err, transport.ErrOutcomeUnknown) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
}

// The active process, with its member of etcd, is killed, frozen and stopped; each time the other
// one takes over with all keys and leases.
func TestInvariant47APairAndAWitnessAreOneStoreOverEveryFault(t *testing.T) {
	tr := startTrio(t)
	client, holder := tr.dial(t, "client"), tr.dial(t, "holder")
	mustSet(t, client, "k", "before")
	press, err := lease.New(holder, "press", lease.Options{TTL: time.Minute}) // a takeover on a busy machine may need half of it
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := press.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	tr.stores[0].kill()
	tr.stores[1].mustSay("listening on ")
	mustHold(t, client, "k", "before")
	mustSet(t, client, "k", "after the kill")
	tr.stores[0] = tr.stores[0].again()
	tr.stores[0].mustSay("standing by on ")

	tr.stores[1].signal(syscall.SIGSTOP)
	tr.stores[0].mustSay("listening on ")
	mustHold(t, client, "k", "after the kill")
	mustSet(t, client, "k", "after the freeze")
	tr.stores[1].signal(syscall.SIGCONT)
	tr.stores[1].mustSay("standing by on ") // the same process, with nothing of what it had in memory
	mustHold(t, client, "k", "after the freeze")

	tr.stores[0].mustStop()
	tr.stores[1].mustSay("listening on ")
	mustHold(t, client, "k", "after the freeze")
	tr.stores[0] = tr.stores[0].again()
	tr.stores[0].mustSay("standing by on ")

	tr.witness.kill()
	mustSet(t, client, "k", "without the witness")
	mustHold(t, client, "k", "without the witness")
	if err := context.Cause(tenure.Context()); err != nil {
		t.Errorf("the lease did not outlive all that: %v", err)
	}
	if err := tenure.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
}

func TestAStandbySendsClientsToTheActiveOne(t *testing.T) {
	tr := startTrio(t)
	tr.mustRefer(t, 1, tr.clients[0])
}

func TestTheStatusPageShowsTheRoleAndTheActiveStore(t *testing.T) {
	tr := startTrio(t)
	tr.stores[1].mustStop()
	tr.stores[1] = tr.stores[1].again("--admin", "127.0.0.1:0")
	tr.stores[1].mustSay("standing by on ")
	line, _ := await.Next(tr.stores[1].lines)
	page, ok := strings.CutPrefix(line, "status page on ")
	if !ok {
		t.Fatalf("second line %q", line)
	}
	ready := func(status int, text string) {
		t.Helper()
		var got string
		for began := time.Now(); time.Since(began) < await.Patience; time.Sleep(20 * time.Millisecond) {
			answer, err := (&http.Client{Timeout: await.Patience}).Get(page + "readyz")
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if got = fmt.Sprint(answer.StatusCode, " ", string(content), err); answer.StatusCode == status && strings.Contains(got, text) {
				return
			}
		}
		t.Fatalf("/readyz: %s, want %d %q", got, status, text)
	}
	ready(http.StatusServiceUnavailable, tr.clients[0]+" is active") // once etcd has said so
	tr.stores[0].mustStop()
	ready(http.StatusOK, "ready: active")
}

// mustRefer waits until a store refers clients to an address, or to none if that is empty.
func (tr *trio) mustRefer(t *testing.T, store int, address string) {
	t.Helper()
	var err error
	for began := time.Now(); time.Since(began) < await.Patience; { // it may not have heard from etcd yet
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // Dial tries again until then
		_, err = transport.Dial(ctx, "mqtt://"+tr.clients[store], transport.Options{})
		cancel()
		var refused *transport.ConnectionError
		if !errors.As(err, &refused) {
			break
		}
		if refused.ServerReference == address {
			return
		}
	}
	t.Fatalf("%v, want a reference to %q", err, address)
}

func TestALostMemberIsReplacedByANewOne(t *testing.T) {
	prerequisite.Long(t, "it takes twenty seconds")
	tr := startTrio(t)
	client := tr.dial(t, "client")
	mustSet(t, client, "k", "v")
	tr.witness.kill()
	if err := os.RemoveAll(tr.dirs[2]); err != nil {
		t.Fatal(err)
	}
	path := built.Path(t)
	url := "http://" + etcdtest.Addresses(t, 1)[0]
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	said, err := exec.CommandContext(ctx, path, "replace", "c", url, "--data", tr.dirs[0]).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	_, flags, found := strings.Cut(strings.TrimSpace(string(said)), "\n")
	if !found || !strings.Contains(flags, "c="+url) {
		t.Fatalf("it said %q", said)
	}
	next := launch(t, append(strings.Fields("witness --data "+tr.dirs[2]), strings.Fields(flags)...)...)
	next.mustSay("started member c")
	next.mustSay("running member c")
	// The new one counts: with it, a majority outlives the loss of a store.
	tr.stores[0].kill()
	tr.stores[1].mustSay("listening on ")
	mustHold(t, client, "k", "v")
	// It starts again without --join.
	next.kill()
	next = launch(t, "witness", "--data", tr.dirs[2], "--member", "c", "--cluster", tr.cluster)
	next.mustSay("started member c")
	next.mustSay("running member c")
	mustHold(t, client, "k", "v")
}

func TestAWitnessTellsSystemdThatItIsReady(t *testing.T) {
	dir := etcdtest.Dir(t, t.Cleanup)
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", socket.LocalAddr().String())
	cluster := "c=http://" + etcdtest.Addresses(t, 1)[0]
	witness := launch(t, "witness", "--member", "c", "--cluster", cluster, "--data", filepath.Join(dir, "c"))
	witness.mustSay("started member c")
	witness.mustSay("running member c")
	if err := socket.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	n, err := socket.Read(message)
	const want = "READY=1\nSTATUS=running member c"
	if err != nil || !strings.HasPrefix(string(message[:n]), want) {
		t.Errorf("systemd heard %q, %v; want %q", message[:n], err, want)
	}
}

// One process runs etcd, and two others attach their store to a broker.
func TestAttachedStoresThatShareTheirDataTakeTurnsOnOneBroker(t *testing.T) {
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	free := etcdtest.Addresses(t, 2)
	dir := etcdtest.Dir(t, t.Cleanup)
	etcd := launch(t, "witness", "--member", "c", "--cluster", "c=http://"+free[0], "--data", dir, "--serve-etcd", "http://"+free[1])
	etcd.mustSay("started member c")
	etcd.mustSay("running member c")
	var stores []*process
	for i := range 2 {
		p := launch(t, "attach", broker, "--etcd", "http://"+free[1])
		p.mustSay("standing by on " + broker)
		if i == 0 {
			p.mustSay("attached to " + broker)
		}
		stores = append(stores, p)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, broker, transport.Options{ClientID: "client"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	mustSet(t, client, "k", "before")

	stores[0].kill()
	stores[1].mustSay("attached to ")
	mustHold(t, client, "k", "before")
	mustSet(t, client, "k", "after the kill")
	stores[0] = stores[0].again()
	stores[0].mustSay("standing by on ")

	stores[1].signal(syscall.SIGSTOP)
	stores[0].mustSay("attached to ")
	mustHold(t, client, "k", "after the kill")
	mustSet(t, client, "k", "after the freeze")
	stores[1].signal(syscall.SIGCONT)
	stores[1].mustSay("standing by on ")
	mustHold(t, client, "k", "after the freeze")

	stores[0].mustStop()
	stores[1].mustSay("attached to ")
	mustHold(t, client, "k", "after the freeze")
}

func TestFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	path := built.Path(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tenure.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	withMember := t.TempDir()
	if err := os.MkdirAll(filepath.Join(withMember, "member", "etcd", "member", "wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	ours := etcdtest.NewAuthority(t)
	certificate := ours.File("ca.pem")
	const members = "a=http://127.0.0.1:1,b=http://127.0.0.1:2,c=http://127.0.0.1:3"
	for _, test := range []struct{ arguments, want string }{
		{"serve --etcd http://127.0.0.1:1 --member a --cluster " + members, "give one of them"},
		{"serve --cluster " + members, "--cluster needs --member"},
		{"serve --member a", "--member needs --cluster"},
		{"serve --member d --cluster " + members + " --data " + t.TempDir(), `--member "d" is none of the names`},
		{"serve --member a --cluster a=http://192.0.2.1:1 --data " + t.TempDir(), "lets everything on the network change the data"},
		{"serve --member a --cluster " + members + ",a=http://127.0.0.1:4 --data " + t.TempDir(), "--cluster has the name"},
		{"serve --member a --cluster " + members + " --serve-etcd 127.0.0.1:1 --data " + t.TempDir(), "--serve-etcd: "},
		{"serve --member a --cluster " + members + " --serve-etcd http://192.0.2.1:1 --data " + t.TempDir(), "--serve-etcd \"http://192.0.2.1:1\" would serve"},
		{"serve --member a --cluster " + members + " --serve-etcd https://127.0.0.1:1 --data " + t.TempDir(), "--peer-cert and --peer-key: https://127.0.0.1:1 needs certificates"},
		{"serve --member a --cluster " + members + " --data /tmp/" + strings.Repeat("long", 30), "--data is too long"},
		{"serve --etcd http://127.0.0.1:1 --etcd-ca " + certificate, "files for TLS are given"},
		{"serve --etcd http://127.0.0.1:1 --addr 127.0.0.1:0 --etcd-prefix " + strings.Repeat("long", 100), "--etcd-prefix has"},
		{"serve --etcd http://127.0.0.1:1 --advertise " + strings.Repeat("long", 300) + ":1 --addr 127.0.0.1:0", "--advertise has"},
		{"serve --data " + withMember, "start tenure-cluster serve with --member"},
		{"attach mqtt://127.0.0.1:1 --data " + withMember, "start tenure-cluster serve with --member"},
		{"serve --etcd-prefix p/", "--etcd-prefix needs --etcd"},
		{"serve --member a --etcd-ca ca.pem --cluster " + members, "--etcd-ca is for --etcd"},
		{"serve --etcd https://127.0.0.1:1 --etcd-cert cert.pem", "belong together"},
		{"serve --etcd https://127.0.0.1:1 --etcd-ca missing.pem", "--etcd-ca"},
		{"serve --etcd http://127.0.0.1:1 --memory", "--memory is for a store of one process"},
		{"serve --etcd http://127.0.0.1:1 --data " + dir, "--data is for data on this machine"},
		{"serve --etcd http://127.0.0.1:1 --max-packet-size 2000000", "--max-packet-size"},
		{"serve --etcd http://127.0.0.1:1 --addr :0", "--insecure"},
		{"serve --etcd http://127.0.0.1:1 --addr 127.0.0.1:0 --advertise here", "--advertise"},
		{"serve --etcd 127.0.0.1:1 --addr 127.0.0.1:0", "--etcd \"127.0.0.1:1\" is not"},
		{"serve --etcd http://127.0.0.1:1 --addr 127.0.0.1:0 --etcd-ttl 1500ms", "whole seconds"},
		{"serve --member a --cluster " + members + " --data " + dir, "another directory"},

		{"attach mqtt://127.0.0.1:1 --member a", "unknown flag: --member"},
		{"witness", "--member"},
		{"replace c", "usage: tenure-cluster replace NAME URL"},
		{"witness c", "usage: tenure-cluster witness"},
		{"replace c http://127.0.0.1:1 --data " + t.TempDir(), "no member with its data in"},
	} {
		t.Run(test.arguments, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			arguments := strings.Fields(test.arguments)
			if arguments[0] == "serve" && !slices.Contains(arguments, "--addr") {
				arguments = append(arguments, "--addr", "127.0.0.1:0") // a broker may use the default port
			}
			said, err := exec.CommandContext(ctx, path, arguments...).CombinedOutput()
			if err == nil || !strings.Contains(string(said), test.want) || strings.Contains(string(said), "Options.") {
				t.Errorf("%v, said %q; want %q", err, said, test.want)
			}
			var exit *exec.ExitError
			if isUsage := errors.As(err, &exit) && exit.ExitCode() == 2; !isUsage && arguments[0] != "replace" {
				t.Errorf("%v, want exit status 2, with which a service manager does not start it again", err)
			}
		})
	}
}

// Without a majority the last one of three serves nothing, refers clients to no other server, and
// does not fill its log. It ends well, and goes on when a second one is back.
func TestOneOfThreeWaitsForAMajority(t *testing.T) {
	prerequisite.Long(t, "it takes twenty seconds")
	tr := startTrio(t)
	mustSet(t, tr.dial(t, "client"), "k", "v")
	tr.mustRefer(t, 1, tr.clients[0])
	tr.witness.kill()
	tr.stores[0].kill()
	last := tr.stores[1]
	last.mustLog("etcd does not answer")
	tr.mustRefer(t, 1, "")
	tr.witness = tr.witness.again()
	last.mustSay("listening on ")
	last.mustLog("etcd answers again")
	mustHold(t, tr.dial(t, "later"), "k", "v")

	tr.witness.kill()
	last.mustSay("standing by on ")
	last.mustStop()
	if lines := strings.Count(last.log.String(), "\n"); lines > 100 {
		t.Errorf("it logged %d lines", lines)
	}
}
