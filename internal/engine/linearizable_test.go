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
	token          hlc.Token     // zero: none
	at             time.Duration // when it was made, in virtual time, which stands still during the call
	called, answer int64         // the order of calls and answers of all clients
	reply          statestore.Reply
}

func (o operation) String() string {
	return fmt.Sprintf("%3d–%3d at %v: %q token %v: %v %q %v %v", o.called, o.answer, o.at, o.words, o.token,
		o.reply.Outcome, o.reply.Value, o.reply.Version, o.reply.Err)
}

// A register is the model: what docs/protocol.md §2.2 and §4.3 say about one key.
type register struct {
	exists          bool
	value           string
	version, latest hlc.Timestamp // of the value, zero after a restart; of all values so far
	deadline        time.Duration // 0: none
	lifetime        time.Duration // with which the value was set, or longer: its record's
	token           hlc.Token
	strict          bool // the store keeps fences
}

// at returns the register at a time.
func (r register) at(now time.Duration) register {
	if r.exists && r.deadline != 0 && now >= r.deadline {
		return r.gone()
	}
	return r
}

// gone returns the register without its value.
func (r register) gone() register {
	if !r.strict {
		r.token = hlc.Token{}
	}
	return register{latest: r.latest, token: r.token, strict: r.strict}
}

// raised returns the register after a token was used on a protected key.
func (r register) raised(token hlc.Token) register {
	if !r.token.IsZero() {
		r.token = higher(r.token, token)
	}
	return r
}

// has reports whether the value can have a version, and notes it.
func (r *register) has(version hlc.Timestamp) bool {
	if r.version.IsZero() && version.Compare(r.latest) > 0 {
		r.version, r.latest = version, version
	}
	return r.version == version
}

// renews reports whether a SET changes nothing that a restart must know.
func (r *register) renews(o operation) bool {
	return r.exists && r.value == o.value && o.lifetime > 0 && o.lifetime <= r.lifetime && o.token.Compare(r.token) <= 0
}

// apply returns the register after an operation, and false if the operation cannot have had
// its reply here.
func (r register) apply(o operation) (register, bool) {
	r = r.at(o.at)
	got := o.reply
	if o.words[0] == "GET" {
		if !r.exists {
			return r, got.Outcome == statestore.Missing
		}
		return r, got.Outcome == statestore.Found && got.Value == r.value && r.has(got.Version)
	}
	switch {
	case !r.token.IsZero() && o.token.IsZero():
		return r, got.Err == protocol.FencingTokenRequired
	case o.token.Compare(r.token) < 0:
		return r, got.Err == protocol.FencingTokenLower
	}
	if o.words[0] != "SET" {
		switch {
		case !r.exists:
			return r.raised(o.token).gone(), got.Outcome == statestore.NothingThere
		case o.words[0] == "VDEL" && r.value != o.value:
			return r, got.Outcome == statestore.ConditionFailed
		}
		ok := got.Outcome == statestore.Deleted && r.has(got.Version)
		return r.raised(o.token).gone(), ok
	}
	if r.exists && (o.condition == "NX" || o.condition == "NEX" && r.value != o.value) {
		return r, got.Outcome == statestore.ConditionFailed && r.has(got.Version)
	}
	ok := got.Outcome == statestore.OK && got.Version.Compare(r.latest) > 0
	lifetime := o.lifetime
	if r.renews(o) {
		lifetime = r.lifetime
	}
	r = register{exists: true, value: o.value, version: got.Version, latest: got.Version, lifetime: lifetime, token: higher(r.token, o.token), strict: r.strict}
	if o.lifetime > 0 {
		r.deadline = o.at + o.lifetime
	}
	return r, ok
}

func higher(a, b hlc.Token) hlc.Token {
	if a.Compare(b) < 0 {
		return b
	}
	return a
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
		o.token = hlc.Token{Wall: int64(1 + random.IntN(3)), Node: "n"}
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
	const rounds, clients, requests = 100, 4, 8
	for seed := range uint64(rounds) {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, journal(), statestore.Options{})
			defer b.close()
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
						if !o.token.IsZero() {
							token := o.token.String()
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
