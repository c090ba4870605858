package statestore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// A strictRun is a strict store with limits, a program that drives it, and what
// must never be seen of it.
type strictRun struct {
	*world
	fences map[string]hlc.Token // the newest token that each key was ever protected by
	last   string
}

var (
	strictOptions = Options{
		MaxKeys: 4, MaxBytes: 40, MaxValue: 8, MaxWatches: 2, DedupWindow: 3,
		Strict: true, LockPrefixes: []string{"lock"},
	}
	strictKeys   = []string{"k", "l", "lock", "m", "\x00"}
	strictValues = []string{"", "v", "a:1", "b:1", "123456789"}
	strictTokens = []string{"", "1:0:n", "2:0:n", "2:0:m", "1696374425000:1:StateStore", "1696374430000:0:n"}
	strictVerbs  = []string{"SET", "SET", "SET", "GET", "DEL", "VDEL", "KEYNOTIFY"}
)

func (s *strictRun) step(p *program) {
	s.tb.Helper()
	verb := strictVerbs[p.next()%len(strictVerbs)]
	key := strictKeys[p.next()%len(strictKeys)]
	value := strictValues[p.next()%len(strictValues)]
	client := programClients[p.next()%2]
	token := strictTokens[p.next()%len(strictTokens)]
	correlation := fmt.Sprint(p.next() % 6)
	if correlation > "2" {
		correlation = strings.Repeat(correlation, 17) // is hashed
	}
	how := p.next()
	words := []string{verb, key}
	switch verb {
	case "SET":
		words = append(words, value)
		words = append(words, [][]string{nil, {"NX"}, {"NEX"}, {"PX", "5"}, {"PX", "9", "NEX"}}[how%5]...)
	case "VDEL":
		words = append(words, value)
	case "KEYNOTIFY":
		words = append(words, [][]string{nil, nil, {"STOP"}}[how%3]...)
	}
	s.pass(time.Duration(how%4) * time.Millisecond)
	incoming := Request{Client: client, Payload: []byte(payload(words...)), Delivery: Redelivery, Correlation: []byte(correlation)}
	ts := "0:0:c"
	incoming.Timestamp = &ts
	if token != "" {
		incoming.FencingToken = &token
	}
	reply, _ := s.store.Apply(s.now, Parse(incoming))
	again, notified := s.store.Apply(s.now, Parse(incoming))
	if verb != "GET" && (again.Outcome != reply.Outcome || again.Version != reply.Version || again.Err != reply.Err || len(notified.Notifications) > 0) {
		s.tb.Fatalf("%q delivered again: %v, %v; the first time %v", words, again, notified.Notifications, reply)
	}
	if reply.Outcome == OK && verb == "SET" {
		s.applied(key, value, client, reply, Parse(incoming))
	}
	s.invariants()
}

func (s *strictRun) applied(key, value, client string, reply Reply, command Command) {
	s.tb.Helper()
	version := reply.Version.String()
	fence := s.fences[key]
	// The reply to a redelivery has an earlier version.
	if s.last == "" || s.compare(version, s.last) > 0 {
		s.last = version
		if !fence.IsZero() && (command.token.Compare(fence) < 0) {
			s.tb.Fatalf("SET %q with token %v was accepted after %v", key, command.token, fence)
		}
		if command.token.Compare(fence) > 0 {
			s.fences[key] = command.token
		}
	}
	if strings.HasPrefix(key, "lock") && !strings.HasPrefix(value, client+":") {
		s.tb.Fatalf("client %q holds the lock %q as %q", client, key, value)
	}
}

func (s *strictRun) invariants() {
	s.tb.Helper()
	bytes, keys := int64(0), 0
	for _, e := range s.store.entries {
		bytes += e.size()
		keys++
		if fence := s.fences[e.key]; e.token().Compare(fence) < 0 {
			s.tb.Fatalf("the fence of %q went back from %v to %v", e.key, fence, e.token())
		}
		if len(e.value) > strictOptions.MaxValue {
			s.tb.Fatalf("%q holds %d bytes", e.key, len(e.value))
		}
	}
	for key := range s.store.fences {
		bytes += int64(len(key)) + tokenSize(s.store.fences[key])
		keys++
		if s.store.entries[key] != nil {
			s.tb.Fatalf("%q has a fence in two places", key)
		}
	}
	if bytes != s.store.bytes || bytes > strictOptions.MaxBytes || keys > strictOptions.MaxKeys {
		s.tb.Fatalf("%d keys with %d bytes, counted as %d", keys, bytes, s.store.bytes)
	}
	for client, watched := range s.store.watches.byClient {
		if len(watched.keys) > strictOptions.MaxWatches {
			s.tb.Fatalf("%q watches %d keys", client, len(watched.keys))
		}
	}
	s.checkWatches()
	recorded := 0
	for client, session := range s.store.sessions.byClient {
		recorded += len(session.ring)
		if len(session.ring) > strictOptions.DedupWindow {
			s.tb.Fatalf("the window of %q has %d replies", client, len(session.ring))
		}
	}
	if usage := s.store.Usage(); usage.DedupEntries != recorded || usage.Keys+usage.Fences != keys || usage.Bytes != bytes {
		s.tb.Fatalf("the usage is %+v; %d requests are recorded", usage, recorded)
	}
}

// Invariants 15, 23 and 44 in a strict store with every limit set: whatever clients
// send, a fence never goes back, nothing is applied twice, no limit is exceeded.
func FuzzStrict(f *testing.F) {
	random := rand.New(rand.NewPCG(15, 23))
	for range 50 {
		seed := make([]byte, 420)
		for i := range seed {
			seed[i] = byte(random.IntN(256))
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		s := &strictRun{world: newWorld(t, strictOptions), fences: make(map[string]hlc.Token)}
		for p := (program{steps}); len(p.rest) > 0; {
			switch p.next() % 16 {
			case 0:
				s.store.Expire(s.now, 2)
			case 1:
				s.store.Disconnect(s.now, programClients[p.next()%2], math.MaxInt)
			case 2:
				s.store.EndSession(programClients[p.next()%2])
			default:
				s.step(&p)
			}
			s.invariants()
		}
	})
}
