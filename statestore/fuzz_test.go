package statestore

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/resp3"
)

// A program is a sequence of bytes that drives a store and its model side by side. After its end
// zeros follow to the end of its last step.
type program struct{ rest []byte }

func (p *program) next() int {
	if len(p.rest) == 0 {
		return 0
	}
	b := p.rest[0]
	p.rest = p.rest[1:]
	return int(b)
}

// The steps of a program. Each is one byte; requests have four more, raw payloads one
// for their length, and the others one for how much.
const (
	stepSet = iota // and the five after it
	stepGet = iota + 5
	stepDel
	stepVDel
	stepWatch
	stepStop
	stepPass
	stepWall
	stepExpire
	stepDisconnect
	stepRaw
	steps
)

var (
	programClients = []string{"a", "b", "c"}
	programKeys    = []string{"k", "lock", "\x00\r\n", "l"}
	programValues  = []string{"", "v", "vv", "*1\r\n"}
	programPX      = []int64{0, 1, 7, 50, math.MaxInt64}
	programTS      = []int64{0, 0, 0, 1, -1000, 60_000, 60_001} // ahead of the store's clock
	programCounter = []uint64{0, 1, 5, math.MaxUint64}
	programTokens  = []modelStamp{{9, 0, "n"}, {10, 0, "n"}, {10, 0, "m"}, {10, 2, "a"}, {0, 0, "a"}, {100, 10, "n"}}
)

// request returns a request. Some carry as their token the latest version of all.
func (p *program) request(step int, now Instant, latest modelStamp) modelRequest {
	r := modelRequest{verb: "SET"}
	switch step {
	case stepGet:
		r.verb = "GET"
	case stepDel:
		r.verb = "DEL"
	case stepVDel:
		r.verb = "VDEL"
	case stepWatch, stepStop:
		r.verb, r.stop = "KEYNOTIFY", step == stepStop
	}
	sender := p.next()
	r.client, r.key = programClients[sender%3], programKeys[sender/3%4]
	r.value = programValues[sender/12%4]
	r.denied = sender > 250
	what := p.next()
	r.condition = []string{"", "NX", "NEX"}[what%3]
	r.px = programPX[what/3%5]
	r.pxFirst = what/15%2 == 1
	ts := p.next()
	r.ts.stamp = modelStamp{max(now.WallMillis+programTS[ts%7], 0), programCounter[ts/7%4], "CLIENT"}
	r.ts.present = r.verb == "SET" && ts < 250 || ts%3 == 0
	r.ts.malformed = r.ts.present && ts/28 == 8
	ft := p.next()
	r.ft.present = ft%2 == 1
	r.ft.stamp = programTokens[ft/2%6]
	r.ft.malformed = r.ft.present && ft > 240
	if ft > 210 && ft <= 230 && latest.node != "" {
		r.ft.stamp = latest
	}
	if ft > 230 && ft <= 240 {
		r.ft.stamp = modelStamp{now.WallMillis + 60_000 + int64(ft%4/2), 0, "n"}
	}
	if !r.ts.present || r.ts.malformed {
		r.ts.stamp = modelStamp{}
	}
	if !r.ft.present || r.ft.malformed {
		r.ft.stamp = modelStamp{}
	}
	return r
}

// A race is a store and its model.
type race struct {
	*world
	model model
	last  modelStamp // the latest version
	trace []string
}

func (r *race) fatalf(format string, args ...any) {
	r.tb.Helper()
	r.tb.Fatalf("%s\nafter\n%s", fmt.Sprintf(format, args...), strings.Join(r.trace, "\n"))
}

