package statestore

import (
	"slices"
	"testing"
	"time"
)

// A fault is one defect in a request that is otherwise valid.
type fault struct {
	name  string
	check int // its position in docs/protocol.md §4.4's order of checks
	// part is what the fault breaks: two faults of one part exclude each other.
	part    string
	inflict func(*faulty)
	answer  string
}

// A faulty is a request to which faults are applied.
type faulty struct {
	request
	few   bool // cut after the key
	torn  bool // cut in the middle of the payload
	short Options
}

const held = "1696374425000:1:StateStore" // the version of the key that the faults meet

var faults = []fault{
	{"not well-formed", 1, "payload", func(f *faulty) { f.torn = true }, refusal(textSyntax)},
	{"unknown verb", 2, "verb", func(f *faulty) { f.words[0] = "INCR" }, refusal(textUnknown)},
	{"too few arguments", 3, "count", func(f *faulty) { f.few = true }, refusal(textArguments)},
	{"empty key", 4, "key", func(f *faulty) { f.words[1] = "" }, refusal(textNoKey)},
	{"unknown option", 5, "options", func(f *faulty) { f.words = append(f.words, "BOGUS") }, refusal(textSyntax)},
	{"contradicting options", 5, "options", func(f *faulty) { f.words = append(f.words, "NX", "NEX") }, refusal(textSyntax)},
	{"bad number", 5, "options", func(f *faulty) { f.words = append(f.words, "PX", "0") }, refusal(textSyntax)},
	{"not authorized", 6, "client", func(f *faulty) { f.denied = true }, refusal(textDenied)},
	{"no timestamp", 7, "ts", func(f *faulty) { f.ts = "-" }, refusal(textNoTimestamp)},
	{"malformed timestamp", 7, "ts", func(f *faulty) { f.ts = "1696374425000:0" }, refusal(textBadTimestamp)},
	{"timestamp ahead", 7, "ts", func(f *faulty) { f.ts = "1696374485001:0:CLIENT" }, refusal(textTimestampAhead)},
	{"malformed token", 8, "ft", func(f *faulty) { f.ft = "10:0:a:b" }, refusal(textBadTimestamp)},
	{"token ahead", 8, "ft", func(f *faulty) { f.ft = "1696374485001:0:n" }, refusal(textTokenAhead)},
	{"no token", 9, "ft", func(f *faulty) { f.ft = "" }, refusal(textTokenRequired)},
	{"older token", 9, "ft", func(f *faulty) { f.ft = "9:0:n" }, refusal(textTokenLower)},
	{"NX of a key that exists", 10, "condition", func(f *faulty) { f.words = append(f.words, "NX") }, ":-1\r\n@" + held},
	{"NEX of another value", 10, "condition", func(f *faulty) { f.words = append(f.words, "NEX", "another") }, ":-1\r\n@" + held},
	{"over quota", 11, "quota", func(f *faulty) { f.short = Options{MaxBytes: 27} }, refusal(textQuota)},
}

// send sends the request in the world of the faults: key k has the value "held" for a second, and
// the token 10:0:n protects it.
func (f *faulty) send(t *testing.T, inflict ...func(*faulty)) (*world, string, []string) {
	t.Helper()
	f.request = ask("SET k longer-value").fencedBy("10:0:n").at("1696374425000:0:CLIENT")
	for _, inflict := range inflict {
		inflict(f)
	}
	w := newWorld(t, f.short)
	w.set(ask("SET k held PX 1000").fencedBy("10:0:n"))
	w.want(ask("KEYNOTIFY k"), "+OK\r\n")
	if f.few {
		f.words = f.words[:2]
	}
	text := payload(f.words...)
	if f.torn {
		text = text[:len(text)-2]
	}
	answer, notified := w.sendPayload(f.request, text)
	return w, answer, notified
}

// Invariant 13, "a refusal changes nothing", for every check there is.
func TestInvariant13RefusalChangesNothing(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			// A newer token, so that one that was kept would show.
			newer := func(f *faulty) {
				if fault.part != "ft" {
					f.ft = "11:0:n"
				}
			}
			w, answer, notified := new(faulty).send(t, newer, fault.inflict)
			if answer != fault.answer {
				t.Fatalf("got %q; want %q", answer, fault.answer)
			}
			w.wantLines("the refused request", notified)
			if usage := w.store.Usage(); usage.Keys != 1 || usage.Bytes != 22 {
				t.Errorf("the store holds %+v", usage)
			}
			w.want(ask("SET k v").fencedBy("9:9:z"), refusal(textTokenLower))
			w.want(ask("VDEL k other").fencedBy("10:0:n"), ":-1\r\n")
			w.want(ask("SET x "), "+OK\r\n@1696374425000:2:StateStore")
			w.pass(time.Second - time.Nanosecond)
			w.want(ask("GET k"), "$4\r\nheld\r\n@"+held)
			w.pass(time.Nanosecond)
			w.want(ask("GET k"), "$-1\r\n")
		})
	}
	_, answer, notified := new(faulty).send(t)
	if want := "+OK\r\n@1696374425000:2:StateStore"; answer != want || len(notified) != 1 {
		t.Errorf("without a fault: %q with %d notifications; want %q with one", answer, len(notified), want)
	}
}

// docs/protocol.md §4.4, the order of checks: of two faults the earlier one is answered.
func TestOrderOfChecks(t *testing.T) {
	// A request that ends after the key has nothing left of these.
	cut := []string{"options", "condition", "quota"}
	pairs := 0
	for i, first := range faults {
		for _, second := range faults[i+1:] {
			if first.check == second.check || first.part == second.part ||
				first.part == "count" && slices.Contains(cut, second.part) {
				continue
			}
			pairs++
			t.Run(first.name+" and "+second.name, func(t *testing.T) {
				_, answer, notified := new(faulty).send(t, second.inflict, first.inflict)
				if answer != first.answer || len(notified) != 0 {
					t.Errorf("got %q with %d notifications; want %q", answer, len(notified), first.answer)
				}
			})
		}
	}
	if pairs < 100 {
		t.Errorf("only %d pairs were tried", pairs)
	}
}
