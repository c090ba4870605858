//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/servertest"
)

// program is this program.
var program = compiled.Program{Folder: "."}

func TestMain(m *testing.M) {
	status := testprocess.Run(m)
	program.Remove()
	os.Exit(status)
}

func TestThePairSurvivesEachFaultAndTheStoreAcceptsNoStaleWrite(t *testing.T) {
	t.Parallel()
	got := mustSurviveEachFault(t, 6, 7)
	if killed := got.Faults[4]; !killed.KeepsLeader || killed.Gap != 0 || killed.Token != got.Faults[3].Token {
		t.Errorf("after the store was killed: %+v; before: %+v; want the same leader", *killed, *got.Faults[3])
	}
}

// The store is a client of a broker that knows nothing of stores; it is that broker which
// notices that a node was killed.
func TestThePairSurvivesEachFaultOnABrokerToWhichAStoreIsAttached(t *testing.T) {
	t.Parallel()
	address := "mqtt://" + mosquitto.Start(t, "").Address
	store, err := attach.New(address, attach.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- store.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := await.Receive(served); err != nil {
			t.Error(err)
		}
	})
	await.Receive(store.Ready())
	mustSurviveEachFault(t, 5, 6, "--broker", address)
	if got := store.Stats(); got.Attachments != 1 {
		t.Errorf("the store lost its connection: %+v", got)
	}
}

func mustSurviveEachFault(t *testing.T, faults, checks int, flags ...string) (got result) {
	t.Helper()
	cmd := exec.Command(program.Path(t), append([]string{"--ttl", "1s", "--json"}, flags...)...)
	var timeline bytes.Buffer
	cmd.Stderr = &timeline
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, timeline.String(), out)
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.Stale != 0 || !got.ok() || got.Lost == 0 || len(got.Checks) != checks {
		t.Errorf("stale writes %d, checks %+v", got.Stale, got.Checks)
	}
	if len(got.Faults) != faults {
		t.Fatalf("faults %+v", got.Faults)
	}
	for _, f := range got.Faults {
		if f.Accepted == 0 || f.Token.IsZero() {
			t.Errorf("%s: %+v; want a successor that writes", f.Name, *f)
		}
	}
	if frozen := got.Faults[2]; frozen.RefusedByStore == 0 || frozen.RefusedByGuard == 0 {
		t.Errorf("the woken node was refused %d times by the guard and %d times by the store, want both",
			frozen.RefusedByGuard, frozen.RefusedByStore)
	}
	if !strings.Contains(timeline.String(), "SIGCONT") {
		t.Errorf("the timeline is not on standard error:\n%s", timeline.String())
	}
	return got
}

// The form in which it runs where a process cannot be frozen.
func TestWithoutTheFreezeThePairSurvivesTheOtherFaults(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(program.Path(t), "--ttl", "1s", "--json", "--freeze=false")
	var timeline bytes.Buffer
	cmd.Stderr = &timeline
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, timeline.String(), out)
	}
	var got result
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.Stale != 0 || !got.ok() || len(got.Checks) != 5 || len(got.Faults) != 5 {
		t.Errorf("stale writes %d, checks %+v, %d faults", got.Stale, got.Checks, len(got.Faults))
	}
	if said := timeline.String(); strings.Contains(said, "SIGSTOP") || !strings.Contains(said, "No node is frozen") {
		t.Errorf("the timeline says\n%s", said)
	}
}

func TestInterruptEndsTheDirectorAndItsNodes(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(program.Path(t), "--ttl", "1s")
	timeline, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// The nodes inherit standard error: Wait returns when the last has ended.
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	interrupted := false
	for lines := bufio.NewScanner(timeline); lines.Scan(); {
		if !interrupted && strings.Contains(lines.Text(), "SIGSTOP") { // one of them is frozen, even
			interrupted = true
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := await.Result(cmd.Wait); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("%v; standard error: %s", err, stderr.String())
	}
}

func TestANodeEndsWithItsDirector(t *testing.T) {
	address := servertest.New(t).URL
	cmd := exec.Command(program.Path(t), "--node", "node-a", "--run", "orphan", "--broker", address, "--ttl", "1s")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var phases []string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v in %q", err, lines.Text())
		}
		if e.Kind != kindPhase {
			continue
		}
		if phases = append(phases, e.Phase); e.Phase == "active" {
			_ = stdin.Close()
		}
	}
	if err := await.Result(cmd.Wait); err != nil {
		t.Error(err)
	}
	if got := strings.Join(phases, " "); got != "standby claiming active draining released" {
		t.Errorf("phases: %s", got)
	}
}

