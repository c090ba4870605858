package cluster

import (
	"encoding/json"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// claim is the value of the election key.
type claim struct {
	Term    string `json:"term"`
	Address string `json:"address"`
	// Standing is how long, in nanoseconds, this process or one before it may answer after
	// another one has taken the key.
	Standing time.Duration `json:"standing"`
	// Resigned says that the process answers nothing any more, nor does one before it.
	Resigned bool `json:"resigned,omitempty"`
	// Silent says that clients of a process before this one may not have noticed its end. It stays in
	// the claims after that while one of them may believe in a lease.
	Silent bool `json:"silent,omitempty"`
}

// inherit returns how long the processes before may still answer after this one has taken the election
// key from seen, and notes what the process after this one must know. last is the claim before of the same
// process, and standing how long a proof of this one is valid.
func (c *claim) inherit(seen observation, last claim, standing time.Duration) (wait time.Duration) {
	c.Silent = seen.claim.Silent
	switch {
	case !seen.used: // there has been no active process
	case seen.revision == 0: // the key was deleted by hand
		wait, c.Silent = MaxStanding, true
	case seen.claim.Resigned, seen.claim.Term == last.Term && last.Resigned:
	default:
		wait, c.Silent = seen.claim.Standing, true
	}
	c.Standing = max(standing, wait)
	return wait
}

// resign returns the claim with which a process says that it answers nothing any more, left before the process
// before it does not either.
func (c claim) resign(left time.Duration) claim {
	c.Resigned = left <= 0
	c.Silent = c.Silent && -left < statestore.SilentFor
	return c
}

func (c claim) encode() string {
	value, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings, numbers and flags only
	}
	return string(value)
}

// decodeClaim reads a claim. A value that this package did not write becomes a claim with the longest standing.
func decodeClaim(value []byte) (c claim) {
	if json.Unmarshal(value, &c) != nil || len(c.Address) > maxAddress || c.Standing < 0 || c.Standing > MaxStanding {
		return claim{Standing: MaxStanding}
	}
	return c
}
