package hlc

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// A testTime is a physical clock that moves only when a test sets it.
type testTime struct{ ms atomic.Int64 }

func (p *testTime) now() time.Time { return time.UnixMilli(p.ms.Load()) }

// newTestClock returns a clock of node "a" with the default skew limit, and the
// physical time that it reads.
func newTestClock(t *testing.T, ms int64) (*Clock, *testTime) {
	t.Helper()
	physical := new(testTime)
	physical.ms.Store(ms)
	clock, err := NewClock("a", ClockOptions{Now: physical.now})
	if err != nil {
		t.Fatal(err)
	}
	return clock, physical
}

func mustNow(t *testing.T, clock *Clock) Timestamp {
	t.Helper()
	timestamp, err := clock.Now()
	if err != nil {
		t.Fatal(err)
	}
	return timestamp
}

func mustUpdate(t *testing.T, clock *Clock, remote Timestamp) Timestamp {
	t.Helper()
	timestamp, err := clock.Update(remote)
	if err != nil {
		t.Fatal(err)
	}
	return timestamp
}

func TestNewClockRefusesInvalidOptions(t *testing.T) {
	tests := []struct {
		name    string
		node    string
		options ClockOptions
		cause   string
	}{
		{"an empty node", "", ClockOptions{}, "node \"\" is empty"},
		{"a colon in the node", "a:b", ClockOptions{}, "contains a colon"},
		{"a control character in the node", "a\tb", ClockOptions{}, "contains a control character"},
		{"a node that is not UTF-8", "a\xff", ClockOptions{}, "is not valid UTF-8"},
		{"a node that is too long", strings.Repeat("n", maxNode+1), ClockOptions{}, "is longer than 983 bytes"},
		{"a negative skew", "a", ClockOptions{MaxSkew: -1}, "MaxSkew -1ns is negative"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			clock, err := NewClock(test.node, test.options)
			if clock != nil || err == nil || !strings.Contains(err.Error(), test.cause) {
				t.Errorf("NewClock = %v, %v; want an error with %q", clock, err, test.cause)
			}
		})
	}
}

// last returns the timestamp that the clock issued last.
func last(c *Clock) Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

