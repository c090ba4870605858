package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// Verb is a kind of operation.
type Verb string

// The kinds of operations.
const (
	// Set sets a key to another value: a change, which a durable store commits.
	Set Verb = "set"
	// Get reads a key that exists.
	Get Verb = "get"
	// Lease acquires a lease and releases it: two requests, which count as one operation.
	Lease Verb = "lease"
)

// Verbs are all kinds of operations.
var Verbs = []Verb{Set, Get, Lease}

// Bounds of the options.
const (
	MaxClients   = 10_000
	MaxInFlight  = 1_000   // for each client
	MaxWorkers   = 100_000 // Clients times InFlight
	MaxRate      = 1_000_000
	MaxDuration  = 24 * time.Hour
	MaxValueSize = 1 << 20
)

// minValueSize is room for the number that makes each value another one.
const minValueSize = 8

// Options describes a run.
type Options struct {
	// Dial connects a client; index counts from 0. Run closes the client. Dial is called from
	// several goroutines at a time.
	Dial func(ctx context.Context, index int) (*transport.Client, error)
	// Clients is how many clients there are.
	Clients int
	// InFlight is how many operations each client has under way at most.
	InFlight int
	// Verbs are the operations, in turn; one that comes twice has twice the share.
	Verbs []Verb
	// Duration is how long requests are sent.
	Duration time.Duration
	// Rate is how many operations all clients together begin in a second. 0: as many as the store
	// answers.
	Rate float64
	// Prefix is before each key, without a slash at its end. It must be the run's own.
	Prefix string
	// ValueSize is the length of the values in bytes, at least 8.
	ValueSize int
	// Progress, if not nil, is called about every ProgressEvery (default 500 ms) while requests are
	// sent, from one goroutine.
	Progress      func(Progress)
	ProgressEvery time.Duration
}

// Check returns what is wrong with the options, other than Dial; nil: nothing. The error names the option.
func (o Options) Check() error {
	switch {
	case o.Clients < 1 || o.Clients > MaxClients:
		return fmt.Errorf("load: Options.Clients %d: choose from 1 to %d", o.Clients, MaxClients)
	case o.InFlight < 1 || o.InFlight > MaxInFlight:
		return fmt.Errorf("load: Options.InFlight %d: choose from 1 to %d for each client", o.InFlight, MaxInFlight)
	case o.Clients*o.InFlight > MaxWorkers:
		return fmt.Errorf("load: Options.Clients %d with %d operations in flight each: choose at most %d in all", o.Clients, o.InFlight, MaxWorkers)
	case o.Duration < time.Millisecond || o.Duration > MaxDuration:
		return fmt.Errorf("load: Options.Duration %v: choose from 1ms to %v", o.Duration, MaxDuration)
	case math.IsNaN(o.Rate) || o.Rate < 0 || o.Rate > MaxRate:
		return fmt.Errorf("load: Options.Rate %v: choose from 0, for no rate, to %d operations per second", o.Rate, MaxRate)
	case o.ValueSize < minValueSize || o.ValueSize > MaxValueSize:
		return fmt.Errorf("load: Options.ValueSize %d: choose from %d to %d", o.ValueSize, minValueSize, MaxValueSize)
	case o.Prefix == "":
		return errors.New("load: Options.Prefix is empty: all keys of the run need one of its own")
	}
	_, err := ParseVerbs(o.Verbs)
	return err
}

// ParseVerbs parses names of operations, such as "set" and "get". A name may come more than once: then
// the operation has a larger share.
func ParseVerbs[Name ~string](names []Name) ([]Verb, error) {
	if len(names) == 0 {
		return nil, errors.New("there is none: choose from set, get and lease")
	}
	verbs := make([]Verb, 0, len(names))
	for _, name := range names {
		verb := Verb(strings.ToLower(strings.TrimSpace(string(name))))
		if !slices.Contains(Verbs, verb) {
			return nil, fmt.Errorf("unknown operation %q: choose from set, get and lease", string(name))
		}
		verbs = append(verbs, verb)
	}
	return verbs, nil
}
