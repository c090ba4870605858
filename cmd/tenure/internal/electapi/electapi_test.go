package electapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const ttl = 2 * time.Second

// start runs an election of one node, and returns what ends it and waits for it.
func start(t *testing.T) (e *Election, conn *transporttest.Conn, stop func()) {
	t.Helper()
	return startWith(t, func() (*watchdog.Dog, error) { return nil, nil })
}

func startWith(t *testing.T, open func() (*watchdog.Dog, error)) (e *Election, conn *transporttest.Conn, stop func()) {
	t.Helper()
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	conn = store.Connect("gateway-a")
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e = New(Options{Watchdog: open, Logger: slog.New(slog.DiscardHandler)})
	elector, err := election.New(client, "press-7/active", election.Options{TTL: ttl, Observer: e.Observe})
	if err != nil {
		t.Fatal(err)
	}
	e.Follow(elector)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := elector.Run(ctx, e.Lead); !errors.Is(err, context.Canceled) {
			t.Errorf("the election ended with %v", err)
		}
	}()
	return e, conn, func() {
		cancel()
		await.Receive(ended)
		client.Close()
		store.Close()
	}
}

// until returns the first state with a property.
func until(e *Election, property func(State) bool) State {
	for {
		state, changed := e.State()
		if property(state) {
			return state
		}
		await.Receive(changed)
	}
}

func leads(s State) bool  { return s.Leading }
func drains(s State) bool { return s.Draining }

func TestATermThatWasAnnouncedIsReleasedWhenTheProgramHasDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, stop := start(t)
		leading := until(e, leads)
		if leading.Token == "" || leading.SortableToken == "" || leading.DeadlineMS == nil ||
			*leading.DeadlineMS <= 0 || *leading.DeadlineMS > ttl.Milliseconds() || leading.Holder != "gateway-a" {
			t.Errorf("the leader's state is %+v", leading)
		}
		if e.Drained(leading.Token) {
			t.Error("a term that goes on took the confirmation")
		}
		began := time.Now()
		ended := make(chan struct{})
		go func() { defer close(ended); stop() }()
		draining := until(e, drains)
		if draining.Leading || draining.Token != leading.Token || draining.Cause == "" {
			t.Errorf("the state is %+v", draining)
		}
		if e.Drained("1:0:x") {
			t.Error("another token was taken")
		}
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the lease was released before the program had drained")
		default:
		}
		if !e.Drained(leading.Token) {
			t.Error("the confirmation was refused")
		}
		await.Receive(ended)
		if took := time.Since(began); took > ttl/10 {
			t.Errorf("the hand-over took %v", took)
		}
	})
}

func TestAProgramThatWasToldAndDoesNotConfirmHasUntilTheDeadline(t *testing.T) {
	for _, told := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e, _, stop := start(t)
			await.Until(func() bool { return e.status().Phase == election.Active })
			least, most := time.Duration(0), ttl/10
			if told {
				least, most = time.Duration(*until(e, leads).DeadlineMS-1)*time.Millisecond, ttl
			}
			began := time.Now()
			stop()
			if took := time.Since(began); took < least || took > most {
				t.Errorf("told %v: the term ended %v after the signal, want %v to %v", told, took, least, most)
			}
		})
	}
}

// Invariant 2: no answer says that the node leads once the deadline has passed, though no renewal has ended yet.
func TestInvariant2NoAnswerSaysLeadingAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, conn, stop := start(t)
		until(e, leads)
		conn.Cut()
		for began := time.Now(); time.Since(began) < 2*ttl; time.Sleep(time.Millisecond) {
			if state, _ := e.State(); state.Leading && *state.DeadlineMS > (ttl-time.Since(began)).Milliseconds()+1 {
				t.Fatalf("%v after the last renewal the state is %+v, with %d ms", time.Since(began), state, *state.DeadlineMS)
			}
		}
		if state, _ := e.State(); state.Leading || state.Draining {
			t.Errorf("the state is %+v", state)
		}
		conn.Restore()
		stop()
	})
}

func TestTheWatchdogIsFedUntilTheProgramHasDrainedOrTheLeaseRunsOut(t *testing.T) {
	for _, drained := range []bool{true, false} {
		device := filepath.Join(t.TempDir(), "watchdog")
		synctest.Test(t, func(t *testing.T) {
			file, err := os.Create(device)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			e, conn, stop := startWith(t, func() (*watchdog.Dog, error) {
				return &watchdog.Dog{File: file, Timeout: ttl / 4}, nil
			})
			leading := until(e, leads)
			time.Sleep(ttl)
			conn.Cut()
			if drained {
				until(e, drains)
				e.Drained(leading.Token)
			}
			for began := time.Now(); time.Since(began) < 2*ttl; time.Sleep(ttl / 100) {
				if state, _ := e.State(); !drained && state.DeadlineMS != nil && *state.DeadlineMS < (ttl/4).Milliseconds() {
					break
				}
			}
			before, err := os.ReadFile(device)
			if err != nil || len(before) == 0 {
				t.Fatalf("the device was fed %q, %v", before, err)
			}
			time.Sleep(ttl)
			after, err := os.ReadFile(device)
			switch {
			case err != nil:
				t.Fatal(err)
			case drained && !bytes.HasSuffix(after, []byte("V")):
				t.Errorf("the program has drained, and the device was not stopped: %q", after)
			case !drained && len(after) != len(before):
				t.Errorf("the device was fed %d times less than its time before the deadline", len(after)-len(before))
			}
			conn.Restore()
			stop()
		})
	}
}

