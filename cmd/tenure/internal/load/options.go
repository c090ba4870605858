package load

import (
	"cmp"
	"context"
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
	// Clients is how many clients there are. Default 1.
	Clients int
	// InFlight is how many operations each client has under way at most. Default 1.
	InFlight int
	// Verbs are the operations, in turn. Default: Set and Get.
	Verbs []Verb
	// Duration is how long requests are sent. Default 10 s.
	Duration time.Duration
	// Rate is how many operations all clients together begin in a second. 0: as many as the store
	// answers.
	Rate float64
	// Prefix is before each key, without a slash at its end. It must be the run's own.
	Prefix string
	// ValueSize is the length of the values in bytes. Default 64, at least 8.
	ValueSize int
	// Progress, if not nil, is called about every ProgressEvery (default 500 ms) while requests are
	// sent, from one goroutine.
	Progress      func(Progress)
	ProgressEvery time.Duration
}

// Check returns what is wrong with the options, other than Dial; nil: nothing.
func (o Options) Check() error { return o.complete() }

// complete fills in defaults and rejects nonsense.
func (o *Options) complete() error {
	o.Clients, o.InFlight = cmp.Or(o.Clients, 1), cmp.Or(o.InFlight, 1)
	o.Duration, o.ValueSize = cmp.Or(o.Duration, 10*time.Second), cmp.Or(o.ValueSize, 64)
	o.ProgressEvery = cmp.Or(o.ProgressEvery, 500*time.Millisecond)
	if len(o.Verbs) == 0 {
		o.Verbs = []Verb{Set, Get}
	}
	switch {
	case o.Clients < 1 || o.Clients > MaxClients:
		return fmt.Errorf("%d clients: choose from 1 to %d", o.Clients, MaxClients)
	case o.InFlight < 1 || o.InFlight > MaxInFlight:
		return fmt.Errorf("%d operations in flight: choose from 1 to %d for each client", o.InFlight, MaxInFlight)
	case o.Clients*o.InFlight > MaxWorkers:
		return fmt.Errorf("%d clients with %d operations in flight each: at most %d in all", o.Clients, o.InFlight, MaxWorkers)
	case o.Duration < time.Millisecond || o.Duration > MaxDuration:
		return fmt.Errorf("a duration of %v: choose from 1ms to %v", o.Duration, MaxDuration)
	case math.IsNaN(o.Rate) || o.Rate < 0 || o.Rate > MaxRate:
		return fmt.Errorf("a rate of %v operations per second: choose from 0, for no rate, to %d", o.Rate, MaxRate)
	case o.ValueSize < minValueSize || o.ValueSize > MaxValueSize:
		return fmt.Errorf("values of %d bytes: choose from %d to %d", o.ValueSize, minValueSize, MaxValueSize)
	case o.Prefix == "":
		return fmt.Errorf("the prefix of the keys is empty: all keys of the run need one of its own")
	}
	for _, verb := range o.Verbs {
		if !slices.Contains(Verbs, verb) {
			return fmt.Errorf("unknown operation %q: choose from set, get and lease", string(verb))
		}
	}
	return nil
}

// ParseVerbs parses names of operations, such as "set" and "get". A name may come more than once: then
// the operation has a larger share.
func ParseVerbs(names []string) ([]Verb, error) {
	verbs := make([]Verb, 0, len(names))
	for _, name := range names {
		verb := Verb(strings.ToLower(strings.TrimSpace(name)))
		if !slices.Contains(Verbs, verb) {
			return nil, fmt.Errorf("unknown operation %q: choose from set, get and lease", name)
		}
		verbs = append(verbs, verb)
	}
	return verbs, nil
}
