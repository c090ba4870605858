package crashtest

import (
	"math"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// Restart is an interruption of the store: a crash and what followed, or a takeover.
type Restart struct {
	// Dead is when the former process was known to be dead: it did nothing after that, and the
	// next one began after that to count the lifetimes of keys anew.
	Dead time.Duration
	// Ready is when the store was known to answer again: lifetimes began before that.
	Ready time.Duration
}

const (
	// forever is the end of an operation whose outcome is unknown.
	forever = time.Duration(math.MaxInt64)
	// tolerance is for the two clocks that are compared, of this process and of the store,
	// which run alike but are not read at the same time, and for lifetimes in whole
	// milliseconds.
	tolerance = 2 * time.Millisecond
)

// A register is one key, as the protocol and the durability of the store allow it to be
// (docs/protocol.md §2.2 and §4.3, docs/operate.md). Some of it is not known for certain:
// when exactly a value was set, and which version it has if no reply told.
type register struct {
	exists bool
	value  string
	// version is the version of the value, or of the value that went away; zero if no reply has
	// told it yet. Then it is above every version in above.
	version hlc.Timestamp
	above   hlc.Timestamp // later versions are above this
	since   time.Duration // the value has had this version since then, or since later
	token   hlc.Token     // zero: not protected

	from, to time.Duration // the value was set between these two times
	ttl      time.Duration // of the latest SET; 0: the key does not expire
	longest  time.Duration // the longest lifetime that a restart can give to the key
	now      time.Duration // all later operations take effect after this
}

// after returns the registers that an operation can leave behind, or none if it cannot have
// had its result here.
func (h *History) after(r register, o *Operation) []register {
	r.now = max(r.now, o.Call)
	end := o.end()
	var results []register
	if r.exists && h.mayLive(&r, end) {
		results = h.apply(results, r, o)
	}
	if !r.exists || h.mayHaveExpired(&r, end) {
		gone := r
		gone.remove(h.Strict)
		results = h.apply(results, gone, o)
	}
	return results
}

// mayLive reports whether an existing key can be there at some time between now and end.
func (h *History) mayLive(r *register, end time.Duration) bool {
	if r.ttl == 0 || r.now-r.ttl-tolerance <= r.to {
		return true
	}
	for _, restart := range h.Restarts {
		if restart.Ready >= r.from && restart.Dead <= end && r.now <= restart.Ready+r.longest+tolerance {
			return true
		}
	}
	return false
}

// mayHaveExpired reports whether an existing key can be gone at some time between now and end,
// because it expired.
func (h *History) mayHaveExpired(r *register, end time.Duration) bool {
	if r.ttl == 0 {
		return false
	}
	begins := r.from // of the lifetime
	for _, restart := range h.Restarts {
		if restart.Dead < r.to {
			continue // the value may have been set after it
		}
		if begins+r.ttl-tolerance <= min(restart.Dead, end) {
			return true
		}
		begins = restart.Dead
	}
	return begins+r.ttl-tolerance <= end
}

// apply adds the register after an operation to results, unless the operation cannot have had
// its result. Whether the key exists is decided.
func (h *History) apply(results []register, r register, o *Operation) []register {
	if o.Kind == Get || o.Kind == Notified {
		return h.read(results, r, o)
	}
	var refusal Result // Unknown: none
	switch {
	case !r.token.IsZero() && o.Token.IsZero():
		refusal = NeedsToken
	case o.Token.Compare(r.token) < 0:
		refusal = LowerToken
	case !r.exists:
		if o.Kind != Set {
			refusal = Absent
		}
	case o.Kind == Set && o.Condition == transport.IfMissing,
		o.Kind == Set && o.Condition == transport.IfMissingOrEqual && r.value != o.Value,
		o.Kind == VDel && r.value != o.Value:
		refusal = Failed
	}
	if refusal != Unknown {
		if o.Result != Unknown && o.Result != refusal {
			return results
		}
		if refusal == Absent {
			r.raise(o.Token)
		}
		if o.Result == Failed {
			return h.told(results, r, o)
		}
		return append(results, r) // nothing else changed
	}
	if o.Result != Done && o.Result != Unknown {
		return results
	}
	if o.Kind != Set {
		r.raise(o.Token)
		r.remove(h.Strict)
		return append(results, r)
	}
	if o.Result == Done && o.Version.Compare(r.above) <= 0 {
		return results // versions rise
	}
	longest := o.TTL
	if r.exists && r.value == o.Value && o.TTL > 0 {
		longest = max(longest, r.longest) // a renewal for a shorter time leaves the record as it is
	}
	next := r
	next.exists, next.value, next.version, next.since = true, o.Value, o.Version, r.now
	next.token, next.from, next.to, next.ttl, next.longest = higher(r.token, o.Token), r.now, o.end(), o.TTL, longest
	if o.Result == Done {
		next.above = o.Version
	}
	return append(results, next)
}

// read adds the register after a GET or a notification.
func (h *History) read(results []register, r register, o *Operation) []register {
	if r.exists != (o.Result == Done) || r.exists && r.value != o.Read {
		return results
	}
	if !r.exists && o.Kind == Get {
		return append(results, r)
	}
	return h.told(results, r, o)
}

// remove makes the key go away. Its version stays known, for the notification of that.
func (r *register) remove(strict bool) {
	r.exists, r.value = false, ""
	if !strict {
		r.token = hlc.Token{}
	}
}

// raise makes the fence of a protected key as high as the token of a DEL or VDEL.
func (r *register) raise(token hlc.Token) {
	if !r.token.IsZero() {
		r.token = higher(r.token, token)
	}
}

// told adds the register after an operation whose reply told the version of the value.
func (h *History) told(results []register, r register, o *Operation) []register {
	restarted := func(one Restart) bool { return one.Ready >= r.since && one.Dead <= o.end() }
	switch {
	case o.Version.IsZero() || o.Version == r.version:
		return append(results, r)
	case o.Version.Compare(r.above) <= 0:
		return results
	case r.version.IsZero(), r.ttl > 0 && slices.ContainsFunc(h.Restarts, restarted):
		// A restart gives a key with a lifetime a new version.
		r.version, r.above, r.since = o.Version, o.Version, r.now
		return append(results, r)
	}
	return results
}

func higher(a, b hlc.Token) hlc.Token {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}
