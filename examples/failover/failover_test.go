//go:build unix

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/servertest"
)

// asDemo makes the test executable the program: so it starts itself as the nodes and the store.
const asDemo = "TENURE_TEST_AS_FAILOVER"

func TestMain(m *testing.M) {
	if os.Getenv(asDemo) != "" {
		main()
		return
	}
	if err := os.Setenv(asDemo, "1"); err != nil {
		panic(err)
	}
	os.Exit(testprocess.Run(m))
}

// timeline calls with each of its lines.
type timeline func(line string)

func (t timeline) Write(line []byte) (int, error) {
	t(string(line))
	return len(line), nil
}

func TestThePairSurvivesEachFaultAndTheStoreAcceptsNoStaleWrite(t *testing.T) {
	for _, test := range []struct {
		name           string
		attached       bool // to a broker that knows nothing of stores, and notices that a node was killed
		freeze         bool // not where a process cannot be frozen
		faults, checks int
	}{
		{"a store of our own", false, true, 6, 7},
		{"a store that is attached to a broker", true, true, 5, 6},
		{"no node is frozen", false, false, 5, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := settings{ttl: time.Second, freeze: test.freeze}
			if test.attached {
				s.broker = attached(t)
			}
			got, err := direct(t.Context(), s, timeline(func(line string) { t.Log(strings.TrimSpace(line)) }))
			if err != nil {
				t.Fatal(err)
			}
			if len(got.failed()) > 0 || len(got.checks) != test.checks || len(got.faults) != test.faults {
				t.Fatalf("%d faults, checks %+v", len(got.faults), got.checks)
			}
			for i, f := range got.faults {
				if f.writes[accepted] == 0 || f.token.IsZero() {
					t.Errorf("%s: %+v; want a successor that writes", f.name, *f)
				}
				if f.keepsLeader && (f.gap != 0 || f.token != got.faults[i-1].token) {
					t.Errorf("after the store was killed: %+v; before: %+v; want the same leader", *f, *got.faults[i-1])
				}
			}
			if frozen := got.faults[2].writes; test.freeze && (frozen[refusedByStore] == 0 || frozen[refusedByGuard] == 0) {
				t.Errorf("of the woken node %v were refused, want some by the guard and by the store", frozen)
			}
		})
	}
}

// attached returns the address of a broker with a store.
func attached(t *testing.T) string {
	t.Helper()
	address := "mqtt://" + mosquitto.Start(t, "").Address
	store, err := attach.New(address, attach.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- store.Serve(ctx) }()
	t.Cleanup(func() {
		if got := store.Stats(); got.Attachments != 1 {
			t.Errorf("the store lost its connection: %+v", got)
		}
		stop()
		if err := await.Receive(served); err != nil {
			t.Error(err)
		}
	})
	await.Receive(store.Ready())
	return address
}

// It returns when all processes have ended, the frozen one too.
func TestAnInterruptEndsTheRun(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	_, err := direct(ctx, settings{ttl: time.Second, freeze: true}, timeline(func(line string) {
		if strings.Contains(line, "SIGSTOP") {
			interrupt()
		}
	}))
	if !errors.Is(err, errInterrupted) {
		t.Errorf("it ends with %v", err)
	}
}

func TestANodeEndsWithItsDirector(t *testing.T) {
	events := make(chan event)
	p, err := start(nodeA, events, "--node", nodeA, "--run", "orphan", "--broker", servertest.New(t).URL, "--ttl", "1s")
	if err != nil {
		t.Fatal(err)
	}
	var phases []string
	for e := await.Receive(events); !e.Exited; e = await.Receive(events) {
		if e.Phase != "" {
			phases = append(phases, e.Phase)
		}
		if e.Phase == "active" {
			_ = p.stdin.Close()
		}
	}
	if got := strings.Join(phases, " "); got != "standby claiming active draining released" || !p.cmd.ProcessState.Success() {
		t.Errorf("%v after the phases %s", p.cmd.ProcessState, got)
	}
}

func TestWhatCannotRunSaysWhyAndWhatToDo(t *testing.T) {
	empty := "mqtt://" + mosquitto.Start(t, "").Address
	for want, arguments := range map[string][]string{
		`unexpected argument "twice"`:           {"twice"},
		"at least 50ms":                         {"--ttl", "1ms"},
		"write it like mqtt://host:1883":        {"--broker", "http://localhost"},
		"flag provided but not defined":         {"--tll", "1s"},
		"run one there: tenure attach " + empty: {"--broker", empty},
	} {
		out, err := exec.Command(os.Args[0], arguments...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, want %q in\n%s", err, want, out)
		}
	}
}

// The checks must be able to fail.
func TestTheChecksFindWhatIsWrong(t *testing.T) {
	at := func(wall int64) hlc.Timestamp { return hlc.Timestamp{Wall: wall, Node: "StateStore"} }
	under := func(wall int64) hlc.Token { return hlc.Token(at(wall)) }
	write := func(version, token int64) event {
		return event{Outcome: accepted, Version: at(version), Token: under(token), Count: int(version)}
	}
	// A run in which everything is as it should be.
	sound := func() *result {
		r := newResult(true)
		for term := range int64(4) {
			r.leads(event{Token: under(10 * term)})
			r.wrote(write(10*term+1, 10*term))
			r.control.saw(at(10*term+1), under(10*term))
		}
		r.control.saw(at(25), under(0))
		r.wrote(event{Late: true, Outcome: refusedByStore, Token: under(10)})
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
			r.wrote(event{Outcome: unknown, Token: under(30), Count: 31})
		}, ""},
		{"a write that no node made is there", func(r *result) { r.highest.Version, r.highest.Count = at(30), 30 },
			"the store holds the last accepted write"},
		{"a node lost the lead when the store was killed", func(r *result) {
			r.begin("store killed", 0, time.Time{}).keepsLeader = true
			r.drains(event{Token: under(30), At: time.Now()})
		}, "the leader kept its lease while the store was killed"},
		{"an accepted write is gone", func(r *result) { r.wrote(write(32, 30)) }, "the store holds the last accepted write"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := sound()
			test.harm(r)
			r.conclude(2, at(31), last)
			if got := strings.Join(r.failed(), ", "); got != test.want {
				t.Errorf("failed checks: %q, want %q", got, test.want)
			}
		})
	}
	r := sound()
	r.conclude(1, at(31), last)
	if len(r.failed()) == 0 {
		t.Error("a run that ends with one node passed")
	}
}

func TestATimeThatIsLongerThanPromisedIsPointedOut(t *testing.T) {
	r := newResult(true)
	r.begin("killed", 2*time.Second, time.Time{}).gap = 2 * time.Second
	r.begin("killed, instant failover", 200*time.Millisecond, time.Time{}).gap = 348900 * time.Microsecond
	var text strings.Builder
	if err := errors.Join(r.write(&text), summarize(&text, []*result{r, r, r}, 0)); err != nil {
		t.Fatal(err)
	}
	const want = "\nnote  killed, instant failover took 348.9ms, promised ≤ 200ms: is this machine busy?\n"
	if strings.Count(text.String(), "note") != 1 || !strings.Contains(text.String(), want) {
		t.Errorf("the only note of\n%s\nis to be%s", text.String(), want)
	}
	if want := "killed                    2s                             2s       ≤ 2s\n"; !strings.Contains(text.String(), want) {
		t.Errorf("the summary of\n%s\nlacks %s", text.String(), want)
	}
}
