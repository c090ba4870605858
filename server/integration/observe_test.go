package integration_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/transport"
)

// nonce is what package lease writes after the name of a holder.
const nonce = "0123456789abcdef0123456789abcdef"

// observed collects events.
type observed struct {
	t      *testing.T
	events chan activity.Event
}

func newObserved(t *testing.T) *observed {
	return &observed{t: t, events: make(chan activity.Event, 10_000)}
}

func (o *observed) observe(e activity.Event) { o.events <- e }

// next returns the next event of a kind.
func (o *observed) next(kind activity.Kind) activity.Event {
	o.t.Helper()
	for {
		if e := await.Receive(o.events); e.Kind == kind {
			return e
		}
	}
}

// line describes the next event about a key.
func (o *observed) line() string {
	o.t.Helper()
	for {
		switch e := await.Receive(o.events); e.Kind {
		case activity.Request:
			text := fmt.Sprint(e.Client, " ", e.Verb, " ", e.Key, " ", e.Outcome)
			if e.Created {
				text += " created"
			}
			if e.Holder != "" {
				text += " holder=" + e.Holder
			}
			if e.Will {
				text += " will"
			}
			if e.Forced != "" {
				text += " forced=" + e.Forced
			}
			if e.Refusal != "" {
				text += " " + e.Refusal
			}
			return text
		case activity.Expired:
			return "expired " + e.Key
		}
	}
}