func TestClockReadsTimeNowByDefault(t *testing.T) {
	clock, err := NewClock("a", ClockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now().UnixMilli()
	got := mustNow(t, clock)
	if after := time.Now().UnixMilli(); got.Wall < before || got.Wall > after {
		t.Errorf("Now = %v; want a wall clock from %d to %d", got, before, after)
	}
	if got.Node != "a" {
		t.Errorf("the timestamp's node is %q; want a", got.Node)
	}
}

func TestClockFollowsTheRules(t *testing.T) {
	clock, physical := newTestClock(t, 1000)
	steps := []struct {
		name   string
		ms     int64
		remote Timestamp // zero: a local event
		want   Timestamp
	}{
		{"the first event", 1000, Timestamp{}, Timestamp{1000, 0, "a"}},
		{"another in the same millisecond", 1000, Timestamp{}, Timestamp{1000, 1, "a"}},
		{"a message from a clock ahead", 1001, Timestamp{1500, 4, "b"}, Timestamp{1500, 5, "a"}},
		{"a local event after it", 1002, Timestamp{}, Timestamp{1500, 6, "a"}},
		{"a message from the past", 1003, Timestamp{900, 70, "c"}, Timestamp{1500, 7, "a"}},
		{"physical time catches up", 1500, Timestamp{}, Timestamp{1500, 8, "a"}},
		{"and passes", 1501, Timestamp{}, Timestamp{1501, 0, "a"}},
	}
	for _, step := range steps {
		physical.ms.Store(step.ms)
		var got Timestamp
		if step.remote.IsZero() {
			got = mustNow(t, clock)
		} else {
			got = mustUpdate(t, clock, step.remote)
		}
		if got != step.want || last(clock) != step.want {
			t.Fatalf("%s: got %v, the last is %v; want %v", step.name, got, last(clock), step.want)
		}
	}
}

func TestUpdateWithoutTimestampIsLocalEvent(t *testing.T) {
	clock, _ := newTestClock(t, 1000)
	mustNow(t, clock)
	if got, want := mustUpdate(t, clock, Timestamp{}), (Timestamp{1000, 1, "a"}); got != want {
		t.Errorf("Update = %v; want %v", got, want)
	}
}

// Invariant 39: the HLC never goes back.
func TestInvariant39ClockNeverGoesBackWhenPhysicalTimeDoes(t *testing.T) {
	clock, physical := newTestClock(t, 10_000_000)
	last := mustNow(t, clock)
	for _, ms := range []int64{9_999_999, 6_400_000, 0, -1, math.MinInt64 / 2, 9_999_999, 10_000_000, 10_000_001} {
		physical.ms.Store(ms)
		next := mustNow(t, clock)
		if next.Compare(last) <= 0 {
			t.Errorf("at physical time %d Now = %v, not after %v", ms, next, last)
		}
		last = next
		next = mustUpdate(t, clock, Timestamp{max(ms, 0), 3, "b"})
		if next.Compare(last) <= 0 {
			t.Errorf("at physical time %d Update = %v, not after %v", ms, next, last)
		}
		last = next
	}
	if want := int64(10_000_001); last.Wall != want {
		t.Errorf("the wall clock is %d; want %d, as soon as physical time is ahead again", last.Wall, want)
	}
}

func TestTimeBefore1970CountsAs1970(t *testing.T) {
	clock, _ := newTestClock(t, -1)
	if got, want := mustNow(t, clock), (Timestamp{0, 1, "a"}); got != want {
		t.Errorf("Now = %v; want %v", got, want)
	}
	_, err := clock.Update(Timestamp{60_001, 0, "b"})
	var skew *SkewError
	if !errors.As(err, &skew) {
		t.Fatalf("Update has error %v; want a *SkewError", err)
	}
	if !skew.Physical.Equal(time.Unix(0, 0)) || skew.Ahead != 60_001*time.Millisecond {
		t.Errorf("%v ahead of %v; want 1m0.001s ahead of 1970", skew.Ahead, skew.Physical)
	}
}

// Invariant 40: a version too far ahead does not push the clock past the limit.
func TestInvariant40SkewIsRefusedAndChangesNothing(t *testing.T) {
	const physical = 1696374425000
	tests := []struct {
		name   string
		limit  time.Duration
		remote Timestamp
		ahead  time.Duration // 0: accepted
	}{
		{"exactly the default limit", 0, Timestamp{physical + 60_000, 0, "b"}, 0},
		{"one millisecond more", 0, Timestamp{physical + 60_001, 0, "b"}, 60_001 * time.Millisecond},
		{"exactly a limit of one's own", 5 * time.Second, Timestamp{physical + 5000, 0, "b"}, 0},
		{"more than a limit of one's own", 5 * time.Second, Timestamp{physical + 5001, 0, "b"}, 5001 * time.Millisecond},
		{"more than a limit below a millisecond", time.Nanosecond, Timestamp{physical + 1, 0, "b"}, time.Millisecond},
		{"the same millisecond under the smallest limit", time.Nanosecond, Timestamp{physical, 9, "b"}, 0},
		{"far in the past", time.Nanosecond, Timestamp{0, 9, "b"}, 0},
		{"a wall clock below zero", time.Nanosecond, Timestamp{math.MinInt64, 9, "b"}, 0},
		{"the end of time", 0, Timestamp{math.MaxInt64, 0, "b"}, math.MaxInt64},
		{"the end of time, with the counter full", 0, Timestamp{math.MaxInt64, math.MaxUint64, "b"}, math.MaxInt64},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			clock, err := NewClock("a", ClockOptions{
				Now:     func() time.Time { return time.UnixMilli(physical) },
				MaxSkew: test.limit,
			})
			if err != nil {
				t.Fatal(err)
			}
			before := mustNow(t, clock)
			_, err = clock.Update(test.remote)
			if test.ahead == 0 {
				if err != nil {
					t.Errorf("Update(%v) has error %v; want none", test.remote, err)
				}
				return
			}
			limit := test.limit
			if limit == 0 {
				limit = time.Minute
			}
			want := SkewError{Remote: test.remote, Physical: time.UnixMilli(physical).UTC(), Ahead: test.ahead, Limit: limit}
			var skew *SkewError
			if !errors.As(err, &skew) || *skew != want {
				t.Errorf("Update(%v) has error %#v; want %#v", test.remote, err, want)
			}
			if !errors.Is(err, ErrSkew) {
				t.Errorf("errors.Is(%v, ErrSkew) is false", err)
			}
			if got := last(clock); got != before {
				t.Errorf("the clock moved from %v to %v", before, got)
			}
		})
	}
}