// A lease that ends sooner than the device acts is no reason to begin, and a device that waits for a program stays open
// whatever follows.
func TestTheWatchdogComesBeforeTheNextLeader(t *testing.T) {
	device := filepath.Join(t.TempDir(), "watchdog")
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		e, conn, stop := startWith(t, func() (*watchdog.Dog, error) {
			opened++
			file, err := os.Create(device)
			return &watchdog.Dog{File: file, Timeout: ttl / 2}, err
		})
		closed := func() bool { text, _ := os.ReadFile(device); return bytes.HasSuffix(text, []byte("V")) }
		await.Until(func() bool { return e.status().Phase == election.Active })
		conn.Cut()
		time.Sleep(ttl * 3 / 5)
		if state, _ := e.State(); state.Leading || state.Draining {
			t.Errorf("a program begins to act before a late reset: %+v", state)
		}
		time.Sleep(ttl)
		if !closed() {
			t.Error("the device was not stopped, though no program acts")
		}
		conn.Restore()
		token := until(e, leads).Token
		conn.Cut()
		time.Sleep(2 * ttl)
		conn.Restore()
		time.Sleep(2 * ttl)
		runtime.GC()
		if state, _ := e.State(); state.Leading || closed() || opened != 2 {
			t.Errorf("after a term that did not drain: %+v, closed %v, opened %d times", state, closed(), opened)
		}
		if !e.Drained(token) || !closed() {
			t.Error("a late confirmation does not stop the device")
		}
		until(e, leads)
		stop()
	})
}

func TestANodeWithoutItsWatchdogDoesNotLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, stop := startWith(t, func() (*watchdog.Dog, error) { return nil, os.ErrNotExist })
		time.Sleep(ttl)
		if state, _ := e.State(); state.Leading || !strings.Contains(state.Cause, os.ErrNotExist.Error()) {
			t.Errorf("%+v", state)
		}
		stop()
	})
}

// serve serves an election on a socket, and returns a client and what ends the server.
func serve(t *testing.T, e *Election, address string) (client *http.Client, stop func()) {
	t.Helper()
	socket, err := Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- e.Serve(ctx, socket) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, socket.Addr().Network(), socket.Addr().String())
	}}
	return &http.Client{Transport: transport, Timeout: await.Patience}, func() {
		cancel()
		if err := await.Receive(served); err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
	}
}

func TestAProgramFollowsTheElectionOverASocket(t *testing.T) {
	e, _, stopElection := start(t)
	path := filepath.Join(t.TempDir(), "elect")
	client, stopServer := serve(t, e, "unix:"+path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket has the mode %v, %v", info.Mode(), err)
	}
	if _, err := Listen(t.Context(), "unix:"+path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second process listens: %v", err)
	}
	stream, err := client.Get("http://elect/events")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	next := func(property func(State) bool) State {
		for lines.Scan() {
			var state State
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(text), &state); err != nil {
					t.Fatal(err)
				}
				if state.DeadlineMS != nil {
					t.Errorf("an event has a deadline: %s", text)
				}
				if property(state) {
					return state
				}
			}
		}
		t.Fatal("the stream ended", lines.Err())
		return State{}
	}
	token := next(leads).Token

	answer, err := client.Get("http://elect/")
	if err != nil {
		t.Fatal(err)
	}
	var state State
	if err := errors.Join(json.NewDecoder(answer.Body).Decode(&state), answer.Body.Close()); err != nil || state.Token != token || state.DeadlineMS == nil {
		t.Errorf("the answer is %+v, %v", state, err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); stopElection() }()
	next(drains)
	post(t, client, `{"token":"1:0:x"}`, http.StatusConflict)
	post(t, client, `x`, http.StatusBadRequest)
	post(t, client, `{"token":"`+token+`"}`, http.StatusNoContent)
	await.Receive(ended)
	next(func(s State) bool { return !s.Leading && !s.Draining })
	stopServer()
}

func post(t *testing.T, client *http.Client, body string, want int) {
	t.Helper()
	answer, err := client.Post("http://elect/drained", "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != want {
		t.Errorf("%s: %s, want %d", body, answer.Status, want)
	}
}

func TestOnlyProgramsOfThisMachineAreAnswered(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "store:80", "nonsense", "unix:" + t.TempDir()} {
		if socket, err := Listen(t.Context(), address); err == nil {
			t.Errorf("%s listens: %v", address, socket.Close())
		}
	}
	e, _, stopElection := start(t)
	client, stopServer := serve(t, e, "127.0.0.1:0")
	for _, test := range []struct {
		host, header, value string
		want                int
	}{
		{"127.0.0.1:1", "", "", http.StatusOK},
		{"localhost", "", "", http.StatusOK},
		{"rebound.example:80", "", "", http.StatusMisdirectedRequest},
		{"127.0.0.1", "Origin", "https://page.example", http.StatusForbidden},
		{"127.0.0.1", "Sec-Fetch-Site", "cross-site", http.StatusForbidden},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+test.host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if test.header != "" {
			request.Header.Set(test.header, test.value)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != test.want {
			t.Errorf("%+v: %s", test, answer.Status)
		}
	}
	stopServer()
	stopElection()
}

func TestASocketThatAKilledProcessLeftIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "elect")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	socket, err := Listen(t.Context(), "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	socket.Close()
}