func (o *observed) want(lines ...string) {
	o.t.Helper()
	for _, want := range lines {
		if got := o.line(); got != want {
			o.t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// What happens to a lease is observed in its order, whatever the store is.
func TestAStoreReportsWhatHappensToALease(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T, o *observed) (address string){
		"in memory": func(t *testing.T, o *observed) string {
			return testsupport.Start(t, server.Options{Observe: o.observe})
		},
		"with a journal": func(t *testing.T, o *observed) string {
			return testsupport.Start(t, server.Options{Observe: o.observe, Journal: new(testsupport.Journal).Open()})
		},
		"attached": func(t *testing.T, o *observed) string {
			address := testsupport.StartBroker(t, new(testsupport.AllowAll))
			testsupport.Attach(t, address, attach.Options{Observe: o.observe})
			return address
		},
		"attached with a journal": func(t *testing.T, o *observed) string {
			address := testsupport.StartBroker(t, new(testsupport.AllowAll))
			testsupport.Attach(t, address, attach.Options{Observe: o.observe, Journal: new(testsupport.Journal).Open()})
			return address
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newObserved(t)
			address := start(t, o)
			if e := o.next(activity.Started); e.Continues {
				t.Error("an empty store goes on with the data of an earlier one")
			}
			a := testsupport.Dial(t, address, transport.Options{ClientID: "a"})
			b := testsupport.Dial(t, address, transport.Options{ClientID: "b"})
			set := func(client *transport.Client, value string, ttl time.Duration) error {
				_, err := client.Set(t.Context(), "k", []byte(value), transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: ttl})
				return err
			}
			err := errors.Join(set(a, "a:1", time.Minute), set(a, "a:1", time.Minute))
			if err := set(b, "b:1", time.Minute); !errors.Is(err, transport.ErrConditionFailed) {
				t.Fatal(err)
			}
			o.want("a SET k ok created holder=a", "a SET k ok holder=a", "b SET k condition failed holder=b")
			_, released := a.VDel(t.Context(), "k", []byte("a:1"), transport.DelOptions{})
			err = errors.Join(err, released, set(b, "b:2", 50*time.Millisecond))
			o.want("a VDEL k deleted holder=a", "b SET k ok created holder=b", "expired k")
			err = errors.Join(err, set(a, "a:"+nonce, time.Minute))
			_, forced := b.VDel(t.Context(), "k", []byte("a:"+nonce), transport.DelOptions{Forced: "ana@ops"})
			if err = errors.Join(err, forced); err != nil {
				t.Fatal(err)
			}
			o.want("a SET k ok created holder=a", "b VDEL k deleted holder=a forced=ana@ops")
			version, err := a.Set(t.Context(), "file", nil, transport.SetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Set(t.Context(), "file", nil, transport.SetOptions{FencingToken: hlc.Token(version)}); err != nil {
				t.Fatal(err)
			}
			if _, err := a.Del(t.Context(), "file", transport.DelOptions{}); !errors.Is(err, transport.ErrFencingTokenRequired) {
				t.Error(err)
			}
			o.want("a SET file ok created", "a SET file ok", "a DEL file refused a fencing token is required for this request")
		})
	}
}

// An event says what the server knows of the client, and of its clock.
func TestAnEventNamesTheClient(t *testing.T) {
	o := newObserved(t)
	address := testsupport.Start(t, server.Options{Observe: o.observe, ObserveValues: true, Authenticator: testsupport.Rules{}})
	client := testsupport.Dial(t, address, transport.Options{ClientID: "node-a", Username: "ana"})
	connected := o.next(activity.Connected)
	version, err := client.Set(t.Context(), strings.Repeat("k", 10_000), []byte("node-a:1"), transport.SetOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	e := o.next(activity.Request)
	switch {
	case connected.Client != "node-a" || connected.User != "ana" || connected.Remote == "":
		t.Errorf("connected: %+v", connected)
	case e.Client != "node-a" || e.User != "ana" || e.Remote != connected.Remote || e.Version != version || e.Value != "node-a:1" || e.Lifetime != time.Minute:
		t.Errorf("request: %+v", e)
	case len(e.Key) > activity.MaxKey || !e.HasClock || e.ClockOffset.Abs() > time.Minute || e.Took <= 0:
		t.Errorf("a key of %d bytes, clock %v, took %v", len(e.Key), e.ClockOffset, e.Took)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if e := o.next(activity.Disconnected); e.Reason != activity.ReasonLeft || e.Client != "node-a" {
		t.Errorf("disconnected: %+v", e)
	}
}

// A value may be secret, and with the value of a lease any client could release it.
func TestValuesAreNotObservedUnlessAskedFor(t *testing.T) {
	o := newObserved(t)
	client := testsupport.Dial(t, testsupport.Start(t, server.Options{Observe: o.observe}), transport.Options{})
	if _, err := client.Set(t.Context(), "k", []byte("holder:secret"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := o.next(activity.Request); strings.Contains(fmt.Sprintf("%+v", e), "secret") {
		t.Errorf("%+v", e)
	}
}

// A change that a crash could undo must not be observed.
func TestAChangeIsObservedAfterItsCommit(t *testing.T) {
	o, journal := newObserved(t), new(testsupport.Journal)
	client := testsupport.Dial(t, testsupport.Start(t, server.Options{Observe: o.observe, Journal: journal.Open()}), transport.Options{ClientID: "a"})
	release := journal.Hold()
	set := make(chan error, 1)
	go func() {
		_, err := client.Set(t.Context(), "k", []byte("a:1"), transport.SetOptions{})
		set <- err
	}()
	journal.MustBeCommitting(t)
	if _, err := client.Get(t.Context(), "other"); err != nil { // needs no commit
		t.Error(err)
	}
	o.want("a GET other missing")
	release()
	o.want("a SET k ok created holder=a")
	if err := await.Receive(set); err != nil {
		t.Error(err)
	}
}

// The Will of a holder that is lost shows as one, and a holder that leaves does not.
func TestAWillIsObserved(t *testing.T) {
	o := newObserved(t)
	address := testsupport.Start(t, server.Options{Observe: o.observe})
	c := testsupport.RequestWill("a", "VDEL", "k", "a:1").Connect(t, address, "a")
	c.MustDo(t, 1, "+OK\r\n", "SET", "k", "a:1", "NEX", "PX", "60000")
	o.want("a SET k ok created holder=a")
	c.Reset()
	o.want("a VDEL k deleted holder=a will")
	if e := o.next(activity.Disconnected); e.Reason != activity.ReasonLost {
		t.Errorf("the connection ended: %+v", e)
	}
}

// The model agrees with the store about a lease that two clients hold in turn.
func TestTheModelFollowsAFailover(t *testing.T) {
	model := activity.New(activity.Options{})
	events := newObserved(t)
	address := testsupport.Start(t, server.Options{Observe: func(e activity.Event) {
		model.Observe(e)
		events.observe(e)
	}})
	acquire := func(id string) *lease.Tenure {
		t.Helper()
		l, err := lease.New(testsupport.Dial(t, address, transport.Options{ClientID: id}), "press-7", lease.Options{TTL: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
		defer cancel()
		tenure, err := l.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return tenure
	}
	first := acquire("a")
	second := make(chan *lease.Tenure, 1)
	go func() { second <- acquire("b") }()
	for events.line() != "b SET press-7 condition failed holder=b" {
	}
	token, err := first.Token()
	if err != nil {
		t.Fatal(err)
	}
	if l := model.State(time.Now()).Leases[0]; l.Holder != "a" || l.Token != token.String() || len(l.Waiting) != 1 || l.Waiting[0].Client != "b" {
		t.Errorf("while b waits: %+v; the token is %v", l, token)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	tenure := await.Receive(second)
	for events.line() != "b SET press-7 ok created holder=b" {
	}
	token, err = tenure.Token()
	if err != nil {
		t.Fatal(err)
	}
	l := model.State(time.Now()).Leases[0]
	if !l.Held || l.Holder != "b" || l.Token != token.String() || l.LastChange.From != "a" || l.LastChange.Cause != activity.CauseReleased {
		t.Errorf("after the failover: %+v, %+v; the token is %v", l, l.LastChange, token)
	}
	if err := tenure.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// debugLog returns a logger with the lines of requests, and its buffer.
func debugLog() (*logbuffer.Buffer, *slog.Logger) {
	log := new(logbuffer.Buffer)
	return log, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestEachRequestHasALineInTheDebugLog(t *testing.T) {
	log, logger := debugLog()
	s, err := server.New(server.Options{Addr: "127.0.0.1:0", Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	client := testsupport.Dial(t, s.Addr().String(), transport.Options{ClientID: "node-a"})
	long := strings.Repeat("k", 1000)
	_, err = client.Set(t.Context(), long+"\n", []byte("secret:1"), transport.SetOptions{})
	_, get := client.Get(t.Context(), "other")
	if err := errors.Join(err, get, client.Close()); err != nil {
		t.Fatal(err)
	}
	stop()
	testsupport.MustReturn(t, served, nil)
	var lines []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "msg=request ") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "verb=SET key=\"kkkk") || !strings.Contains(lines[0], "outcome=ok client=node-a remote=127.0.0.1:") ||
		!strings.Contains(lines[1], "verb=GET key=other outcome=missing client=node-a remote=127.0.0.1:") {
		t.Errorf("the log is %q", lines)
	}
	if strings.Contains(log.String(), "secret") || len(lines) > 0 && len(lines[0]) > 400 {
		t.Errorf("the log has a value, or a whole key: %q", lines)
	}
}

// A lease that an operator takes from its holder is in the log with its cause.
func TestAForcedReleaseIsLogged(t *testing.T) {
	log := new(logbuffer.Buffer)
	s, err := server.New(server.Options{Addr: "127.0.0.1:0", Logger: log.Logger(), Authenticator: testsupport.Rules{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	client := testsupport.Dial(t, s.Addr().String(), transport.Options{ClientID: "ops", Username: "ana"})
	_, err = client.Set(t.Context(), "press-7", []byte("a:"+nonce), transport.SetOptions{TTL: time.Minute})
	_, nothing := client.VDel(t.Context(), "another", []byte("a:1"), transport.DelOptions{Forced: "nothing happens"})
	_, forced := client.VDel(t.Context(), "press-7", []byte("a:"+nonce), transport.DelOptions{Forced: "ana@bastion: the node hangs"})
	if err := errors.Join(err, nothing, forced, client.Close()); err != nil {
		t.Fatal(err)
	}
	stop()
	testsupport.MustReturn(t, served, nil)
	want := `level=WARN msg="a client says that it has taken a lease from its holder by force" key=press-7 client=ops user=ana remote=127.0.0.1:`
	if got := log.String(); strings.Count(got, want) != 1 || !strings.Contains(got, `reason="ana@bastion: the node hangs" verb=VDEL holder=a `) || strings.Contains(got, "nothing happens") {
		t.Errorf("the log is\n%s", got)
	}
}

// Two programs with one client id end each other's connection. One that connects again once does not.
func TestAClientIDThatFlapsIsLoggedOnce(t *testing.T) {
	t.Parallel()
	log := new(logbuffer.Buffer)
	o := newObserved(t)
	address := testsupport.Start(t, server.Options{Logger: log.Logger(), Observe: o.observe})
	connect := func(id string, times int) {
		for i := range times {
			testsupport.ConnectPacket{ID: id}.Connect(t, address)
			if i > 0 {
				if e := o.next(activity.TakenOver); e.Client != id || e.Remote == e.Reason || e.Reason == "" {
					t.Errorf("taken over: %+v", e)
				}
			}
			if e := o.next(activity.Connected); e.Client != id {
				t.Errorf("connected: %+v", e)
			}
		}
	}
	connect("once", 2)
	connect("twin", 8)
	warnings := slices.Collect(func(yield func(string) bool) {
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "two programs probably use the same client id") && !yield(line) {
				return
			}
		}
	})
	if len(warnings) != 1 || !strings.Contains(warnings[0], "level=WARN") || !strings.Contains(warnings[0], "client=twin ") ||
		!strings.Contains(warnings[0], " remote=127.0.0.1:") || !strings.Contains(warnings[0], "previous=127.0.0.1:") {
		t.Errorf("the warnings are %q", warnings)
	}
}

// What an observer does must not change what clients get.
func TestAnObserverThatPanicsOrHangsDelaysNoRequest(t *testing.T) {
	log := new(logbuffer.Buffer)
	release := make(chan struct{})
	first := true
	s, err := server.New(server.Options{Addr: "127.0.0.1:0", Logger: log.Logger(), Observe: func(activity.Event) {
		if first {
			first = false
			panic("a wrong page")
		}
		await.Next(release)
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	client := testsupport.Dial(t, s.Addr().String(), transport.Options{})
	for i := range 100 {
		if _, err := client.Set(t.Context(), fmt.Sprint("k", i), nil, transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	close(release)
	stop()
	testsupport.MustReturn(t, served, nil)
	if got := log.String(); !strings.Contains(got, "the observer of the store has panicked") || !strings.Contains(got, "a wrong page") {
		t.Errorf("the log is\n%s", got)
	}
}

// A lease that was there before the store restarted has no acquisition to report: it is renewed.
func TestAfterARestartALeaseIsRenewedAndNotAcquired(t *testing.T) {
	journal := new(testsupport.Journal)
	run := func(o *observed, observe func(activity.Event), want string) {
		s, err := server.New(server.Options{Addr: "127.0.0.1:0", Journal: journal.Open(), Observe: observe})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx) }()
		client := testsupport.Dial(t, s.Addr().String(), transport.Options{ClientID: "a"})
		_, err = client.Set(t.Context(), "k", []byte("a:1"), transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: time.Minute})
		if err := errors.Join(err, client.Close()); err != nil {
			t.Fatal(err)
		}
		o.want(want)
		stop()
		testsupport.MustReturn(t, served, nil)
	}
	o, model := newObserved(t), activity.New(activity.Options{})
	run(o, o.observe, "a SET k ok created holder=a")
	run(o, func(e activity.Event) {
		model.Observe(e)
		o.observe(e)
	}, "a SET k ok holder=a")
	state := model.State(time.Now())
	if l := state.Leases[0]; !l.Held || l.Known || len(state.Timeline) != 0 || state.Totals.Acquired != 0 {
		t.Errorf("%+v; %+v", l, state.Timeline)
	}
}

// The library acquires with two requests at once, and spreads its renewals: none of that is a missed one.
func TestAHealthyHolderMissesNoRenewal(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]lease.Options{
		"by default":      {},
		"a short TTL":     {TTL: time.Second},
		"frequent":        {TTL: 10 * time.Second, RenewEvery: time.Second},
		"under a name":    {Holder: "10.0.0.1:8080"},
		"without a watch": {NoWatch: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				model := activity.New(activity.Options{})
				s := servertest.NewWithOptions(t, servertest.Options{InMemory: true, Server: server.Options{Observe: model.Observe}})
				leaseOf := func(id string) *lease.Lease {
					l, err := lease.New(s.Client(t, id), "press-7", options)
					if err != nil {
						t.Fatal(err)
					}
					return l
				}
				tenure, err := leaseOf("a").Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				other := leaseOf("b")
				ctx, stopWaiting := context.WithCancel(t.Context())
				var waiting sync.WaitGroup
				waiting.Go(func() { _, _ = other.Acquire(ctx) })
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				state := model.State(time.Now())
				if l, holder := state.Leases[0], cmp.Or(options.Holder, "a"); l.Holder != holder {
					t.Errorf("the holder is %q, want %q", l.Holder, holder)
				}
				if l := state.Leases[0]; l.Missed != 0 || state.Totals.Missed != 0 || l.Late || l.Renewals < 100 || l.RenewEveryMillis == 0 {
					t.Errorf("after ten minutes %d renewals count as missed: %+v", state.Totals.Missed, l)
				}
				stopWaiting()
				await.Done(waiting.Wait)
				if err := tenure.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestAHolderThatMissesOneRenewalIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		model := activity.New(activity.Options{})
		s := servertest.NewWithOptions(t, servertest.Options{InMemory: true, Server: server.Options{Observe: model.Observe}})
		l, err := lease.New(s.Client(t, "a"), "press-7", lease.Options{TTL: 10 * time.Second, RenewEvery: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		tenure, err := l.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		time.Sleep(time.Until(model.State(time.Now()).Leases[0].LastRenewal.Add(2100 * time.Millisecond))) // just after the next one
		synctest.Wait()
		s.Freeze()
		time.Sleep(3500 * time.Millisecond)
		if !model.State(time.Now()).Leases[0].Late {
			t.Error("the renewal is not late")
		}
		s.Thaw()
		time.Sleep(time.Minute)
		synctest.Wait()
		if state := model.State(time.Now()); state.Totals.Missed != 1 || state.Leases[0].Missed != 1 {
			t.Errorf("%d renewals count as missed: %+v", state.Totals.Missed, state.Leases[0])
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