func (r *race) run(p program) {
	r.tb.Helper()
	for len(p.rest) > 0 {
		switch step := p.next() % steps; step {
		case stepPass:
			d := time.Duration(p.next()) * time.Millisecond / 2
			r.trace = append(r.trace, fmt.Sprint("pass ", d))
			r.pass(d)
		case stepWall:
			r.now.WallMillis += int64(p.next()-128) * 997
			r.trace = append(r.trace, fmt.Sprint("wall clock at ", r.now.WallMillis))
		case stepDisconnect:
			client := programClients[p.next()%3]
			r.trace = append(r.trace, "disconnect "+client)
			r.model.disconnect(client)
			for r.store.Disconnect(r.now, client, 1) { // other requests come between the steps
				if m := p.request(stepSet+p.next()%9, r.now, r.last); m.client != client {
					r.apply(m)
				}
			}
			r.checkWatches()
		case stepExpire:
			r.expire(1 + p.next()%8)
		case stepRaw:
			n := min(p.next(), len(p.rest))
			r.raw(p.rest[:n])
			p.rest = p.rest[n:]
		default:
			r.apply(p.request(step, r.now, r.last))
		}
		r.check()
	}
	for range 10 {
		r.expire(3)
	}
	if keys, _ := r.model.live(r.now); r.store.Usage().Keys != keys {
		r.fatalf("in the end there are %d keys; want %d", r.store.Usage().Keys, keys)
	}
}

func (r *race) apply(m modelRequest) {
	r.tb.Helper()
	sent := m.request()
	r.trace = append(r.trace, fmt.Sprintf("%s: %q ts %q ft %q denied %t", sent.client, sent.words, sent.ts, sent.ft, sent.denied))
	touched := r.model.refused(r.now, m) == ""
	before := len(r.model.keys)
	answer, lines := r.send(sent)
	lines, err := r.model.expire(r.now, lines, m.key)
	if err != nil {
		r.fatalf("%v", err)
	}
	if !touched && len(r.model.keys) != before {
		r.fatalf("a request that was refused by itself made keys expire")
	}
	if touched && r.model.find(r.now, m.key) == nil {
		for _, k := range r.model.keys {
			if k.name == m.key && len(r.model.notify(k, true)) > 0 {
				r.fatalf("the expiry of %q was not announced before the reply", m.key)
			}
		}
		r.model.drop(m.key)
	}
	want, own := r.model.apply(r.now, m)
	if answer != want {
		r.fatalf("got %q; want %q", answer, want)
	}
	if !slices.Equal(lines, own) {
		r.fatalf("got notifications %q; want %q", lines, own)
	}
	if strings.HasPrefix(answer, "+OK\r\n@") {
		if !r.last.less(r.model.clock) || !m.ts.stamp.less(r.model.clock) {
			r.fatalf("version %s does not rise above %s", r.model.clock, r.last)
		}
		r.last = r.model.clock
	}
}

func (r *race) expire(limit int) {
	r.tb.Helper()
	r.trace = append(r.trace, fmt.Sprint("expire ", limit))
	expired, more := r.store.Expire(r.now, limit)
	rest, err := r.model.expire(r.now, r.lines(expired.Notifications), "")
	if err != nil || len(rest) > 0 {
		r.fatalf("Expire: %v; notifications that do not belong: %q", err, rest)
	}
	if more {
		return
	}
	for _, k := range r.model.keys {
		if k.gone(r.now) && len(r.model.notify(k, true)) > 0 {
			r.fatalf("Expire is done and %q was not announced", k.name)
		}
	}
	r.model.keys = slices.DeleteFunc(r.model.keys, func(k modelKey) bool { return k.gone(r.now) })
	if got := r.store.Usage().Keys; got != len(r.model.keys) {
		r.fatalf("Expire is done and there are %d keys; want %d", got, len(r.model.keys))
	}
}

// raw sends any bytes. A valid request goes to a store of its own, because the model cannot parse
// it. This store must refuse any other and not change.
func (r *race) raw(payload []byte) {
	r.tb.Helper()
	r.trace = append(r.trace, fmt.Sprintf("raw %q", payload))
	if Parse(Request{Payload: payload}).Err() == nil {
		newWorld(r.tb, r.model.options).sendPayload(request{}, string(payload))
		return
	}
	answer, lines := r.sendPayload(request{}, string(payload))
	if !strings.HasPrefix(answer, "-ERR ") || len(lines) > 0 {
		r.fatalf("got %q and notifications %q; want a refusal", answer, lines)
	}
}

