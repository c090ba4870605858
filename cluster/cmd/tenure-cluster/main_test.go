//go:build unix

package main_test

import (
	"bufio"
	"context"
	"errors"
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
	await.Until(func() bool { return strings.Contains(p.log.String(), want) })
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
func (p *process) again() *process {
	p.t.Helper()
	return launch(p.t, p.arguments...)
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
	flags   []string // of all three
	stores  []*process
	witness *process
}

// patient are flags with which members are not deposed on a busy machine.
var patient = []string{"--election-timeout", "2s"}

// startTrio starts two stores and a witness, with certificates. The first store is active.
func startTrio(t *testing.T) *trio {
	t.Helper()
	ours := etcdtest.NewAuthority(t)
	ours.Issue(t, "member")
	files := ours.TLS("member")
	free := etcdtest.Addresses(t, 5)
	tr := &trio{peers: free[:3], clients: free[3:]}
	dir := etcdtest.Dir(t, t.Cleanup)
	for i, name := range []string{"a", "b", "c"} {
		if i > 0 {
			tr.cluster += ","
		}
		tr.cluster += name + "=https://" + tr.peers[i]
		tr.dirs = append(tr.dirs, filepath.Join(dir, name))
	}
	tr.flags = append([]string{"--peer-ca", files.CA, "--peer-cert", files.Certificate, "--peer-key", files.Key}, patient...)
	tr.witness = launch(t, append([]string{"witness", "--member", "c", "--cluster", tr.cluster, "--data", tr.dirs[2]}, tr.flags...)...)
	tr.witness.mustSay("started member c")
	for i, name := range []string{"a", "b"} {
		arguments := []string{"serve", "--member", name, "--cluster", tr.cluster, "--data", tr.dirs[i], "--addr", tr.clients[i]}
		p := launch(t, append(arguments, tr.flags...)...)
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
// one takes over with all keys and leases. The witness is lost and replaced.
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

	tr.mustRefer(t, 1, tr.clients[0])
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
	if err := os.RemoveAll(tr.dirs[2]); err != nil {
		t.Fatal(err)
	}
	url := "https://" + etcdtest.Addresses(t, 1)[0]
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	said, err := exec.CommandContext(ctx, built.Path(t), "replace", "c", url, "--data", tr.dirs[0]).CombinedOutput()
	_, flags, found := strings.Cut(strings.TrimSpace(string(said)), "\n")
	if err != nil || !found || !strings.Contains(flags, "c="+url) {
		t.Fatalf("replace: %v, said %q", err, said)
	}
	arguments := append([]string{"witness", "--data", tr.dirs[2]}, strings.Fields(flags)...)
	tr.witness = launch(t, append(arguments, tr.flags...)...)
	tr.witness.mustSay("started member c")
	tr.witness.mustSay("running member c")
	tr.stores[1].kill() // with the new one a majority outlives that
	tr.stores[0].mustSay("listening on ")
	mustHold(t, client, "k", "without the witness")
	if err := context.Cause(tenure.Context()); err != nil {
		t.Errorf("the lease did not outlive all that: %v", err)
	}
	if err := tenure.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
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
	const members = "a=http://127.0.0.1:1,b=http://127.0.0.1:2,c=http://127.0.0.1:3"
	for _, test := range []struct{ arguments, want string }{
		{"serve --etcd http://127.0.0.1:1 --member a --cluster " + members, "give one of them"},
		{"serve --cluster " + members, "--cluster needs --member"},
		{"serve --member a", "--cluster is required"},
		{"serve --member a --cluster a=http://192.0.2.1:1 --data " + t.TempDir(), "lets everything on the network change the data"},
		{"serve --member a --cluster " + members + " --serve-etcd http://192.0.2.1:1 --data " + t.TempDir(), "--serve-etcd \"http://192.0.2.1:1\" would serve"},
		{"serve --data " + withMember, "start tenure-cluster serve with --member"},
		{"serve --etcd-prefix p/", "--etcd-prefix needs --etcd"},
		{"serve --member a --etcd-ca ca.pem --cluster " + members, "--etcd-ca needs --etcd"},
		{"serve --etcd https://127.0.0.1:1 --etcd-cert cert.pem", "belong together"},
		{"serve --etcd http://127.0.0.1:1 --data " + dir, "--data is for data on this machine"},
		{"serve --etcd http://127.0.0.1:1 --memory", "--memory is for a store of one process"},
		{"serve --etcd http://127.0.0.1:1 --addr 127.0.0.1:0 --advertise here", "--advertise"},
		{"serve --etcd http://127.0.0.1:1 --max-packet-size 2000000", "--max-packet-size"},
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
			cmd := exec.CommandContext(ctx, path, arguments...)
			cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+t.TempDir(), "LocalAppData="+t.TempDir())
			said, err := cmd.CombinedOutput()
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