func TestSkewErrorSaysWhichClockIsAheadAndWhatToDo(t *testing.T) {
	err := &SkewError{
		Remote:   Timestamp{1696374545000, 0, "gateway-b"},
		Physical: time.UnixMilli(1696374425000).UTC(),
		Ahead:    2 * time.Minute,
		Limit:    time.Minute,
	}
	const want = `hlc: the clock of node "gateway-b" is 2m0s ahead of this node's clock, which reads 2023-10-03T23:07:05Z; ` +
		`the limit is 1m0s: synchronize the system clocks of both nodes`
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
}

// Invariant 41: one bad peer moves the clock by at most the limit, and it recovers.
func TestInvariant41ClockRecoversFromBadPeer(t *testing.T) {
	const start = 1696374425000
	clock, physical := newTestClock(t, start)
	worst := []Timestamp{
		{start + 60_000, 0, "bad"},
		{start + 60_000, maxRemoteCounter - 1, "bad"},
		{start + 60_000, maxRemoteCounter, "bad"},
		{start + 60_000, math.MaxUint64 - 1, "bad"},
		{start + 60_000, math.MaxUint64, "bad"},
		{start + 60_001, 0, "bad"},
		{math.MaxInt64, math.MaxUint64, "bad"},
	}
	last := mustNow(t, clock)
	for range 100 {
		for _, remote := range worst {
			_, _ = clock.Update(remote) // refused or not
			next := mustNow(t, clock)   // never stopped
			if next.Compare(last) <= 0 {
				t.Fatalf("after %v Now = %v, not after %v", remote, next, last)
			}
			last = next
		}
	}
	if last.Wall > start+60_000 {
		t.Errorf("the clock was moved to %v, beyond the limit", last)
	}
	physical.ms.Store(start + 60_001)
	if got, want := mustNow(t, clock), (Timestamp{start + 60_001, 0, "a"}); got != want {
		t.Errorf("after the limit has passed Now = %v; want %v", got, want)
	}
}

func TestClockOverflowChangesNothing(t *testing.T) {
	clock, physical := newTestClock(t, 1000)
	full := Timestamp{1000, math.MaxUint64, "a"}
	clock.last = full // no run of events is long enough
	if got, err := clock.Now(); !errors.Is(err, ErrCounterOverflow) || !got.IsZero() {
		t.Errorf("Now = %v, %v; want ErrCounterOverflow", got, err)
	}
	if got, err := clock.Update(Timestamp{1000, 0, "b"}); !errors.Is(err, ErrCounterOverflow) || !got.IsZero() {
		t.Errorf("Update = %v, %v; want ErrCounterOverflow", got, err)
	}
	if got := last(clock); got != full {
		t.Errorf("the clock changed to %v", got)
	}
	physical.ms.Store(1001)
	if got, want := mustNow(t, clock), (Timestamp{1001, 0, "a"}); got != want {
		t.Errorf("in the next millisecond Now = %v; want %v", got, want)
	}
}

// Invariant 43: no lock is held across a user's callback. This callback uses the clock that
// called it, and would deadlock.
func TestInvariant43NoLockIsHeldWhilePhysicalTimeIsRead(t *testing.T) {
	var clock *Clock
	clock, err := NewClock("a", ClockOptions{Now: func() time.Time {
		return time.UnixMilli(last(clock).Wall + 1)
	}})
	if err != nil {
		t.Fatal(err)
	}
	mustNow(t, clock)
	mustUpdate(t, clock, Timestamp{1, 0, "b"})
}

