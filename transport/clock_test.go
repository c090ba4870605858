package transport

import (
	"errors"
	"math"
	"testing"

	"github.com/tenurelock/tenure/hlc"
)

// Invariants 40, 41 and 48: what a client sends, by what its node's clock shows and what
// the store says. All times are milliseconds since noon.
func TestInvariant48ClockOfAClient(t *testing.T) {
	const (
		noon   = 1696374425000
		second = 1000
		minute = 60 * second
		hour   = 60 * minute
		untold = math.MinInt64 // the store does not tell its clock
	)
	type step struct {
		local int64 // what the node's clock shows

		// One of these happens.
		sees    *hlc.Timestamp // a version
		refuses *int64         // the store, which shows this, refuses the last timestamp
		vain    bool           // and nothing can be done

		tooFar bool          // the version does not move the clock
		want   hlc.Timestamp // of a request that is sent then
	}
	version := func(wall int64, counter uint64) *hlc.Timestamp {
		return &hlc.Timestamp{Wall: noon + wall, Counter: counter, Node: "StateStore"}
	}
	shows := func(wall int64) *int64 { return &wall }
	stamp := func(wall int64, counter uint64) hlc.Timestamp {
		return hlc.Timestamp{Wall: noon + wall, Counter: counter, Node: "a"}
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"requests count within a millisecond", []step{{want: stamp(0, 0)}, {want: stamp(0, 1)}, {local: 1, want: stamp(1, 0)}}},
		{"a version takes the clock along", []step{{sees: version(7, 3), want: stamp(7, 5)}}},
		{"a version a minute ahead does", []step{{sees: version(minute, 0), want: stamp(minute, 2)}}},
		{"a version further ahead does not", []step{{sees: version(minute+1, 0), tooFar: true, want: stamp(0, 0)}}},
		{"a version at the end of time does not", []step{{sees: &hlc.Timestamp{Wall: math.MaxInt64, Node: "s"}, tooFar: true, want: stamp(0, 0)}}},
		{"a counter that is too large does not", []step{{sees: version(0, math.MaxUint64), want: stamp(0, 0)}}},
		{"a step back of a minute is bridged", []step{{local: minute, want: stamp(minute, 0)}, {local: 0, want: stamp(minute, 1)}}},
		{"a step back of more starts again", []step{{local: minute + 1, want: stamp(minute+1, 0)}, {local: 0, want: stamp(0, 0)}}},
		{"also if a version comes first", []step{{local: hour, want: stamp(hour, 0)}, {sees: version(0, 5), want: stamp(0, 7)}}},
		{"a refusal makes it go by the store's clock", []step{
			{local: hour, want: stamp(hour, 0)},
			{local: hour + 5, refuses: shows(3), want: stamp(3, 1)},
			{local: hour + 6, want: stamp(3, 2)},
			{local: hour + second, sees: version(second, 0), want: stamp(second, 2)},
			{local: 2*hour + second, want: stamp(second, 3)},
		}},
		{"until its own clock will do", []step{
			{local: hour, want: stamp(hour, 0)},
			{local: hour, refuses: shows(0), want: stamp(0, 1)},
			// A clock that is behind does no harm. Another client may have pushed the version by
			// up to a minute, so the clock must agree with it more closely.
			{local: 5*second + 1, sees: version(0, 0), want: stamp(0, 3)},
			{local: 5 * second, sees: version(0, 0), want: stamp(5*second, 1)},
		}},
		{"a refusal that shows that its own clock will do", []step{
			{local: minute + 1, want: stamp(minute+1, 0)},
			{local: second, refuses: shows(2 * second), want: stamp(2*second, 1)},
			{local: 3 * second, want: stamp(3*second, 0)},
		}},
		{"a store with a clock ahead that refuses is not understood", []step{
			{local: 0, want: stamp(0, 0)},
			{local: 0, refuses: shows(0), vain: true, want: stamp(0, 1)},
			{local: 0, refuses: shows(hour), vain: true, want: stamp(0, 2)},
		}},
		{"a refusal that does not tell, and nothing known", []step{
			{local: hour, want: stamp(hour, 0)},
			{local: hour, refuses: shows(untold), vain: true, want: stamp(hour, 1)},
		}},
		{"a refusal that does not tell, and an old version", []step{
			{local: hour, sees: version(-hour, 4), want: stamp(hour, 1)},
			{local: hour, refuses: shows(untold), want: stamp(-hour, 1)},
			{local: hour, sees: version(9, 0), want: stamp(9, 2)},
		}},
		{"a refusal that does not tell, and a version from the future", []step{
			{local: hour, sees: version(3*hour, 0), tooFar: true, want: stamp(hour, 0)},
			{local: hour, refuses: shows(untold), vain: true, want: stamp(hour, 1)},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := newClock("a")
			if err != nil {
				t.Fatal(err)
			}
			var sent hlc.Timestamp
			for i, step := range test.steps {
				local := noon + step.local
				if step.sees != nil {
					if tooFar, err := c.observe(*step.sees, local); tooFar != step.tooFar {
						t.Errorf("step %d: too far ahead: %t, %v", i, tooFar, err)
					}
				}
				if step.refuses != nil {
					store := int64(0)
					if *step.refuses != untold {
						store = noon + *step.refuses
					}
					if adapted := c.adapt(sent, store, local); adapted == step.vain {
						t.Errorf("step %d: adapted: %v", i, adapted)
					}
				}
				if sent, err = c.tick(local); err != nil || sent != step.want {
					t.Errorf("step %d: sends %v, %v; want %v", i, sent, err, step.want)
				}
			}
		})
	}
}

// Invariant 39: overflow is an error, and changes nothing.
func TestInvariant39ACounterThatIsUsedUpIsAnError(t *testing.T) {
	c := clock{last: hlc.Timestamp{Wall: 1000, Counter: math.MaxUint64, Node: "a"}}
	for range 2 {
		if sent, err := c.tick(1000); !errors.Is(err, hlc.ErrCounterOverflow) {
			t.Errorf("%v, %v; want ErrCounterOverflow", sent, err)
		}
	}
	if sent, err := c.tick(1001); err != nil || sent != (hlc.Timestamp{Wall: 1001, Node: "a"}) {
		t.Errorf("in the next millisecond: %v, %v", sent, err)
	}
}
