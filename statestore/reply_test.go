package statestore

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// docs/protocol.md §2.1: a store accepts all published samples.
func TestPublishedSamplesAreAccepted(t *testing.T) {
	const version = "@1696374425000:1:StateStore"
	tests := []struct {
		name   string
		before []request
		sample string
		set    bool
		answer string
	}{
		{"set", nil, "*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n", true, "+OK\r\n" + version},
		{"get of a missing key", nil, "*2\r\n$3\r\nget\r\n$7\r\nSETKEY2\r\n", false, "$-1\r\n"},
		{"get of what the first sample set", []request{ask("SET SETKEY2 VALUE5")},
			"*2\r\n$3\r\nget\r\n$7\r\nSETKEY2\r\n", false, "$6\r\nVALUE5\r\n" + version},
		{"del of a missing key", nil, "*2\r\n$3\r\ndel\r\n$7\r\nSETKEY2\r\n", false, ":0\r\n"},
		{"del of what the first sample set", []request{ask("SET SETKEY2 VALUE5")},
			"*2\r\n$3\r\ndel\r\n$7\r\nSETKEY2\r\n", false, ":1\r\n" + version},
		{"vdel of a missing key", nil, "*3\r\n$4\r\nvdel\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n", false, ":0\r\n"},
		{"vdel of another value", []request{ask("SET SETKEY2 VALUE5")},
			"*3\r\n$4\r\nvdel\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n", false, ":-1\r\n"},
		{"vdel of this value", []request{ask("SET SETKEY2 ABC")},
			"*3\r\n$4\r\nvdel\r\n$7\r\nSETKEY2\r\n$3\r\nABC\r\n", false, ":1\r\n" + version},
		{"KEYNOTIFY", nil, "*2\r\n$9\r\nKEYNOTIFY\r\n$7\r\nSOMEKEY\r\n", false, "+OK\r\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			for _, r := range test.before {
				w.set(r)
			}
			var r request
			if test.set {
				r.ts = "1696374425000:0:CLIENT"
			}
			if got, _ := w.sendPayload(r, test.sample); got != test.answer {
				t.Errorf("got %q; want %q", got, test.answer)
			}
		})
	}
}

