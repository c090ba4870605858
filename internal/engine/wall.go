package engine

import (
	"math"
	"time"
)

const (
	// steadySlew is how much the store's time of day gains or loses for each unit of
	// time while it differs from the system's clock by little.
	steadySlew = 0.5
	// catchUp is the time in which the store's time of day would catch up with a clock
	// that is far ahead, if it went on as fast as it begins: a tenth in each second.
	catchUp = 10 * time.Second
	// brisk is the lead of the system's clock above which catching up is faster than
	// steadySlew.
	brisk = time.Duration(steadySlew * float64(catchUp))
)

// wall is the store's time of day. It begins with the system's clock and then goes with
// the monotonic clock, slewed towards the system's clock, so that a step of that clock is
// no step of the store's.
//
// A step would turn clients away that did not step along: a store whose clock goes back
// by an hour is an hour behind all its clients, and refuses what they send as too far
// ahead. Our clients adapt to such a store; other clients deployed today do not, and lose
// their leases. So the time of day never goes back: while the system's clock
// is behind, it loses at most half a second each second. If the step was a mistake there
// are two minutes to correct it before any client is refused. If it was the correction of
// a clock that had been ahead, the clients are behind the store meanwhile, and what is
// behind is never refused.
//
// Forward is another matter. A gateway without a battery-backed clock starts its store
// years behind, and learns the time from the network a minute later. From then on each
// client that does not adapt is refused until the store has caught up. So the time of day
// gains a tenth of the difference each second where that is more than half a second: it
// catches up with an hour in a minute and a half, and with fifty years in five minutes. A
// step of some seconds that is taken back at once hardly moves it. (Where the monotonic
// clock stands still while the machine is suspended, waking up is a step forward.)
//
// The zero value is ready for use. It is not safe for concurrent use.
type wall struct {
	begun   bool
	shown   time.Time     // without a monotonic reading
	elapsed time.Duration // when that was shown
}

// at returns the time of day, in milliseconds since the Unix epoch. system is what the
// system's clock shows, which may step, and elapsed the time since any fixed origin on a
// clock that does not. An elapsed time before the last one counts as the last one.
func (w *wall) at(system time.Time, elapsed time.Duration) int64 {
	system = system.Round(0) // so that differences are those of the wall clocks
	if !w.begun {
		*w = wall{begun: true, shown: system, elapsed: elapsed}
	}
	if passed := elapsed - w.elapsed; passed > 0 {
		w.elapsed = elapsed
		w.shown = w.shown.Add(passed)
		w.shown = w.shown.Add(slew(system.Sub(w.shown), passed))
	}
	return w.shown.UnixMilli()
}

// slew returns by how much a clock is moved, beyond the time that passed, so as to
// approach one that is ahead of it, or behind if ahead is negative. Many short
// steps add up to one long step, so it does not matter how often the time is read.
func slew(ahead, passed time.Duration) time.Duration {
	if ahead <= 0 {
		return max(ahead, -steadily(passed))
	}
	left := ahead
	if ahead > brisk {
		// A lead that shrinks by a tenth of itself each second falls exponentially, until
		// half a second each second is more.
		phase := time.Duration(float64(catchUp) * math.Log(float64(ahead)/float64(brisk)))
		if passed < phase {
			left = time.Duration(float64(ahead) * math.Exp(-float64(passed)/float64(catchUp)))
			return max(ahead-left, 0) // a rounded left may be above ahead
		}
		left, passed = brisk, passed-phase
	}
	return ahead - max(left-steadily(passed), 0)
}

// steadily returns what is gained or lost at most while some time passes.
func steadily(passed time.Duration) time.Duration {
	return time.Duration(float64(passed) * steadySlew)
}
