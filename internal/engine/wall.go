package engine

import (
	"math"
	"time"
)

const (
	// slewRate is what the store's time of day gains or loses for each unit of time while
	// the difference to the system's clock is small.
	slewRate = 0.5
	// catchUp is the time constant of catching up with a clock that is far ahead: each
	// second gains a tenth of the difference.
	catchUp = 10 * time.Second
	// farAhead is the lead of the system's clock above which catchUp gains more than slewRate.
	farAhead = time.Duration(slewRate * float64(catchUp))
)

// wall is the store's time of day. It starts with the system's clock and follows the
// monotonic clock from then on, slewed towards the system's clock. So a step of the system's
// clock is not a step of the store's.
//
// After a step back by an hour, the store would refuse its clients as an hour ahead. Our
// clients adapt to such a store; other clients deployed today do not, and lose their leases.
// So the time of day never goes back: while the system's clock is behind, it loses at most
// half a second each second. If the step was a mistake, there are two minutes to correct it
// before the store refuses any client. If it corrected a clock that had been ahead, the
// clients are behind the store meanwhile, which never refuses a timestamp that is behind.
//
// Steps forward are larger. A gateway without a battery-backed clock starts its store years
// behind, and gets the time from the network a minute later. Then the store refuses clients
// that do not adapt until it has caught up. So the time of day gains a tenth of the
// difference each second if that is more than half a second: an hour in a minute and a half,
// fifty years in five minutes. A step of a few seconds that is reversed at once hardly moves
// it. (If the monotonic clock stops during suspend, waking up is a step forward.)
//
// The zero value is ready for use. It is not safe for concurrent use.
type wall struct {
	begun   bool
	time    time.Time     // the last result, without a monotonic reading
	elapsed time.Duration // when time was returned
}

// at returns the time of day in milliseconds since the Unix epoch. system is the reading of
// the system's clock, which may step. elapsed is the time since any fixed origin on a clock
// that does not step; a time before the last one counts as the last one.
func (w *wall) at(system time.Time, elapsed time.Duration) int64 {
	system = system.Round(0) // without the monotonic reading
	if !w.begun {
		*w = wall{begun: true, time: system, elapsed: elapsed}
	}
	if passed := elapsed - w.elapsed; passed > 0 {
		w.elapsed = elapsed
		w.time = w.time.Add(passed)
		w.time = w.time.Add(slew(system.Sub(w.time), passed))
	}
	return w.time.UnixMilli()
}

// slew returns by how much a clock moves, in addition to the time that passed, to approach a
// clock that is ahead of it, or behind it if ahead is negative. The result does not depend on
// how often the time is read: many short steps add up to one long step.
func slew(ahead, passed time.Duration) time.Duration {
	steady := func(d time.Duration) time.Duration { return time.Duration(float64(d) * slewRate) }
	if ahead <= 0 {
		return max(ahead, -steady(passed))
	}
	left := ahead
	if ahead > farAhead {
		// The lead falls exponentially, down to farAhead.
		phase := time.Duration(float64(catchUp) * math.Log(float64(ahead)/float64(farAhead)))
		if passed < phase {
			left = time.Duration(float64(ahead) * math.Exp(-float64(passed)/float64(catchUp)))
			return max(ahead-left, 0) // a rounded left may be above ahead
		}
		left, passed = farAhead, passed-phase
	}
	return ahead - max(left-steady(passed), 0)
}
