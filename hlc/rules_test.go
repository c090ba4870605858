package hlc

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

func TestTickAndMerge(t *testing.T) {
	const full = math.MaxUint64
	tests := []struct {
		name   string
		last   Timestamp
		remote Timestamp
		wall   int64
		want   Timestamp
	}{
		{"docs/protocol.md §3.3: client and store in the same millisecond, a store without history",
			Timestamp{0, 0, "StateStore"}, Timestamp{1696374425000, 0, "CLIENT"}, 1696374425000, Timestamp{1696374425000, 1, "StateStore"}},
		{"docs/protocol.md §3.3: with the store's clock ahead the version carries the store's",
			Timestamp{0, 0, "StateStore"}, Timestamp{1696374425000, 5, "CLIENT"}, 1696374425123, Timestamp{1696374425123, 0, "StateStore"}},

		{"physical time is the largest: the counter starts again", Timestamp{10, 3, "a"}, Timestamp{10, 8, "b"}, 11, Timestamp{11, 0, "a"}},
		{"the remote is the largest: its counter plus one", Timestamp{10, 3, "a"}, Timestamp{12, 8, "b"}, 11, Timestamp{12, 9, "a"}},
		{"the last is the largest: its counter plus one", Timestamp{12, 3, "a"}, Timestamp{10, 8, "b"}, 11, Timestamp{12, 4, "a"}},
		{"last and remote are equal: the larger counter, the remote's", Timestamp{12, 3, "a"}, Timestamp{12, 8, "b"}, 11, Timestamp{12, 9, "a"}},
		{"all three are equal", Timestamp{12, 3, "a"}, Timestamp{12, 8, "b"}, 12, Timestamp{12, 9, "a"}},

		{"physical time moved on: the counter starts again", Timestamp{100, 7, "a"}, Timestamp{}, 101, Timestamp{101, 0, "a"}},
		{"the same millisecond: the counter goes up", Timestamp{100, 7, "a"}, Timestamp{}, 100, Timestamp{100, 8, "a"}},
		{"physical time stepped back: the counter goes up", Timestamp{100, 7, "a"}, Timestamp{}, 40, Timestamp{100, 8, "a"}},
		{"a full counter does not matter in the next millisecond", Timestamp{100, math.MaxUint64, "a"}, Timestamp{}, 101, Timestamp{101, 0, "a"}},
		{"a counter above the remote limit is fine if it is one's own", Timestamp{100, maxRemoteCounter, "a"}, Timestamp{}, 100, Timestamp{100, maxRemoteCounter + 1, "a"}},
		{"no remote timestamp: the same as a tick", Timestamp{12, 3, "a"}, Timestamp{}, 12, Timestamp{12, 4, "a"}},
		{"a remote wall clock below zero", Timestamp{0, 0, "a"}, Timestamp{-7, 9, "b"}, -9, Timestamp{0, 1, "a"}},

		{"the largest remote counter that is adopted", Timestamp{10, 3, "a"}, Timestamp{12, maxRemoteCounter - 1, "b"}, 11, Timestamp{12, maxRemoteCounter, "a"}},
		{"a huge remote counter of the past", Timestamp{12, 3, "a"}, Timestamp{11, full, "b"}, 11, Timestamp{12, 4, "a"}},
		{"a huge remote counter that the last has reached", Timestamp{12, maxRemoteCounter, "a"}, Timestamp{12, maxRemoteCounter, "b"}, 11, Timestamp{12, maxRemoteCounter + 1, "a"}},
	}
	for _, test := range tests {
		got, err := Merge(test.last, test.remote, test.wall)
		if err != nil || got != test.want {
			t.Errorf("%s: Merge(%v, %v, %d) = %v, %v; want %v", test.name, test.last, test.remote, test.wall, got, err, test.want)
		}
		if ticked, err := Tick(test.last, test.wall); test.remote.IsZero() && (err != nil || ticked != test.want) {
			t.Errorf("%s: Tick(%v, %d) = %v, %v; want %v", test.name, test.last, test.wall, ticked, err, test.want)
		}
		if got.Compare(test.last) <= 0 || got.Compare(test.remote) <= 0 {
			t.Errorf("%v is not after both %v and %v", got, test.last, test.remote)
		}
	}
}

// Overflow is an error; nothing wraps around. One bad peer moves the clock by at most the skew limit, and it
// recovers: a counter near the end of its range would otherwise stop it until then.
func TestInvariants39And41CounterOverflowAndAHugeRemoteCounterAreErrorsAndChangeNothing(t *testing.T) {
	const full = math.MaxUint64
	for _, test := range []struct {
		name   string
		last   Timestamp
		remote Timestamp // zero: a tick
		wall   int64
	}{
		{"a tick in the same millisecond", Timestamp{12, full, "a"}, Timestamp{}, 12},
		{"a merge of a smaller counter", Timestamp{12, full, "a"}, Timestamp{12, 3, "b"}, 12},
		{"a merge of a full counter", Timestamp{12, full, "a"}, Timestamp{12, full, "b"}, 12},
		{"the remote is the largest, and huge", Timestamp{10, 3, "a"}, Timestamp{12, maxRemoteCounter, "b"}, 11},
		{"it equals physical time", Timestamp{10, 3, "a"}, Timestamp{12, maxRemoteCounter, "b"}, 12},
		{"it is full", Timestamp{10, 3, "a"}, Timestamp{12, full, "b"}, 12},
		{"it is just above the last, which passed the limit", Timestamp{12, maxRemoteCounter, "a"}, Timestamp{12, maxRemoteCounter + 1, "b"}, 12},
	} {
		got, err := Merge(test.last, test.remote, test.wall)
		if test.remote.IsZero() && err != nil {
			got, err = Tick(test.last, test.wall)
		}
		if !errors.Is(err, ErrCounterOverflow) || got != test.last {
			t.Errorf("%s: %v, %v; want the last and ErrCounterOverflow", test.name, got, err)
		}
	}
}

// Invariant 39: the HLC never goes back.
func TestInvariant39ATimestampNeverGoesBackWhenPhysicalTimeDoes(t *testing.T) {
	last, err := Tick(Timestamp{Node: "a"}, 10_000_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, ms := range []int64{9_999_999, 6_400_000, 0, -1, math.MinInt64 / 2, 9_999_999, 10_000_000, 10_000_001} {
		next, err := Tick(last, ms)
		if err != nil || next.Compare(last) <= 0 {
			t.Errorf("at physical time %d Tick = %v, %v, not after %v", ms, next, err, last)
		}
		last = next
		next, err = Merge(last, Timestamp{max(ms, 0), 3, "b"}, ms)
		if err != nil || next.Compare(last) <= 0 {
			t.Errorf("at physical time %d Merge = %v, %v, not after %v", ms, next, err, last)
		}
		last = next
	}
	if want := int64(10_000_001); last.Wall != want {
		t.Errorf("the wall clock is %d; want %d, as soon as physical time is ahead again", last.Wall, want)
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
	last := make([]Timestamp, nodes) // of each node's latest event
	for n := range nodes {
		skew[n] = random.Int64N(200) - 100
		last[n].Node = string(rune('a' + n))
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
		event, err := Tick(last[n], trueTime+skew[n])
		if n != from {
			causes = append(causes, last[from])
			event, err = Merge(last[n], last[from], trueTime+skew[n])
		}
		if err != nil {
			t.Fatal(err)
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
