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
	for line, accepted := range map[string]string{
		"SET k w":          "+OK\r\n@1696374425000:2:StateStore",
		"SET k v NEX PX 5": "+OK\r\n@1696374425000:2:StateStore",
		"DEL k":            ":1\r\n" + version,
		"VDEL k v":         ":1\r\n" + version,
	} {
		for ft, refused := range map[string]string{
			"":      textTokenRequired,
			"9:9:z": textTokenLower, "10:4:z": textTokenLower, "10:5:l": textTokenLower, "10:5:M": textTokenLower, "10:5:": textBadTimestamp,
			"10:5:m": "", "000000000000010:00005:m": "", "10:5:mm": "", "10:6:a": "", "10:10:a": "", "11:0:a": "", "100:0:a": "",
		} {
			w := newWorld(t, Options{})
			w.set(ask("SET k v").fencedBy("10:5:m"))
			if refused == "" {
				w.want(ask(line).fencedBy(ft), accepted)
			} else {
				w.want(ask(line).fencedBy(ft), refusal(refused))
				w.want(ask("GET k"), "$1\r\nv\r\n"+version)
			}
		}
	}
}

// The hole of invariant 15: in the default mode the store drops the fence with the key, and a
// former holder can write again.
func TestInvariant15HoleOfDefaultMode(t *testing.T) {
	for name, end := range map[string]func(*world){
		"DEL":                         func(w *world) { w.send(ask("DEL k").fencedBy("10:0:n")) },
		"VDEL":                        func(w *world) { w.send(ask("VDEL k v").fencedBy("10:0:n")) },
		"expiry found by Expire":      func(w *world) { w.pass(time.Second); w.store.Expire(w.now, 1) },
		"expiry found by the request": func(w *world) { w.pass(time.Second) },
	} {
		for _, token := range []string{"9:0:n", ""} {
			t.Run(name+", then token "+token, func(t *testing.T) {
				w := newWorld(t, Options{})
				w.set(ask("SET k v PX 1000").fencedBy("10:0:n"))
				end(w)
				w.set(ask("SET k stale").fencedBy(token))
			})
		}
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