// docs/protocol.md §2.3, the table of replies, and §6, dialects.
func TestEveryReplyInBothDialects(t *testing.T) {
	const first = "@1696374425000:1:StateStore"
	const second = "@1696374425000:2:StateStore"
	stored := []request{ask("SET k v")}
	tests := []struct {
		name       string
		before     []request
		request    request
		deployed   string
		documented string // empty: the same
	}{
		{"SET creates a key", nil, ask("SET k v"), "+OK\r\n" + first, ""},
		{"SET replaces a value", stored, ask("SET k w"), "+OK\r\n" + second, ""},
		{"NX creates a key", nil, ask("SET k v NX"), "+OK\r\n" + first, ""},
		{"NX is refused by another value and shows the stored version", stored, ask("SET k w NX"), ":-1\r\n" + first, "-1\r\n" + first},
		{"NX is refused by the same value too", stored, ask("SET k v NX"), ":-1\r\n" + first, "-1\r\n" + first},
		{"NEX creates a key", nil, ask("SET k v NEX"), "+OK\r\n" + first, ""},
		{"NEX renews the same value under a new version", stored, ask("SET k v NEX"), "+OK\r\n" + second, ""},
		{"NEX is refused by another value and shows the stored version", stored, ask("SET k w NEX"), ":-1\r\n" + first, "-1\r\n" + first},
		{"NEX is refused by a value that begins alike", stored, ask("SET k vv NEX"), ":-1\r\n" + first, "-1\r\n" + first},
		{"NEX is refused where only the case differs", stored, ask("SET k V NEX"), ":-1\r\n" + first, "-1\r\n" + first},
		{"GET finds", stored, ask("GET k"), "$1\r\nv\r\n" + first, ""},
		{"GET needs no timestamp but may have one", stored, ask("GET k").at("1:0:CLIENT"), "$1\r\nv\r\n" + first, ""},
		{"GET finds nothing", nil, ask("GET k"), "$-1\r\n", ""},
		{"keys differ by case", stored, ask("GET K"), "$-1\r\n", ""},
		{"DEL deletes whatever the value", stored, ask("DEL k"), ":1\r\n" + first, ""},
		{"DEL finds nothing", nil, ask("DEL k"), ":0\r\n", ""},
		{"VDEL deletes this value", stored, ask("VDEL k v"), ":1\r\n" + first, ""},
		{"VDEL leaves another value and shows no version", stored, ask("VDEL k w"), ":-1\r\n", "-1\r\n"},
		{"VDEL finds nothing", nil, ask("VDEL k v"), ":0\r\n", ""},
		{"KEYNOTIFY", nil, ask("KEYNOTIFY k"), "+OK\r\n", ""},
		{"KEYNOTIFY again", []request{ask("KEYNOTIFY k")}, ask("KEYNOTIFY k"), "+OK\r\n", ""},
		{"KEYNOTIFY of a key that exists shows no version", stored, ask("KEYNOTIFY k"), "+OK\r\n", ""},
		{"KEYNOTIFY with the older GET", stored, ask("KEYNOTIFY k GET"), "+OK\r\n", ""},
		{"KEYNOTIFY STOP of a key that is watched", []request{ask("KEYNOTIFY k")}, ask("KEYNOTIFY k STOP"), "+OK\r\n", ""},
		{"KEYNOTIFY STOP of a key that is not watched", nil, ask("KEYNOTIFY k STOP"), ":0\r\n", ""},
		{"KEYNOTIFY STOP of a key that another client watches", []request{ask("KEYNOTIFY k").as("other")}, ask("KEYNOTIFY k STOP"), ":0\r\n", ""},
		{"KEYNOTIFY that is refused", nil, ask("KEYNOTIFY k BOGUS"), "-ERR syntax error\r\n", "-ERR: syntax error\r\n"},
		{"KEYNOTIFY STOP that is refused", nil, ask("KEYNOTIFY k STOP STOP"), "-ERR syntax error\r\n", "-ERR: syntax error\r\n"},
		{"KEYNOTIFY without a key", nil, ask("KEYNOTIFY"), "-ERR wrong number of arguments\r\n", "-ERR: wrong number of arguments\r\n"},
		{"KEYNOTIFY of an empty key", nil, ask("KEYNOTIFY "), "-ERR the key length is zero\r\n", "-ERR: the key length is zero\r\n"},
		{"another verb that is refused", nil, ask("GET k STOP"), "-ERR wrong number of arguments\r\n", ""},
		{"an empty verb", nil, ask(""), "-ERR unknown command\r\n", ""},
	}
	for _, test := range tests {
		if test.documented == "" {
			test.documented = test.deployed
		}
		for name, dialect := range map[string]Dialect{"deployed": Deployed, "documented": Documented} {
			t.Run(test.name+", "+name, func(t *testing.T) {
				w := newWorld(t, Options{})
				for _, r := range test.before {
					w.send(r)
				}
				w.dialect = dialect
				want := test.deployed
				if dialect == Documented {
					want = test.documented
				}
				w.want(test.request, want)
			})
		}
	}
}

// docs/protocol.md §2.4, the table of errors: all twelve.
func TestEveryRefusal(t *testing.T) {
	tests := []struct {
		text    string
		options Options
		request request
	}{
		{textTimestampAhead, Options{}, ask("SET new v").at("1696374485001:0:CLIENT")},
		{textTokenRequired, Options{}, ask("SET k v")},
		{textTokenAhead, Options{}, ask("SET new v").fencedBy("1696374485001:0:CLIENT")},
		{textTokenLower, Options{}, ask("SET k v").fencedBy("9:0:n")},
		{textQuota, Options{MaxKeys: 1}, ask("SET new v")},
		{textSyntax, Options{}, ask("SET k v BOGUS")},
		{textDenied, Options{}, request{words: []string{"GET", "k"}, denied: true}},
		{textUnknown, Options{}, ask("INCR k")},
		{textArguments, Options{}, ask("GET")},
		{textNoTimestamp, Options{}, ask("SET new v").at("-")},
		{textBadTimestamp, Options{}, ask("SET new v").at("noon")},
		{textNoKey, Options{}, ask("GET ")},
	}
	seen := make(map[string]bool)
	for _, test := range tests {
		seen[test.text] = true
		t.Run(test.text, func(t *testing.T) {
			w := newWorld(t, test.options)
			w.set(ask("SET k v").fencedBy("10:0:n"))
			w.want(test.request, refusal(test.text))
		})
	}
	if len(seen) != 12 {
		t.Errorf("the table has %d texts; the protocol has 12", len(seen))
	}
}

