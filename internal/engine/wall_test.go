package engine

import (
	"math/rand/v2"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// Invariant 48: a step of the system's clock is not a step of the store's. Each row is the error
// of the system's clock from one moment on, and the error of the store's time of day at later
// moments.
func TestInvariant48WallFollowsTheMonotonicClockAndIsSlewedTowardsTheSystems(t *testing.T) {
	const year = 365 * 24 * time.Hour
	type step struct {
		at         time.Duration // since the start
		system     time.Duration // from here on the system's clock is off by this
		least, off time.Duration // the time of day is off by this, at least and at most
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"a clock that is right", []step{{at: time.Second}, {at: time.Hour}, {at: 1000 * time.Hour}}},
		{"a step of an hour back", []step{
			{time.Minute, -time.Hour, 0, 0},
			{time.Minute + 1*time.Second, -time.Hour, -500 * time.Millisecond, -500 * time.Millisecond},
			{time.Minute + 60*time.Second, -time.Hour, -30 * time.Second, -30 * time.Second},
			{time.Minute + 7199*time.Second, -time.Hour, -time.Hour + 500*time.Millisecond, -time.Hour + 500*time.Millisecond},
			{time.Minute + 7201*time.Second, -time.Hour, -time.Hour, -time.Hour},
		}},
		{"a step of an hour forward", []step{
			{time.Minute, time.Hour, 0, 0},
			{time.Minute + 1*time.Second, time.Hour, 300 * time.Second, 360 * time.Second}, // a tenth at most
			{time.Minute + 41*time.Second, time.Hour, 59 * time.Minute, time.Hour},         // the store no longer refuses clients
			{time.Minute + 68*time.Second, time.Hour, time.Hour - 3950*time.Millisecond, time.Hour - 3850*time.Millisecond},
			{time.Minute + 77*time.Second, time.Hour, time.Hour, time.Hour},
		}},
		{"a store that is older than its machine's idea of the time", []step{
			{time.Minute, 56 * year, 0, 0},
			{time.Minute + 3*time.Minute, 56 * year, 56*year - time.Minute, 56 * year},
			{time.Minute + 5*time.Minute, 56 * year, 56 * year, 56 * year},
		}},
		{"a step of four seconds forward", []step{
			{time.Minute, 4 * time.Second, 0, 0},
			{time.Minute + 2*time.Second, 4 * time.Second, time.Second, time.Second},
			{time.Minute + 8*time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second},
		}},
		{"a step of three seconds for a second", []step{
			{time.Minute, 3 * time.Second, 0, 0},
			{time.Minute + time.Second, 0, 500 * time.Millisecond, 500 * time.Millisecond},
			{time.Minute + 2*time.Second, 0, 0, 0},
		}},
		{"a step of two hundred years back", []step{
			{time.Minute, -200 * year, 0, 0},
			{time.Minute + time.Second, -200 * year, -500 * time.Millisecond, -500 * time.Millisecond},
		}},
	}
	for _, test := range tests {
		for _, every := range []time.Duration{0, 7 * time.Millisecond} { // asked when a step says so, or all the time
			t.Run(test.name+", asked every "+every.String(), func(t *testing.T) {
				var w wall
				if got := w.at(noon, time.Hour); got != noon.UnixMilli() {
					t.Fatalf("it begins at %d, want %d", got, noon.UnixMilli())
				}
				var now, system time.Duration // both since noon, the second a difference
				for _, step := range test.steps {
					for every > 0 && step.at-now > every && step.at < 2*time.Hour {
						now += every
						w.at(noon.Add(now).Add(system), time.Hour+now)
					}
					now = step.at
					got := time.Duration(w.at(noon.Add(now).Add(system), time.Hour+now)-noon.Add(now).UnixMilli()) * time.Millisecond
					system = step.system
					const rounding = 3 * time.Millisecond
					if got < step.least-rounding || got > step.off+rounding {
						t.Errorf("after %v it is off by %v; want %v to %v", step.at, got, step.least, step.off)
					}
				}
			})
		}
	}
}

// It never goes back, and never goes faster than the limit.
func TestWallNeverGoesBack(t *testing.T) {
	random := rand.New(rand.NewPCG(48, 1))
	var w wall
	var elapsed, off time.Duration
	last := w.at(noon, 0)
	for range 50_000 {
		passed := time.Duration(random.Int64N(int64(time.Second) >> random.IntN(30)))
		if random.IntN(20) == 0 {
			off = time.Duration(random.Int64N(int64(2*time.Hour)) - int64(time.Hour))
		}
		elapsed += passed
		before := w.time
		now := w.at(noon.Add(elapsed+off), elapsed)
		ahead := noon.Add(elapsed + off).Sub(before.Add(passed))
		fastest := passed + max(passed/2, time.Duration(float64(passed)*0.1*ahead.Seconds())) + time.Microsecond
		if went := w.time.Sub(before); now < last || went < passed/2-time.Microsecond || went > fastest {
			t.Fatalf("in %v, with the system's clock %v ahead, it went on by %v", passed, ahead, went)
		}
		last = now
	}
	if got := w.at(noon.Add(elapsed+off), elapsed-time.Minute); got != last {
		t.Errorf("asked for a time before the last one it shows %d, want %d", got, last)
	}
}
