package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/steady"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const ms = time.Millisecond

// scheduled are the options of the schedules in these tests. A tenure that was acquired at 0
// is over at 900 ms, and its owner's context ends at 800 ms.
var scheduled = Options{
	TTL: 1000 * ms, Margin: 100 * ms, GracePeriod: 100 * ms,
	RenewEvery: 300 * ms, RequestTimeout: 150 * ms, retryAfter: 20 * ms,
}

// In the tables random is 0: the first renewal is due at 150 ms, others 300 ms after the one
// before, and the delays after failures are 10, 15, 22.5, … ms.

// step is a call of next and what it must return.
type step struct {
	at     time.Duration
	event  event
	want   action // after wait, until is when something is due
	warned bool   // the owner's context has ended, and the tenure is not over
	cause  error  // why it is over; nil if it is not
}

func TestSchedule(t *testing.T) {
	unanswered := fmt.Errorf("no reply: %w", transport.ErrOutcomeUnknown)
	for _, test := range []struct {
		name  string
		adapt func(*Options)
		steps []step
	}{
		{"a renewal of unknown outcome is repeated, with a backoff", nil, []step{
			{at: 150 * ms, want: action{watch, 0}},
			{at: 150 * ms, want: action{renew, 800 * ms}},
			{at: 300 * ms, event: renewal(150*ms, unanswered, 0), want: action{wait, 310 * ms}},
			{at: 310 * ms, want: action{renew, 800 * ms}},
			{at: 400 * ms, event: renewal(310*ms, unanswered, 0), want: action{wait, 415 * ms}},
			{at: 415 * ms, want: action{renew, 800 * ms}},
			{at: 420 * ms, event: renewal(415*ms, nil, 0), want: action{wait, 714 * ms}},
			{at: 715 * ms, want: action{renew, 1215 * ms}},
			{at: 800 * ms, event: renewal(715*ms, unanswered, 0), want: action{wait, 810 * ms}},
		}},
		{"the last retry leaves one whole attempt before the context ends", func(o *Options) { o.retryAfter = 300 * ms }, []step{
			{at: 500 * ms, want: action{watch, 0}},
			{at: 500 * ms, want: action{renew, 800 * ms}},
			{at: 510 * ms, event: event{kind: failed, err: unanswered, random: 0.9}, want: action{wait, 650 * ms}},
			{at: 649 * ms, want: action{wait, 650 * ms}},
			{at: 650 * ms, want: action{renew, 800 * ms}},
		}},
		{"the client is closed during a renewal", nil, []step{
			{at: 160 * ms, event: renewal(150*ms, transport.ErrClosed, 0), want: action{finish, 0}, cause: transport.ErrClosed},
		}},
		{"a reply after the context ended extends nothing", nil, []step{
			{at: 700 * ms, want: action{watch, 0}},
			{at: 700 * ms, want: action{renew, 800 * ms}},
			{at: 800 * ms, want: action{wait, 900 * ms}, warned: true},
			{at: 810 * ms, event: event{kind: renewed, sent: 700 * ms}, want: action{wait, 900 * ms}, warned: true},
			{at: 900 * ms, want: action{finish, 0}, cause: ErrDeadlinePassed},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := scheduled
			if test.adapt != nil {
				test.adapt(&options)
			}
			s := newSchedule(&options, 0, 0)
			for i, step := range test.steps {
				var got action
				s, got = s.next(step.at, step.event)
				if got.do == wait {
					got.until = s.due(step.at)
				}
				if got != step.want {
					t.Errorf("step %d, at %v: %v, want %v", i, step.at, got, step.want)
				}
				if step.cause == nil && s.cause != nil || !errors.Is(s.cause, step.cause) {
					t.Errorf("step %d, at %v: cause %v, want %v", i, step.at, s.cause, step.cause)
				}
				if warned := s.warned != nil && s.cause == nil; warned != step.warned {
					t.Errorf("step %d, at %v: the context has ended: %v, want %v", i, step.at, warned, step.warned)
				}
			}
		})
	}
}

func TestTheCauseOfAPassedDeadlineNamesTheLatestFailureAndDoesNotMatchIt(t *testing.T) {
	options := scheduled
	s := newSchedule(&options, 0, 0)
	s, _ = s.next(200*ms, event{kind: failed, err: transport.ErrOutcomeUnknown})
	s, _ = s.next(210*ms, event{kind: stopped})
	s, _ = s.next(220*ms, event{kind: failed, err: errors.New("given up by StopRenewing")})
	s, _ = s.next(900*ms, event{})
	if want := ErrDeadlinePassed.Error() + "; the latest renewal: " + transport.ErrOutcomeUnknown.Error(); s.cause.Error() != want {
		t.Errorf("%q, want %q", s.cause, want)
	}
	if errors.Is(s.cause, transport.ErrOutcomeUnknown) {
		t.Error("the cause matches the error of a renewal; a write that was not sent has a known outcome")
	}
}