// A goroutine that read the physical clock and was then overtaken must not take the
// clock back, nor issue a timestamp twice.
func TestOvertakenGoroutineStillGetsLaterTimestamp(t *testing.T) {
	reading, proceed := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	clock, err := NewClock("a", ClockOptions{Now: func() time.Time {
		if calls.Add(1) == 1 {
			close(reading)
			await.Receive(proceed)
			return time.UnixMilli(1000) // read first, used last
		}
		return time.UnixMilli(2000)
	}})
	if err != nil {
		t.Fatal(err)
	}
	slow := make(chan Timestamp)
	go func() {
		timestamp, err := clock.Now()
		if err != nil {
			t.Error(err)
		}
		slow <- timestamp
	}()
	await.Receive(reading)
	fast := mustNow(t, clock)
	close(proceed)
	if got, want := await.Receive(slow), (Timestamp{2000, 1, "a"}); got != want || fast != (Timestamp{2000, 0, "a"}) {
		t.Errorf("the fast goroutine got %v and the slow one %v; want %v for the slow one", fast, got, want)
	}
}

func TestConcurrentUseYieldsUniqueAscendingTimestamps(t *testing.T) {
	const goroutines, each = 16, 500
	var physical atomic.Int64
	clock, err := NewClock("a", ClockOptions{Now: func() time.Time {
		// Every goroutine sees time move, and now and then step back.
		n := physical.Add(1)
		return time.UnixMilli(1_000_000 + n/50 - n%7)
	}})
	if err != nil {
		t.Fatal(err)
	}
	issued := make([][]Timestamp, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				var next Timestamp
				var err error
				if i%5 == 0 {
					next, err = clock.Update(Timestamp{1_000_000 + int64(i), uint64(g), "b"})
				} else {
					next, err = clock.Now()
				}
				if err != nil {
					t.Error(err)
					return
				}
				if last(clock).Compare(next) < 0 {
					t.Errorf("the last is before %v, which was returned already", next)
				}
				issued[g] = append(issued[g], next)
			}
		})
	}
	await.Done(wg.Wait)

	seen := make(map[Timestamp]bool)
	for g, timestamps := range issued {
		for i, timestamp := range timestamps {
			if seen[timestamp] {
				t.Errorf("%v was issued twice", timestamp)
			}
			seen[timestamp] = true
			if i > 0 && timestamp.Compare(timestamps[i-1]) <= 0 {
				t.Errorf("goroutine %d got %v after %v", g, timestamp, timestamps[i-1])
			}
		}
	}
	if len(seen) != goroutines*each {
		t.Errorf("%d timestamps are different; want %d", len(seen), goroutines*each)
	}
}

// The guarantees of the algorithm (HLC section 3): an event that causes another has the lower
// timestamp, no timestamp is behind its node's physical time, and none is ahead of the fastest
// physical clock of all nodes.
func TestCauseHasSmallerTimestampThanEffect(t *testing.T) {
	const seed, nodes, events = 1, 5, 20_000
	random := rand.New(rand.NewPCG(seed, seed))

	var trueTime int64 = 1_000_000
	skew := make([]int64, nodes)
	clocks := make([]*Clock, nodes)
	last := make([]Timestamp, nodes) // of each node's latest event
	for n := range nodes {
		skew[n] = random.Int64N(200) - 100
		clock, err := NewClock(string(rune('a'+n)), ClockOptions{Now: func() time.Time { return time.UnixMilli(trueTime + skew[n]) }})
		if err != nil {
			t.Fatal(err)
		}
		clocks[n] = clock
	}
	var fastest int64 // the largest physical time that any node has had
	for range events {
		if random.IntN(3) == 0 {
			trueTime++
		}
		for _, s := range skew {
			fastest = max(fastest, trueTime+s)
		}
		n, from := random.IntN(nodes), random.IntN(nodes)
		causes := []Timestamp{last[n]}
		var event Timestamp
		if n == from {
			event = mustNow(t, clocks[n])
		} else {
			causes = append(causes, last[from])
			event = mustUpdate(t, clocks[n], last[from])
		}
		for _, cause := range causes {
			if cause.Compare(event) >= 0 || cause.Wall == event.Wall && cause.Counter >= event.Counter {
				t.Fatalf("%v was caused by %v but is not after it", event, cause)
			}
		}
		if event.Wall < trueTime+skew[n] || event.Wall > fastest {
			t.Fatalf("%v is not between its node's clock %d and the fastest %d", event, trueTime+skew[n], fastest)
		}
		last[n] = event
	}
}

func BenchmarkNow(b *testing.B) {
	clock, err := NewClock("gateway-a", ClockOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := clock.Now(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNowParallel(b *testing.B) {
	clock, err := NewClock("gateway-a", ClockOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := clock.Now(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