// check compares what a caller can see of both.
func (r *race) check() {
	r.tb.Helper()
	live, _ := r.model.live(r.now)
	if got := r.store.Usage().Keys; got < live || got > len(programKeys) {
		r.fatalf("there are %d keys; want %d at least", got, live)
	}
	next, ok := r.store.NextExpiry()
	for _, k := range r.model.keys {
		if k.deadline != 0 && !k.gone(r.now) && (!ok || next-k.deadline >= time.Millisecond) {
			r.fatalf("NextExpiry is %v, %t, but %q expires at %v", next, ok, k.name, k.deadline)
		}
	}
}

var programOptions = []Options{{}, {MaxKeys: 2}, {MaxBytes: 8}, {MaxKeys: 3, MaxBytes: 16}}

// Invariants 13, 31, 36 and 44 against the model, for any requests and times.
func FuzzApply(f *testing.F) {
	random := rand.New(rand.NewPCG(44, 1))
	for range 100 {
		seed := make([]byte, 400)
		for i := range seed {
			seed[i] = byte(random.IntN(256))
		}
		f.Add(byte(random.IntN(256)), seed)
	}
	f.Add(byte(0), append([]byte{stepRaw, 22}, "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"...))
	f.Fuzz(func(t *testing.T, options byte, steps []byte) {
		limits := programOptions[int(options)%len(programOptions)]
		r := &race{world: newWorld(t, limits), model: model{options: limits}}
		r.run(program{steps})
	})
}

// Invariant 44: no payload and no property makes the store panic, and each gets an
// answer that a client can read.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n", "*2\r\n$3\r\nget\r\n$7\r\nSETKEY2\r\n",
		"*2\r\n$3\r\ndel\r\n$7\r\nSETKEY2\r\n", "*3\r\n$4\r\nvdel\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n",
		"*2\r\n$9\r\nKEYNOTIFY\r\n$7\r\nSOMEKEY\r\n", payload("SET", "k", "", "NEX", "PX", "9223372036854775808"),
		payload("KEYNOTIFY", "k", "GET", "STOP"), payload("GET", ""), "*0\r\n", "*1\r\n$-1\r\n", "*9999999\r\n$1\r\n",
	} {
		f.Add([]byte(text), "1696374425000:0:CLIENT", "")
		f.Add([]byte(text), "", "001696374425000:00000:CLIENT")
	}
	f.Fuzz(func(t *testing.T, payload []byte, ts, ft string) {
		original := bytes.Clone(payload)
		incoming := Request{Client: "c", Payload: payload, Timestamp: &ts, FencingToken: &ft}
		if ft == "" {
			incoming.FencingToken = nil
		}
		command := Parse(incoming)
		if !bytes.Equal(payload, original) {
			t.Errorf("Parse changed the payload to %q", payload)
		}
		if command.Err() == nil && (command.Verb == VerbUnknown || command.Key == "" || command.Lifetime < 0) {
			t.Errorf("%q was accepted as %+v", payload, command)
		}
		if _, err := resp3.DecodeArray(nil, payload); err != nil && command.Err() == nil {
			t.Errorf("%q was accepted: %v", payload, err)
		}
		w := newWorld(t, Options{MaxKeys: 1})
		w.set(ask("SET SETKEY2 ABC PX 1").fencedBy("1:0:n"))
		reply, notified := w.store.Apply(w.now, command)
		if command.Err() != nil && (reply.Outcome != Refused || len(notified.Notifications) > 0 || w.store.Usage().Keys != 1) {
			t.Errorf("%q was refused by Parse and applied as %v", payload, reply.Outcome)
		}
		for _, dialect := range []Dialect{Deployed, Documented} {
			reply.Dialect = dialect
			encoded := reply.Append(nil)
			value, err := resp3.DecodeValue(encoded)
			if err != nil || (value.Kind == resp3.Error) != (reply.Outcome == Refused) {
				t.Errorf("the reply %q to %q decodes to %v, %v; the outcome is %v", encoded, payload, value, err, reply.Outcome)
			}
		}
	})
}
