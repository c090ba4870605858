package engine

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// An operation is one request for the key k, as its caller saw it.
type operation struct {
	words          []string
	value          string        // of SET and VDEL
	condition      string        // of SET: "", NX or NEX
	lifetime       time.Duration // of SET; 0: none
	token          int           // 0: none
	at             time.Duration // when it was made, in virtual time, which stands still during the call
	called, answer int64         // the order of calls and answers of all clients
	reply          statestore.Reply
}

func (o operation) String() string {
	return fmt.Sprintf("%3d–%3d at %v: %q token %d: %v %q %v %v", o.called, o.answer, o.at, o.words, o.token,
		o.reply.Outcome, o.reply.Value, o.reply.Version, o.reply.Err)
}

// A register is the model: what docs/protocol.md §2.2 and §4.3 say about one key.
type register struct {
	exists          bool
	value           string
	version, latest hlc.Timestamp // of the value; of all values so far
	deadline        time.Duration // 0: none
	token           int
}

// apply returns the register after an operation, and false if the operation cannot have had
// its reply here.
func (r register) apply(o operation) (register, bool) {
	if r.exists && r.deadline != 0 && o.at >= r.deadline {
		r = register{latest: r.latest}
	}
	got := o.reply
	if o.words[0] == "GET" {
		if !r.exists {
			return r, got.Outcome == statestore.Missing
		}
		return r, got.Outcome == statestore.Found && got.Value == r.value && got.Version == r.version
	}
	switch {
	case r.token > 0 && o.token == 0:
		return r, got.Err == protocol.FencingTokenRequired
	case o.token < r.token:
		return r, got.Err == protocol.FencingTokenLower
	}
	if o.words[0] != "SET" {
		switch {
		case !r.exists:
			return r, got.Outcome == statestore.NothingThere
		case o.words[0] == "VDEL" && r.value != o.value:
			return r, got.Outcome == statestore.ConditionFailed
		}
		return register{latest: r.latest}, got.Outcome == statestore.Deleted && got.Version == r.version
	}
	if r.exists && (o.condition == "NX" || o.condition == "NEX" && r.value != o.value) {
		return r, got.Outcome == statestore.ConditionFailed && got.Version == r.version
	}
	ok := got.Outcome == statestore.OK && got.Version.Compare(r.latest) > 0
	r = register{exists: true, value: o.value, version: got.Version, latest: got.Version, token: max(r.token, o.token)}
	if o.lifetime > 0 {
		r.deadline = o.at + o.lifetime
	}
	return r, ok
}

// isLinearizable reports whether the operations can have been applied one after the other, each
// between its call and its reply.
func isLinearizable(history []operation) bool {
	type state struct {
		done     uint64
		register register
	}
	failed := make(map[state]bool)
	var search func(state) bool
	search = func(s state) bool {
		if s.done == 1<<len(history)-1 {
			return true
		}
		if failed[s] {
			return false
		}
		first := int64(1) << 62 // of the answers still to come
		for i, o := range history {
			if s.done&(1<<i) == 0 {
				first = min(first, o.answer)
			}
		}
		for i, o := range history {
			if s.done&(1<<i) != 0 || o.called > first {
				continue
			}
			if next, ok := s.register.apply(o); ok && search(state{s.done | 1<<i, next}) {
				return true
			}
		}
		failed[s] = true
		return false
	}
	return search(state{})
}

// randomOperation returns a request that often meets the values and tokens of others.
func randomOperation(random *rand.Rand) (o operation) {
	o.value = strconv.Itoa(random.IntN(3))
	switch o.words = []string{[]string{"SET", "SET", "SET", "GET", "GET", "DEL", "VDEL"}[random.IntN(7)], "k"}; o.words[0] {
	case "SET":
		o.words = append(o.words, o.value)
		if o.condition = []string{"", "NX", "NEX", "NEX"}[random.IntN(4)]; o.condition != "" {
			o.words = append(o.words, o.condition)
		}
		if random.IntN(2) == 0 {
			o.lifetime = time.Duration(1+random.IntN(4)) * time.Millisecond
			o.words = append(o.words, "PX", strconv.FormatInt(o.lifetime.Milliseconds(), 10))
		}
	case "VDEL":
		o.words = append(o.words, o.value)
	}
	if random.IntN(4) == 0 {
		o.token = 1 + random.IntN(3)
	}
	return o
}

// Invariant 30: the replies to concurrent clients are possible replies to one client after the
// other, for all conditions, lifetimes and tokens; also while replies wait for a slow journal.
func TestInvariant30HistoriesAreLinearizable(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { testHistories(t, func() statestore.Journal { return nil }) })
	for _, latency := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
		t.Run("with a journal that takes "+latency.String(), func(t *testing.T) {
			testHistories(t, func() statestore.Journal {
				slow := newDisk()
				slow.latency = latency
				return slow
			})
		})
	}
}

func testHistories(t *testing.T, journal func() statestore.Journal) {
	const rounds, clients, requests = 300, 4, 8
	for seed := range uint64(rounds) {
		synctest.Test(t, func(t *testing.T) {
			b := newBenchOn(t, journal())
			b.run()
			defer b.end()
			var order atomic.Int64
			var tasks sync.WaitGroup
			histories := make([][]operation, clients)
			for client := range clients {
				tasks.Go(func() {
					random := rand.New(rand.NewPCG(seed, uint64(client)))
					for range requests {
						o := randomOperation(random)
						o.at = time.Since(b.started)
						ts := hlc.Timestamp{Wall: time.Now().UnixMilli(), Node: "c"}.String()
						request := statestore.Request{Client: strconv.Itoa(client), Payload: resp3.AppendCommand(nil, o.words...), Timestamp: &ts}
						if o.token > 0 {
							token := hlc.Timestamp{Wall: int64(o.token), Node: "n"}.String()
							request.FencingToken = &token
						}
						o.called = order.Add(1)
						o.reply, _ = b.engine.Apply(statestore.Parse(request))
						o.answer = order.Add(1)
						histories[client] = append(histories[client], o)
						time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
					}
				})
			}
			await.Done(tasks.Wait)
			var all []operation
			for _, history := range histories {
				all = append(all, history...)
			}
			if len(all) != clients*requests {
				t.Fatalf("seed %d: %d operations of %d were answered", seed, len(all), clients*requests)
			}
			if !isLinearizable(all) {
				for _, o := range all {
					t.Log(o)
				}
				t.Fatalf("seed %d: the history is not linearizable", seed)
			}
		})
	}
}

func TestAHistoryWithAStaleReadIsNotLinearizable(t *testing.T) {
	version := func(counter uint64) hlc.Timestamp { return hlc.Timestamp{Wall: 1, Counter: counter, Node: "s"} }
	set := func(value string, called, answer int64) operation {
		return operation{words: []string{"SET", "k", value}, value: value, called: called, answer: answer,
			reply: statestore.Reply{Outcome: statestore.OK, Version: version(uint64(called))}}
	}
	read := func(called, answer int64) operation { // of the first value
		return operation{words: []string{"GET", "k"}, called: called, answer: answer,
			reply: statestore.Reply{Outcome: statestore.Found, Value: "a", Version: version(1)}}
	}
	if history := []operation{set("a", 1, 2), set("b", 3, 6), read(4, 5)}; !isLinearizable(history) {
		t.Error("a read during a write may return the earlier value")
	}
	if history := []operation{set("a", 1, 2), set("b", 3, 4), read(5, 6)}; isLinearizable(history) {
		t.Error("a read after a write may not return the earlier value")
	}
}