func TestKeysAndValuesMayHoldAnyBytes(t *testing.T) {
	var all strings.Builder
	for b := range 256 {
		all.WriteByte(byte(b))
	}
	tests := []struct {
		name       string
		key, value string
	}{
		{"an empty value", "k", ""},
		{"every byte there is", all.String(), all.String()},
		{"the separators of the protocol", "\r\n$1\r\n", "*1\r\n$-1\r\n"},
		{"a NUL", "\x00", "\x00"},
		{"a key that reads as an option", "NX", "PX"},
		{"bytes that are not UTF-8", "\xff\xfe", "\xc3\x28"},
		{"a megabyte", strings.Repeat("k", 32_000), strings.Repeat("v", 1<<20)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			w.want(request{words: []string{"KEYNOTIFY", test.key}}, "+OK\r\n")
			answer, notified := w.send(request{words: []string{"SET", test.key, test.value, "NEX"}})
			if answer != "+OK\r\n@1696374425000:1:StateStore" {
				t.Fatalf("SET: got %q", answer)
			}
			w.wantLines("SET", notified, setLine("c", test.key, test.value, "1696374425000:1:StateStore"))
			get := request{words: []string{"GET", test.key}}
			bulk := strings.TrimPrefix(payload(test.value), "*1\r\n")
			w.want(get, bulk+"@1696374425000:1:StateStore")
			w.want(request{words: []string{"SET", test.key, test.value, "NEX"}}, "+OK\r\n@1696374425000:2:StateStore")
			w.want(get, bulk+"@1696374425000:2:StateStore")
			w.want(request{words: []string{"VDEL", test.key, test.value + "x"}}, ":-1\r\n")
			w.want(request{words: []string{"VDEL", test.key, test.value}}, ":1\r\n@1696374425000:2:StateStore")
			w.want(get, "$-1\r\n")
		})
	}
}

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

func TestReplyIsAppended(t *testing.T) {
	for outcome, want := range map[Outcome]string{
		Refused: "-ERR syntax error\r\n", OK: "+OK\r\n", ConditionFailed: ":-1\r\n", Found: "$0\r\n\r\n",
		Missing: "$-1\r\n", Deleted: ":1\r\n", NothingThere: ":0\r\n",
	} {
		t.Run(outcome.String(), func(t *testing.T) {
			if got := string(Reply{Outcome: outcome}.Append([]byte("before "))); got != "before "+want {
				t.Errorf("got %q; want %q", got, "before "+want)
			}
		})
	}
	note := Notification{Dialect: Documented, Change: &Change{Deleted: true}}
	if got := string(note.Append([]byte("before "))); got != "before *2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n" {
		t.Errorf("the notification is %q", got)
	}
}

func TestEnumerationsAreWordsInJSONAndNeverPanic(t *testing.T) {
	for _, test := range []struct {
		value fmt.Stringer
		want  string
	}{
		{VerbVDel, "VDEL"}, {VerbKeyNotify, "KEYNOTIFY"}, {VerbUnknown, "unknown"}, {Verb(6), "Verb(6)"},
		{Refused, "refused"}, {Expired, "expired"}, {Outcome(8), "Outcome(8)"}, {Outcome(255), "Outcome(255)"},
		{Deployed, "deployed"}, {Documented, "documented"}, {Dialect(3), "Dialect(3)"},
	} {
		if got := test.value.String(); got != test.want {
			t.Errorf("String = %q; want %q", got, test.want)
		}
		if got, err := json.Marshal(test.value); err != nil || string(got) != strconv.Quote(test.want) {
			t.Errorf("json.Marshal of %v = %s, %v", test.value, got, err)
		}
	}
}
