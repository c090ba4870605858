package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
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
func inBubble(t *testing.T, attempt func(ctx context.Context, s *standing, n uint32) error, f func(s *standing, stop func())) {
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
		f(s, func() {
			stop()
			await.Receive(ended)
		})
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
func TestACheckPastTheDeadlineEndsTheStanding(t *testing.T) {
	now := time.Duration(0)
	s := newStanding(func() time.Duration { return now }, testValidity, 0, 0)
	if err := s.check(); err != nil || s.why() != nil {
		t.Fatalf("before the deadline: %v, %v", err, s.why())
	}
	s.latest.Store(&proof{err: errNoAnswer})
	now = testValidity
	err := s.check()
	if !errors.Is(err, ErrDeadlinePassed) || !strings.Contains(err.Error(), errNoAnswer.Error()) {
		t.Errorf("past the deadline: %v", err)
	}
	if why := s.why(); why != err {
		t.Errorf("it ended with %v, and the check said %v", why, err)
	}
	select {
	case <-s.life.Done():
	default:
		t.Error("it has not ended")
	}
}

func TestAStandingLastsWhileProofsComeInTime(t *testing.T) {
	for _, d := range []time.Duration{0, time.Millisecond, testValidity / 2, testValidity - testValidity/4} {
		inBubble(t, takes(d), func(s *standing, _ func()) {
			for range 1000 {
				time.Sleep(testValidity / 50)
				if err := s.check(); err != nil {
					t.Fatalf("with proofs that take %v: %v", d, err)
				}
			}
		})
	}
}

func TestInvariant35AStandingEndsAtItsDeadlineThoughNothingRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := lease.SystemClock()
		clock := func() time.Duration { return lease.SystemClock() - started }
		s := newStanding(clock, testValidity, clock(), 0)
		time.Sleep(testValidity - 1)
		if err := s.check(); err != nil {
			t.Errorf("before the deadline: %v", err)
		}
		time.Sleep(1 * time.Nanosecond)
		if err := s.check(); !errors.Is(err, ErrDeadlinePassed) {
			t.Errorf("at the deadline: %v", err)
		}
		// The standing is over by now, whatever its span is.
		if late := s.span.Load().proved(clock(), clock()); late.lasts(clock()) {
			t.Error("a proof that came too late moves the deadline")
		}
	})
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
	inBubble(t, attempt, func(s *standing, _ func()) {
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

// While one member is silent, the next proof goes to another.
func TestAMemberThatIsSilentCostsNoStanding(t *testing.T) {
	attempt := func(ctx context.Context, _ *standing, n uint32) error {
		if n%3 == 0 {
			ctx, cancel := context.WithTimeout(ctx, testValidity)
			defer cancel()
			await.Receive(ctx.Done())
			return ctx.Err()
		}
		return nil
	}
	inBubble(t, attempt, func(s *standing, _ func()) {
		for range 1000 {
			time.Sleep(testValidity / 50)
			if err := s.check(); err != nil {
				t.Fatal(err)
			}
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
	inBubble(t, attempt, func(s *standing, _ func()) {
		time.Sleep(testValidity)
		if err := s.check(); err != nil {
			t.Error(err)
		}
		if n := attempts.Load(); n > 64 {
			t.Errorf("%d attempts within a TTL", n)
		}
	})
}

func TestAProofThatAnotherProcessIsActiveEndsTheStandingAtOnce(t *testing.T) {
	attempt := func(context.Context, *standing, uint32) error { return ErrDeposed }
	inBubble(t, attempt, func(s *standing, _ func()) {
		await.Receive(s.life.Done())
		if s.clock() != 0 || !errors.Is(s.why(), ErrDeposed) || !errors.Is(s.check(), ErrDeposed) {
			t.Errorf("at %v: %v", s.clock(), s.why())
		}
	})
}

func TestKeepWaitsForProofsThatAreUnderWay(t *testing.T) {
	var running atomic.Int32
	attempt := func(ctx context.Context, _ *standing, _ uint32) error {
		running.Add(1)
		await.Receive(ctx.Done())
		running.Add(-1)
		return ctx.Err()
	}
	inBubble(t, attempt, func(s *standing, stop func()) {
		time.Sleep(testValidity / 2)
		if running.Load() < 2 {
			t.Errorf("%d proofs are under way", running.Load())
		}
		stop()
		if running.Load() != 0 {
			t.Errorf("keep returned while %d proofs were under way", running.Load())
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

// slowJournal returns a journal with a standing that just began.
func slowJournal(logger *slog.Logger) *Journal {
	started := lease.SystemClock()
	clock := func() time.Duration { return lease.SystemClock() - started }
	j := &Journal{options: &Options{Standing: testValidity, Logger: logger}, standing: newStanding(clock, testValidity, clock(), 0)}
	j.slow = j.warnOfSlowProof
	return j
}

// slowProofs returns attempts that succeed after d.
func slowProofs(j *Journal, d time.Duration) func(context.Context, uint32) proof {
	return func(ctx context.Context, n uint32) proof {
		p := proof{began: j.clock()}
		p.err = takes(d)(ctx, j.standing, n)
		return p
	}
}

// A proof that takes more than half of what it is valid for is worth a warning, and a flood is not.
func TestSlowProofsAreLoggedNowAndThen(t *testing.T) {
	for _, test := range []struct {
		takes       time.Duration
		least, most int
	}{
		{testValidity / 3, 0, 0},
		{testValidity / 2, 0, 0},
		{testValidity * 3 / 5, 5, 7 + 10}, // pauses of 1, 2, 4 … 60 s, within ten minutes
	} {
		synctest.Test(t, func(t *testing.T) {
			var log logbuffer.Buffer
			j := slowJournal(slog.New(slog.NewTextHandler(&log, nil)))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			j.keep(ctx, slowProofs(j, test.takes))
			await.Done(j.tasks.Wait)
			if n := strings.Count(log.String(), "etcd answers slowly"); n < test.least || n > test.most {
				t.Errorf("with proofs that take %v: %d warnings in ten minutes, want %d to %d", test.takes, n, test.least, test.most)
			}
		})
	}
}

// blocked is a log that takes no line before it is released.
type blocked struct {
	slog.Handler
	released chan struct{}
}

func (b blocked) Enabled(context.Context, slog.Level) bool { return true }

func (b blocked) Handle(context.Context, slog.Record) error {
	await.Receive(b.released)
	return nil
}

func TestALogThatBlocksDelaysNoProofAndNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := blocked{slog.DiscardHandler, make(chan struct{})}
		j := slowJournal(slog.New(log))
		ctx, cancel := context.WithTimeout(t.Context(), 20*testValidity)
		defer cancel()
		j.keep(ctx, slowProofs(j, testValidity*3/5))
		if err := j.lasts(); err != nil || ctx.Err() == nil {
			t.Errorf("the standing has ended: %v", err)
		}
		close(log.released)
		await.Done(j.tasks.Wait)
	})
}

// leader is a member that leads etcd until it is told that its process cannot serve.
type leader struct {
	mu       sync.Mutex
	follows  bool
	changed  chan struct{}
	eligible bool
}

func (l *leader) Leads() (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.follows, l.changed
}

func (l *leader) SetEligible(can bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.eligible = can
}

func (l *leader) yield() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.follows = true
	close(l.changed)
}

// A process whose standing passes again and again, and that takes it again each time, would keep the
// other one from the store.
func TestAProcessWhoseStandingPassesAgainAndAgainGivesLeadershipUp(t *testing.T) {
	type end struct {
		why    error
		lasted time.Duration
	}
	vain := end{fmt.Errorf("%w: slow", ErrDeadlinePassed), time.Second}
	for _, test := range []struct {
		name  string
		ends  []end
		rests time.Duration // of a member that keeps leadership
	}{
		{"none", nil, 0},
		{"two in vain", []end{vain, vain}, 0},
		{"three in vain", []end{vain, vain, vain}, minCommitLimit},
		{"one that was closed between", []end{vain, vain, {ErrClosed, time.Second}, vain}, 0},
		{"one that lasted between", []end{vain, vain, {ErrDeadlinePassed, time.Hour}, vain}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			member := &leader{changed: make(chan struct{})}
			c := &Candidate{options: Options{Member: member, Logger: slog.New(slog.DiscardHandler)}}
			for _, e := range test.ends {
				c.note(e.why, e.lasted)
			}
			began := time.Now()
			c.rest(t.Context())
			if took := time.Since(began); took != test.rests || !member.eligible {
				t.Errorf("%s: after %v its member may lead: %t; want %v", test.name, took, member.eligible, test.rests)
			}
			if c.rest(t.Context()); time.Since(began) != test.rests {
				t.Errorf("%s: it rests twice", test.name)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		member := &leader{changed: make(chan struct{})}
		c := &Candidate{options: Options{Member: member, Logger: slog.New(slog.DiscardHandler)}}
		for range maxTries {
			c.note(vain.why, vain.lasted)
		}
		time.AfterFunc(time.Second, member.yield)
		began := time.Now()
		if c.rest(t.Context()); time.Since(began) != time.Second {
			t.Errorf("it rests for %v after another member has taken leadership", time.Since(began)-time.Second)
		}
	})
}

func TestACommitMayTakeLongerThanAnElectionOfEtcd(t *testing.T) {
	for standing, want := range map[time.Duration]time.Duration{
		MinStanding: minCommitLimit, 400 * time.Millisecond: minCommitLimit, 4 * time.Second: 12 * time.Second, MaxStanding: 3 * MaxStanding,
	} {
		if got := (&Options{Standing: standing}).commitLimit(); got != want {
			t.Errorf("with a standing of %v: %v, want %v", standing, got, want)
		}
	}
}