func TestBadCommandLinesAreRefusedWithTheCause(t *testing.T) {
	path := program.Path(t)
	for _, test := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"an argument", []string{"twice"}, `unexpected argument "twice"`},
		{"a TTL that no lease can have", []string{"--ttl", "1ms"}, "at least 50ms"},
		{"a broker that is no address", []string{"--broker", "http://localhost"}, "write it like mqtt://host:1883"},
		{"an unknown flag", []string{"--tll", "1s"}, "flag provided but not defined"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := exec.Command(path, test.arguments...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), test.want) {
				t.Errorf("%v, want %q in\n%s", err, test.want, out)
			}
		})
	}
}

func TestABrokerWithoutAStoreIsReportedWithTheCure(t *testing.T) {
	address := "mqtt://" + mosquitto.Start(t, "").Address
	out, err := exec.Command(program.Path(t), "--broker", address).CombinedOutput()
	want := "no state store answers on this broker; run one there: tenure attach " + address
	if err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%v, want %q in\n%s", err, want, out)
	}
}

// The checks must be able to fail.
func TestTheChecksFindWhatIsWrong(t *testing.T) {
	at := func(wall int64) hlc.Timestamp { return hlc.Timestamp{Wall: wall, Node: "StateStore"} }
	under := func(wall int64) hlc.Token { return hlc.Token(at(wall)) }
	write := func(version, token int64) event {
		return event{Kind: kindWrite, Outcome: accepted, Version: at(version), Token: under(token), Count: int(version)}
	}
	// A run in which everything is as it should be.
	sound := func() *result {
		r := newResult(0)
		for term := range int64(4) {
			r.leads(event{Token: under(10 * term)})
			r.wrote(write(10*term+1, 10*term))
			r.control.saw(at(10*term+1), under(10*term))
		}
		r.control.saw(at(25), under(0))
		r.wrote(event{Kind: kindWrite, Late: true, Outcome: refusedByStore, Token: under(10)})
		return r
	}
	last := counter{Token: under(30), Count: 31}
	for _, test := range []struct {
		name string
		harm func(*result)
		want string // the check that fails; empty: none
	}{
		{"nothing is wrong", func(*result) {}, ""},
		{"a stale write was reported", func(r *result) { r.wrote(write(25, 0)) }, "stale writes accepted: 0"},
		{"a stale write was seen in the store only", func(r *result) { r.fenced.saw(at(25), under(0)) }, "stale writes accepted: 0"},
		{"a token fell", func(r *result) { r.leads(event{Token: under(5)}) }, "tokens rise from term to term"},
		{"a late write was accepted", func(r *result) { r.late[0].Outcome = accepted }, "the woken node's late write was refused"},
		{"no late write was made", func(r *result) { r.late = nil }, "the woken node's late write was refused"},
		{"the control lost nothing", func(r *result) { delete(r.control, at(25)) }, "without fencing updates are lost"},
		{"a write that got no answer came after the last that did", func(r *result) {
			r.highest.Version, r.highest.Count = at(30), 30
			r.wrote(event{Kind: kindWrite, Outcome: unknown, Token: under(30), Count: 31})
		}, ""},
		{"a write that no node made is there", func(r *result) { r.highest.Version, r.highest.Count = at(30), 30 },
			"the store holds the last accepted write"},
		{"a node lost the lead when the store was killed", func(r *result) {
			r.beginStore("store killed")
			r.drains(event{Token: under(30), At: time.Now()})
		}, "the leader kept its lease while the store was killed"},
		{"a node resigned after the store was killed", func(r *result) {
			r.beginStore("store killed").over = true
			r.drains(event{Token: under(30), At: time.Now()})
		}, ""},
		{"an accepted write is gone", func(r *result) { r.wrote(write(32, 30)) }, "the store holds the last accepted write"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := sound()
			test.harm(r)
			r.conclude(2, at(31), last)
			var failed []string
			for _, c := range r.Checks {
				if !c.OK {
					failed = append(failed, c.Name)
				}
			}
			if got := strings.Join(failed, ", "); got != test.want {
				t.Errorf("failed checks: %q, want %q", got, test.want)
			}
		})
	}
	r := sound()
	r.conclude(1, at(31), last)
	if r.ok() {
		t.Error("a run that ends with one node passed")
	}
}

func TestATimeThatIsLongerThanPromisedIsPointedOut(t *testing.T) {
	r := newResult(time.Second)
	r.begin("killed", 2*time.Second, time.Time{}).Gap = 2 * time.Second
	r.begin("killed, instant failover", 200*time.Millisecond, time.Time{}).Gap = 348900 * time.Microsecond
	var text strings.Builder
	if err := r.write(&text); err != nil {
		t.Fatal(err)
	}
	const want = "\nnote  killed, instant failover took 348.9ms, promised ≤ 200ms: is this machine busy?\n"
	if strings.Count(text.String(), "note") != 1 || !strings.Contains(text.String(), want) {
		t.Errorf("the only note of\n%s\nis to be%s", text.String(), want)
	}
}
