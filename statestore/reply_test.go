package statestore

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
)

// A replaced value must not change while a caller may still write it to the network.
func TestAReturnedValueNeverChanges(t *testing.T) {
	w := newWorld(t, Options{})
	w.set(ask("SET k first"))
	w.want(ask("KEYNOTIFY k"), "+OK\r\n")
	get := Parse(Request{Client: "c", Payload: []byte(payload("GET", "k"))})
	found, _ := w.store.Apply(w.now, get)
	ts := "1696374425000:0:CLIENT"
	set := Parse(Request{Client: "c", Payload: []byte(payload("SET", "k", "other")), Timestamp: &ts})
	_, notified := w.store.Apply(w.now, set)
	w.set(ask("SET k third"))
	w.set(ask("SET k 4"))
	w.want(ask("DEL k"), ":1\r\n@1696374425000:4:StateStore")
	if got := string(found.Append(nil)); got != "$5\r\nfirst\r\n" {
		t.Errorf("the reply became %q", got)
	}
	w.wantLines("SET", w.lines(notified.Notifications), setLine("c", "k", "other", "1696374425000:2:StateStore"))
}

func TestEnumerationsAreWordsInJSONAndNeverPanic(t *testing.T) {
	for _, test := range []struct {
		value fmt.Stringer
		want  string
	}{
		{VerbVDel, "VDEL"}, {VerbKeyNotify, "KEYNOTIFY"}, {VerbUnknown, "unknown"}, {Verb(6), "Verb(6)"},
		{Refused, "refused"}, {Expired, "expired"}, {Outcome(8), "Outcome(8)"}, {Outcome(255), "Outcome(255)"},
	} {
		if got := test.value.String(); got != test.want {
			t.Errorf("String = %q; want %q", got, test.want)
		}
		if got, err := json.Marshal(test.value); err != nil || string(got) != strconv.Quote(test.want) {
			t.Errorf("json.Marshal of %v = %s, %v", test.value, got, err)
		}
	}
}
