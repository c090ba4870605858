package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
)

const testValidity = 400 * time.Millisecond

// inBubble runs f with a standing that keep maintains with attempt.
func inBubble(t *testing.T, attempt func(ctx context.Context, s *standing, n uint32) error, f func(s *standing)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		started := lease.SystemClock()
		clock := func() time.Duration { return lease.SystemClock() - started }
		s := newStanding(clock, testValidity, clock(), 0)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.keep(ctx, func(ctx context.Context, n uint32) proof {
				p := proof{began: s.clock()}
				p.err = attempt(ctx, s, n)
				return p
			})
		}()
		f(s)
		stop()
		await.Receive(ended)
	})
}

var errNoAnswer = errors.New("no answer")

// takes returns an attempt that succeeds after d.
func takes(d time.Duration) func(context.Context, *standing, uint32) error {
	return func(ctx context.Context, _ *standing, _ uint32) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// A process that was frozen past its deadline may ask whether it may answer before keep runs again.
// Its server ends then, and asks at once why: without an answer the process would not stand by.
func TestInvariant35AStandingEndsAtItsDeadlineThoughNothingRuns(t *testing.T) {
	now := time.Duration(0)
	s := newStanding(func() time.Duration { return now }, testValidity, 0, 0)
	s.latest.Store(&proof{err: errNoAnswer})
	now = testValidity - 1
	if err := s.check(); err != nil || s.why() != nil {
		t.Fatalf("before the deadline: %v, %v", err, s.why())
	}
	now = testValidity
	if late := s.span.Load().proved(now, now); late.lasts(now) {
		t.Error("a proof that came too late moves the deadline")
	}
	err := s.check()
	if !errors.Is(err, ErrDeadlinePassed) || !strings.Contains(err.Error(), errNoAnswer.Error()) {
		t.Errorf("at the deadline: %v", err)
	}
	if s.why() != err || s.life.Err() == nil {
		t.Errorf("it ended with %v, and the check said %v", s.why(), err)
	}
}

// While one member is silent, the next proof goes to another.
func TestAStandingLastsWhileProofsComeInTime(t *testing.T) {
	silent := func(ctx context.Context, s *standing, n uint32) error {
		if n%3 == 0 {
			return takes(testValidity)(ctx, s, n)
		}
		return nil
	}
	for name, attempt := range map[string]func(context.Context, *standing, uint32) error{
		"at once": takes(0), "three quarters": takes(testValidity - testValidity/4), "one of three is silent": silent,
	} {
		inBubble(t, attempt, func(s *standing) {
			for range 1000 {
				time.Sleep(testValidity / 50)
				if err := s.check(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		})
	}
}

// The deadline counts from before a proof was sent.
func TestInvariant35AProofCountsFromWhenItBegan(t *testing.T) {
	var lastBegan atomic.Int64
	attempt := func(ctx context.Context, s *standing, _ uint32) error {
		if began := s.clock(); began < 10*testValidity {
			lastBegan.Store(int64(began))
			return takes(testValidity/3)(ctx, s, 0)
		}
		return errNoAnswer
	}
	inBubble(t, attempt, func(s *standing) {
		await.Receive(s.life.Done())
		began := time.Duration(lastBegan.Load())
		if now := s.clock(); now != began+testValidity {
			t.Errorf("the standing ended at %v; the last proof began at %v and is valid for %v", now, began, testValidity)
		}
		if !errors.Is(s.why(), ErrDeadlinePassed) {
			t.Errorf("it ended with %v", s.why())
		}
	})
}

// Failures are repeated soon, and not at once.
func TestAProofThatFailsIsRepeatedWithoutAHotLoop(t *testing.T) {
	var attempts atomic.Int32
	attempt := func(_ context.Context, s *standing, _ uint32) error {
		attempts.Add(1)
		if s.clock() > testValidity-testValidity/8 {
			return nil
		}
		return errNoAnswer
	}
	inBubble(t, attempt, func(s *standing) {
		time.Sleep(testValidity)
		if err := s.check(); err != nil {
			t.Error(err)
		}
		if n := attempts.Load(); n > 64 {
			t.Errorf("%d attempts within a TTL", n)
		}
	})
}

// Lifetimes count from the end of the wait, and not from the end of a load that takes longer.
func TestInvariant32AWinnerKnowsForHowLongTheProcessBeforeHasBeenSilent(t *testing.T) {
	for _, test := range []struct{ load, idle time.Duration }{
		{0, 0},
		{testValidity / 2, 0},
		{testValidity, 0},
		{time.Minute, time.Minute - testValidity},
	} {
		synctest.Test(t, func(t *testing.T) {
			started := lease.SystemClock()
			clock := func() time.Duration { return lease.SystemClock() - started }
			s := newStanding(clock, time.Hour, 0, testValidity)
			defer s.over(ErrClosed)
			time.Sleep(test.load)
			idle, err := s.wait(t.Context())
			if err != nil || idle != test.idle {
				t.Errorf("after a load of %v: %v, %v; want %v", test.load, idle, err, test.idle)
			}
			if clock() < testValidity {
				t.Errorf("after a load of %v it waits until %v", test.load, clock())
			}
		})
	}
}

// A proof that takes more than half of what it is valid for is worth a warning, and a flood is not.
func TestSlowProofsAreLoggedNowAndThen(t *testing.T) {
	for _, test := range []struct {
		takes       time.Duration
		least, most int
	}{
		{testValidity / 2, 0, 0},
		{testValidity * 3 / 5, 5, 7 + 10}, // pauses of 1, 2, 4 … 60 s, within ten minutes
	} {
		synctest.Test(t, func(t *testing.T) {
			var log logbuffer.Buffer
			j := &Journal{options: &Options{Standing: testValidity, Logger: log.Logger()}}
			for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(testValidity / 5) {
				j.warnIfSlow(test.takes)
			}
			await.Done(j.tasks.Wait)
			if n := strings.Count(log.String(), "etcd answers slowly"); n < test.least || n > test.most {
				t.Errorf("with proofs that take %v: %d warnings in ten minutes, want %d to %d", test.takes, n, test.least, test.most)
			}
		})
	}
}

// leader is a member that leads etcd until changed is closed.
type leader struct {
	changed  chan struct{}
	eligible bool
}

func (l *leader) Leads() (bool, <-chan struct{}) {
	select {
	case <-l.changed:
		return false, l.changed
	default:
		return true, l.changed
	}
}

func (l *leader) SetEligible(can bool) { l.eligible = can }

// A process whose standing passes again and again, and that takes it again each time, would keep the
// other one from the store.
func TestAProcessWhoseStandingPassesAgainAndAgainGivesLeadershipUp(t *testing.T) {
	type end struct {
		why    error
		lasted time.Duration
	}
	vain := end{fmt.Errorf("%w: slow", ErrDeadlinePassed), time.Second}
	for _, test := range []struct {
		name    string
		ends    []end
		follows time.Duration // after which another member leads
		aside   time.Duration
	}{
		{"two in vain", []end{vain, vain}, time.Hour, 0},
		{"three in vain", []end{vain, vain, vain}, time.Hour, minCommitLimit},
		{"three in vain, and another member leads", []end{vain, vain, vain}, time.Second, time.Second},
		{"one that was closed between", []end{vain, vain, {ErrClosed, time.Second}, vain}, time.Hour, 0},
		{"one that lasted between", []end{vain, vain, {ErrDeadlinePassed, time.Hour}, vain}, time.Hour, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			member := &leader{changed: make(chan struct{})}
			c := &Candidate{options: Options{Member: member, Logger: slog.New(slog.DiscardHandler)}}
			for _, e := range test.ends {
				c.lasted(e.lasted, e.why)
			}
			defer time.AfterFunc(test.follows, func() { close(member.changed) }).Stop()
			began := time.Now()
			c.standAside(t.Context())
			if took := time.Since(began); took != test.aside || !member.eligible {
				t.Errorf("%s: after %v its member may lead: %t; want %v", test.name, took, member.eligible, test.aside)
			}
			if c.standAside(t.Context()); time.Since(began) != test.aside {
				t.Errorf("%s: it stands aside twice", test.name)
			}
		})
	}
}
