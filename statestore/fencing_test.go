package statestore

import (
	"testing"
	"time"
	"unsafe"
)

// docs/protocol.md §4.3, and invariants 13 and 14, for each verb that changes
// a key which is protected by the token 10:5:m.
func TestInvariant13And14ProtectedKey(t *testing.T) {
	const version = "@1696374425000:1:StateStore"
	tests := []struct {
		name string
		ft   string
		want string // empty: accepted
	}{
		{"no token", "", refusal(textTokenRequired)},
		{"an older wall clock", "9:5:m", refusal(textTokenLower)},
		{"an older wall clock that a string would put later", "9:9:z", refusal(textTokenLower)},
		{"an older counter", "10:4:m", refusal(textTokenLower)},
		{"an older counter, with a later node", "10:4:z", refusal(textTokenLower)},
		{"an older node", "10:5:l", refusal(textTokenLower)},
		{"an older node that differs by case", "10:5:M", refusal(textTokenLower)},
		{"a node that is a beginning", "10:5:", refusal(textBadTimestamp)},
		{"an equal token", "10:5:m", ""},
		{"an equal token, padded", "000000000000010:00005:m", ""},
		{"a newer node", "10:5:mm", ""},
		{"a newer counter", "10:6:a", ""},
		{"a newer counter that a string would put earlier", "10:10:a", ""},
		{"a newer wall clock", "11:0:a", ""},
		{"a newer wall clock that a string would put earlier", "100:0:a", ""},
	}
	requests := []struct{ line, accepted string }{
		{"SET k w", "+OK\r\n@1696374425000:2:StateStore"},
		{"SET k v NEX PX 5", "+OK\r\n@1696374425000:2:StateStore"},
		{"DEL k", ":1\r\n" + version},
		{"VDEL k v", ":1\r\n" + version},
	}
	for _, test := range tests {
		for _, r := range requests {
			t.Run(test.name+" for "+r.line, func(t *testing.T) {
				w := newWorld(t, Options{})
				w.set(ask("SET k v").fencedBy("10:5:m"))
				want := test.want
				if want == "" {
					want = r.accepted
				}
				w.want(ask(r.line).fencedBy(test.ft), want)
				if test.want != "" {
					w.want(ask("GET k"), "$1\r\nv\r\n"+version)
				}
			})
		}
	}
}

// The hole of invariant 15: in the default mode the store drops the fence with the key, and a
// former holder can write again.
func TestInvariant15HoleOfDefaultMode(t *testing.T) {
	tests := []struct {
		name string
		end  func(*world)
	}{
		{"DEL", func(w *world) { w.send(ask("DEL k").fencedBy("10:0:n")) }},
		{"VDEL", func(w *world) { w.send(ask("VDEL k v").fencedBy("10:0:n")) }},
		{"expiry found by Expire", func(w *world) { w.pass(time.Second); w.store.Expire(w.now, 1) }},
		{"expiry found by the request", func(w *world) { w.pass(time.Second) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.set(ask("SET k v PX 1000").fencedBy("10:0:n"))
			test.end(w)
			w.set(ask("SET k stale").fencedBy("9:0:n"))
			w.want(ask("SET k w").fencedBy("8:0:n"), refusal(textTokenLower)) // fenced again, by the older token
		})
		t.Run(test.name+", then no token", func(t *testing.T) {
			w := newWorld(t, Options{})
			w.set(ask("SET k v PX 1000").fencedBy("10:0:n"))
			test.end(w)
			w.set(ask("SET k v"))
			w.set(ask("SET k w"))
		})
	}
}

// The text of a token may be in a buffer that the network layer reuses. The token that the store
// keeps must not change with it.
func TestTokenDoesNotAliasTheMessage(t *testing.T) {
	w := newWorld(t, Options{})
	buffer := []byte("1696374425000:0:CLIENT 10:0:mmm")
	ts, ft := unsafe.String(&buffer[0], 22), unsafe.String(&buffer[23], 8)
	set := func() {
		t.Helper()
		command := Parse(Request{Client: "c", Payload: []byte(payload("SET", "k", "v")), Timestamp: &ts, FencingToken: &ft})
		if reply, _ := w.store.Apply(w.now, command); reply.Outcome != OK {
			t.Fatalf("SET: got %v, %v", reply.Outcome, reply.Err)
		}
	}
	overwrite := func(text string) { copy(buffer, text) }
	set()
	overwrite("1696374425000:0:CLIENT 10:0:zzz") // the key is protected by 10:0:zzz now, unless the store has its own copy
	w.want(ask("SET k v").fencedBy("10:0:mml"), refusal(textTokenLower))
	w.set(ask("SET k v").fencedBy("10:0:mmm"))
	set() // a newer one, which is kept in place of the first
	overwrite("################:############")
	w.want(ask("SET k v").fencedBy("10:0:zzy"), refusal(textTokenLower))
	w.set(ask("SET k v").fencedBy("10:0:zzz"))
	w.want(ask("GET k"), "$1\r\nv\r\n@1696374425000:4:StateStore")
}
