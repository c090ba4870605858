package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// registers are keys on which clients do everything that the protocol has, at random. Their
// histories are checked as a whole. Each life of the store brings new keys, which are used for
// two lives, so that each history is short and has a crash in it.
type registers struct {
	recorder *recorder
	strict   bool

	mu          sync.Mutex
	generations []*generation // that are used
	count       int

	checks   sync.WaitGroup
	checking sync.Mutex // one check at a time
}

// generation is a set of keys.
type generation struct {
	began    time.Duration
	base     hlc.Timestamp // an early version; tokens are just below it
	keys     []*registerKey
	inflight sync.WaitGroup
	over     chan struct{} // closed when the keys are no longer used
}

// registerKey is one key, and what was done to it.
type registerKey struct {
	name          string
	fenced, brief bool // some requests have tokens; some lifetimes are very short

	mu         sync.Mutex
	operations []Operation
	begun      int
	notified   int
	written    map[string]time.Duration // when the first request to write a value began
	last       string                   // the value that was read or written last
}

const (
	keysPerGeneration = 5
	// mostOperations bounds the operations on a key.
	mostOperations = 120
)

// rotate adds new keys, and has the histories of the oldest ones checked.
func (g *registers) rotate() *generation {
	g.retire(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count++
	fresh := &generation{began: g.recorder.now(), base: g.recorder.saw(hlc.Timestamp{}), over: make(chan struct{})}
	for i := range keysPerGeneration {
		fresh.keys = append(fresh.keys, &registerKey{
			name:    fmt.Sprintf("register/%d/%d", g.count, i),
			fenced:  i == 1 || i == 3,
			brief:   i >= 2,
			written: make(map[string]time.Duration),
		})
	}
	g.generations = append(g.generations, fresh)
	return fresh
}

// retire keeps the latest generations, and checks the histories of the other keys.
func (g *registers) retire(keep int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.generations) > keep {
		old := g.generations[0]
		g.generations = g.generations[1:]
		close(old.over)
		g.checks.Go(func() {
			old.inflight.Wait() // each operation has a timeout
			restarts := g.recorder.restartsNear(old.began)
			for _, key := range old.keys {
				g.check(&History{Operations: key.operations, Restarts: restarts, Strict: g.strict})
			}
		})
	}
}

func (g *registers) check(h *History) {
	g.checking.Lock()
	defer g.checking.Unlock()
	select {
	case <-g.recorder.broken: // the run is over, and this check need not find the same again
		return
	default:
	}
	if verdict := h.Check(patience); verdict != porcupine.Ok {
		g.recorder.violated("the check of a history says %v:\n%v", verdict, h)
	}
	g.recorder.count(histories, 1)
}

// choose returns a key for one operation, which must call generation.inflight.Done.
func (g *registers) choose(random *rand.Rand) (*generation, *registerKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.generations[random.IntN(len(g.generations))]
	of.inflight.Add(1)
	return of, of.keys[random.IntN(len(of.keys))]
}

// use does random operations on the keys until ctx ends.
func (g *registers) use(ctx context.Context, s *session, random *rand.Rand) {
	own := 0
	for ctx.Err() == nil {
		sleep.For(ctx, time.Duration(random.IntN(6000))*time.Microsecond)
		of, key := g.choose(random)
		if o, ok := key.begin(g, of, s.number, &own, random); ok {
			key.end(s.do(ctx, o))
		}
		of.inflight.Done()
	}
}

// visit reads one of the keys, from a process that was deposed: what it answers must be true.
func (g *registers) visit(ctx context.Context, s *session, random *rand.Rand) {
	of, key := g.choose(random)
	defer of.inflight.Done()
	if key.mayBegin() {
		g.recorder.count(visits, 1)
		key.end(s.do(ctx, Operation{Kind: Get, Key: key.name}))
	}
}

// mayBegin counts an operation, and reports whether there were not enough before.
func (k *registerKey) mayBegin() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begun++
	return k.begun <= mostOperations
}

// What clients do to a key, and on which condition, as often as it is here.
var (
	kinds      = []Kind{Get, Get, Get, Get, Get, Set, Set, Set, Set, Set, Set, Set, Set, Del, VDel, VDel, VDel}
	conditions = []transport.Condition{
		transport.IfMissingOrEqual, transport.IfMissingOrEqual, transport.IfMissingOrEqual,
		transport.IfMissing, transport.Always, transport.Always,
	}
)

// begin returns a random operation, and false if there were enough.
func (k *registerKey) begin(g *registers, of *generation, client int, own *int,
	random *rand.Rand) (o Operation, ok bool) {
	if !k.mayBegin() {
		return o, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	o.Key = k.name
	o.Kind = kinds[random.IntN(len(kinds))]
	*own++
	o.Value = fmt.Sprintf("%d-%d", client, *own)
	if o.Kind == VDel || random.IntN(3) == 0 {
		o.Value = k.last // a renewal, perhaps another client's
	}
	if o.Kind == Set {
		o.Condition = conditions[random.IntN(len(conditions))]
		switch {
		case k.brief && random.IntN(3) > 0:
			o.TTL = time.Duration(10+random.IntN(60)) * time.Millisecond
		case random.IntN(3) == 0:
			o.TTL = time.Duration(300+random.IntN(1500)) * time.Millisecond
		}
		if _, known := k.written[o.Value]; !known {
			k.written[o.Value] = g.recorder.now()
		}
	}
	if k.fenced && random.IntN(8) > 0 {
		token := of.base
		token.Wall -= int64(1 + random.IntN(4))
		token.Node = "token"
		o.Token = hlc.Token(token)
		if token.Wall < 1 {
			o.Token = hlc.Token{}
		}
	}
	return o, true
}

// end adds an operation to the history.
func (k *registerKey) end(o Operation) {
	if o.Result == notSent || o.Result == strange {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.operations = append(k.operations, o)
	switch {
	case o.Kind == Get && o.Result == Done:
		k.last = o.Read
	case o.Kind == Set && o.Result != Failed && o.Result != LowerToken && o.Result != NeedsToken:
		k.last = o.Value
	}
}

// watch adds the notifications about a generation of keys to their histories, until the keys
// are no longer used or ctx ends.
func (g *registers) watch(ctx context.Context, s *session, of *generation) {
	var watchers sync.WaitGroup
	for _, key := range of.keys {
		of.inflight.Add(1)
		watchers.Go(func() {
			defer of.inflight.Done()
			watch, err := s.Watch(key.name)
			if err != nil {
				return // the client was closed
			}
			defer watch.Close()
			for {
				select {
				case <-ctx.Done():
					return
				case <-of.over:
					return
				case change, open := <-watch.Changes():
					if !open {
						return
					}
					key.hear(s, change, of.began)
				}
			}
		})
	}
	watchers.Wait()
}

// hear adds a notification to the history, unless there are enough.
func (k *registerKey) hear(s *session, change transport.Change, since time.Duration) {
	o := Operation{Client: s.number, Kind: Notified, Key: k.name, Call: since, Return: s.recorder.now(),
		Result: Absent, Version: change.Version}
	s.recorder.saw(change.Version)
	s.recorder.count(notifications, 1)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.notified++; k.notified > mostOperations/3 {
		return
	}
	// The key was not so before the request began that made it so. The shorter the time in
	// which a notification can have arisen, the more it proves.
	if change.Exists {
		o.Result, o.Read = Done, string(change.Value)
		if at, known := k.written[o.Read]; known {
			o.Call = at
		}
	}
	k.operations = append(k.operations, o)
}
