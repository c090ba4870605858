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
	for name, address := range map[string]func(*testing.T) string{
		"a store of our own":                   func(*testing.T) string { return "" },
		"a store that is attached to a broker": attached, // which knows nothing of stores, and notices that a node was killed
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := direct(t.Context(), settings{ttl: time.Second, broker: address(t)}, timeline(func(line string) { t.Log(strings.TrimSpace(line)) }))
			if err != nil {
				t.Fatal(err)
			}
			if !got.conclude(t.Output()) || len(got.faults) != 4 || len(got.tokens) < 5 || len(got.applied) < 50 {
				t.Errorf("%d faults, %d terms, %d writes", len(got.faults), len(got.tokens), len(got.applied))
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
	_, err := direct(ctx, settings{ttl: time.Second}, timeline(func(line string) {
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
			phases = append(phases, string(e.Phase))
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
		`unexpected argument "twice"`:    {"twice"},
		"at least 50ms":                  {"--ttl", "1ms"},
		"write it like mqtt://host:1883": {"--broker", "http://localhost"},
		"flag provided but not defined":  {"--tll", "1s"},
		"tenure attach " + empty:         {"--broker", empty},
	} {
		out, err := exec.Command(os.Args[0], arguments...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, want %q in\n%s", err, want, out)
		}
	}
}

// The checks must be able to fail.
func TestTheChecksFindWhatIsWrong(t *testing.T) {
	write := func(version, token int64) event {
		return event{Version: hlc.Timestamp{Wall: version, Node: "StateStore"}, Token: hlc.Token{Wall: token, Node: "StateStore"}}
	}
	for want, harm := range map[string]func(*result){
		"":                              func(*result) {},
		"stale writes accepted: 0":      func(r *result) { r.wrote(write(25, 0)) },
		"tokens rise from term to term": func(r *result) { r.leads(write(0, 5)) },
		"the woken node's late write was refused": func(r *result) { r.late[0].Stale = false },
	} {
		r := newResult()
		for term := range int64(4) {
			r.leads(write(0, 10*term))
			r.wrote(write(10*term+1, 10*term))
		}
		r.wrote(event{Late: true, Stale: true, Error: "refused"})
		harm(r)
		var text strings.Builder
		if r.conclude(&text) != (want == "") || !strings.Contains(text.String(), map[bool]string{true: "ok", false: "FAIL  " + want}[want == ""]) {
			t.Errorf("want a failed check %q in\n%s", want, text.String())
		}
	}
}