// A tenure waits until something is due, and may look at its clock meanwhile.
func TestNothingHappensBeforeItIsDue(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		options := scheduled
		s := newSchedule(&options, 0, random.Float64())
		for now, e := time.Duration(0), (event{}); s.cause == nil; {
			var next action
			s, next = s.next(now, e)
			e = event{}
			switch next.do {
			case wait:
				due := s.due(now)
				for at := now; at < due; at = options.lookAt(at) { // what looks in between would find
					looked, idle := s.next(at, event{})
					if idle.do != wait || looked.due(at) != due {
						t.Fatalf("at %v: %v, and it was not due before %v", at, idle, due)
					}
				}
				now = due
				if random.IntN(4) == 0 {
					e = event{kind: doubted}
				}
			case renew, confirm:
				now += time.Duration(random.Int64N(int64(options.RequestTimeout)))
				switch {
				case next.do == confirm:
					e = event{kind: confirmed}
				case random.IntN(3) == 0:
					e = event{kind: failed, err: transport.ErrOutcomeUnknown, random: random.Float64()}
				case random.IntN(20) == 0:
					e = event{kind: stopped}
				default:
					e = event{kind: renewed, sent: now, random: random.Float64()}
				}
			}
			if now > 100*options.TTL {
				break
			}
		}
	}
}

func TestRenewalsOfOneProcessLeaveTogetherAndInTime(t *testing.T) {
	options := Options{TTL: 10 * time.Second}
	if err := options.complete("any"); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(7, 7))
	moments := make(map[time.Duration]bool)
	every := options.RenewEvery
	for range 10_000 {
		sent := time.Duration(random.Int64N(int64(every)))
		s := newSchedule(&options, sent, random.Float64())
		if s.renewAt > sent+every || s.renewAt < sent+every/2-every/128 {
			t.Fatalf("the first renewal comes %v after the acquisition", s.renewAt-sent)
		}
		s = s.after(sent, event{kind: renewed, sent: sent, random: random.Float64()})
		if s.renewAt > sent+every || s.renewAt < sent+every*9/10-every/128 {
			t.Fatalf("the next renewal comes %v after the last, RenewEvery is %v", s.renewAt-sent, every)
		}
		moments[s.renewAt%every] = true
	}
	if got := len(moments); got < 100 || got > 300 {
		t.Errorf("10,000 renewals leave at %d moments, want about 130 in a RenewEvery", got)
	}
}

// Invariant 3: Go's timers stand still while the machine is suspended, and SystemClock does not.
func TestInvariant3EachTenureNoticesASuspendedMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 2 * time.Second
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		var suspended atomic.Int64
		var tenures []*Tenure
		for i := range 50 {
			tenures = append(tenures, clockedTenure(t, client, fmt.Sprint("lease ", i), ttl, func() time.Duration {
				return SystemClock() + time.Duration(suspended.Load())
			}))
		}
		time.Sleep(10 * ttl)
		for _, tenure := range tenures {
			if err := context.Cause(tenure.Context()); err != nil {
				t.Fatalf("before: %v", err)
			}
		}
		suspended.Add(int64(time.Hour))
		woke := time.Now()
		for _, tenure := range tenures {
			await.Receive(tenure.Context().Done())
		}
		if got, limit := time.Since(woke), ttl/20; got > limit {
			t.Errorf("the contexts ended %v after the machine woke up, want at most half of GracePeriod, %v", got, limit)
		}
	})
}

// A tenure that ends with its connection cannot use another one. So a connection that only stalls is kept as long
// as it may still save the tenure: with instant failover for half of the TTL, after which another store may have
// released the lease.
func TestInvariant52AConnectionIsGivenUpOnlyWhenItCannotSaveTheTenure(t *testing.T) {
	for _, test := range []struct {
		options Options
		want    time.Duration
	}{
		{Options{}, 10 * time.Second / 12},
		{Options{EndOnDisconnect: true}, 8*time.Second - 2*(10*time.Second/6)},
		{Options{InstantFailover: true}, 5*time.Second - 2*(10*time.Second/6)},
	} {
		if err := test.options.complete("any"); err != nil || test.options.probeHeld() != test.want {
			t.Errorf("%+v: %v, %v, want %v", test.options, test.options.probeHeld(), err, test.want)
		}
	}
}

// clockedTenure acquires a lease on a client, with a clock of the test.
func clockedTenure(t *testing.T, client *transport.Client, name string, ttl time.Duration, clock func() time.Duration) *Tenure {
	t.Helper()
	l, err := New(client, name, Options{TTL: ttl, Clock: clock, NoWatch: true})
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

// Invariant 3: a suspend of the machine that the system's clock shows ends a tenure long before a timer does.
// It moves that clock for all that this process does later, which no test with a clock of its own notices.
func TestInvariant3ATenureOnTheSystemsClockNoticesASuspendSoon(t *testing.T) {
	client, _ := transporttest.Start(t).Client(t, "a", transport.ClientOptions{})
	l, err := New(client, "l", Options{TTL: 10 * time.Minute, GracePeriod: 100 * time.Millisecond, RequestTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // it has looked at its clock since it began
	shown := readClocks()
	system.Read(func() steady.Reading {
		return steady.Reading{Monotonic: shown.Monotonic, Wall: shown.Wall + time.Hour, Boot: shown.Monotonic + system.Suspended() + time.Hour, BootOK: true}
	})
	await.Receive(tenure.Context().Done())
	if err := context.Cause(tenure.Context()); !errors.Is(err, ErrDeadlinePassed) {
		t.Errorf("it ends because of %v", err)
	}
}
