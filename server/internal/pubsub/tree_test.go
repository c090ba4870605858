package pubsub

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// naive says whether a filter matches a topic as the standard words it, level by level.
func naive(filter, topic string) bool {
	f, t := strings.Split(filter, "/"), strings.Split(topic, "/")
	if strings.HasPrefix(topic, "$") && (f[0] == "+" || f[0] == "#") {
		return false
	}
	for i, level := range f {
		if level == "#" {
			return len(t) >= i
		}
		if i >= len(t) || level != "+" && level != t[i] {
			return false
		}
	}
	return len(f) == len(t)
}

func TestAFilterMatchesAsTheStandardSays(t *testing.T) {
	for _, test := range []struct {
		filter, topic string
		want          bool
	}{
		{"a/#", "a", true}, {"a/#", "a/b/c", true}, {"a/#", "ab", false}, {"#", "a", true}, {"#", "/", true},
		{"+", "a", true}, {"+", "/a", false}, {"+/+", "/a", true}, {"/+", "/a", true}, {"a/+", "a", false},
		{"a/+", "a/", true}, {"a/+/#", "a", false}, {"a/+/#", "a/", true}, {"a/b", "a/b/", false},
		{"#", "$SYS/a", false}, {"+/a", "$SYS/a", false}, {"$SYS/#", "$SYS/a", true}, {"a/+", "a/$SYS", true},
		{strings.Repeat("a/", 63) + "+", strings.Repeat("a/", 63) + "b", true}, {"a/#", strings.Repeat("a/", 70), true},
	} {
		s := newBroker(Limits{}).Session("s")
		subscribe(t, s, Subscription{Filter: test.filter})
		if _, ok := s.Matches(test.topic); ok != test.want || naive(test.filter, test.topic) != test.want {
			t.Errorf("%s and %s: Matches %t, naive %t, want %t", test.filter, test.topic, ok, naive(test.filter, test.topic), test.want)
		}
	}
}

// checkIndex adds and removes filters as the bytes say, and compares what the index finds, and
// what Matches and a scan of each filter find, for topics of the same levels.
func checkIndex(t *testing.T, script []byte) {
	t.Helper()
	levels := []string{"a", "b", "", "+", "$x", "c"}
	word := func(from []byte, wildcards bool) string {
		var text []string
		for _, b := range from {
			level := levels[int(b)%len(levels)]
			if level == "+" && !wildcards {
				level = "d"
			}
			text = append(text, level)
		}
		if wildcards && len(from) > 0 && from[0]&0x80 != 0 {
			text = append(text, "#")
		}
		return strings.Join(text, "/")
	}
	b := newBroker(Limits{})
	s := b.Session("s")
	has := make(map[string]bool)
	for len(script) > 1 {
		length := min(1+int(script[0]>>2)%6, len(script)-1)
		op, part := script[0]&3, script[1:1+length]
		script = script[1+length:]
		filter, topic := word(part, true), word(part, false)
		switch {
		case filter == "" || op == 3:
		case op < 2:
			subscribe(t, s, Subscription{Filter: filter})
			has[filter] = true
		case s.Unsubscribe(filter) != has[filter]:
			t.Fatalf("Unsubscribe %q: not %t", filter, has[filter])
		default:
			delete(has, filter)
		}
		var got, want []string
		b.subscriptions.search(topic, func(int) bool { return true }, func(sessions map[*Session]*Subscription) { got = append(got, sessions[s].Filter) })
		for filter := range has {
			if naive(filter, topic) {
				want = append(want, filter)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%q matches %q, want %q", topic, got, want)
		}
		if _, ok := s.Matches(topic); ok != (len(want) > 0) {
			t.Fatalf("Matches %q: %t", topic, ok)
		}
	}
	s.End()
	checkEmpty(t, b)
}

func TestTheIndexFindsWhatANaiveMatcherFinds(t *testing.T) {
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 1))
		script := make([]byte, 4000)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		checkIndex(t, script)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte{4, 0x83, 1, 6, 0x83, 1, 5, 3, 3})
	f.Fuzz(checkIndex)
}

// However many filters other clients have, in whatever form.
func TestASearchTakesAStepForEachChoiceOfWildcardsAtMost(t *testing.T) {
	b := newBroker(Limits{})
	for client := range 20 {
		s := b.Session(fmt.Sprint(client))
		for i := range 1000 {
			levels := strings.Split(fmt.Sprintf("a/b/c/d/%d/f/g/h/i/j", client), "/")
			for level := range levels {
				if i>>level&1 != 0 {
					levels[level] = "+"
				}
			}
			subscribe(t, s, Subscription{Filter: strings.Join(levels[:1+i%10], "/") + []string{"", "/#"}[i/500]})
		}
	}
	for topic, most := range map[string]int{"x/y/z": 16, "a/b/c/d/e/f/g/h/i/j": 2048} {
		steps := 0
		b.subscriptions.search(topic, func(cost int) bool { steps += cost; return true }, func(map[*Session]*Subscription) {})
		if steps > most {
			t.Errorf("%s: %d steps, want at most %d", topic, steps, most)
		}
	}
}

// A choice counts while any client has it, not only the one that had it first.
func TestInvariant57AllClientsTogetherHaveABoundedNumberOfChoices(t *testing.T) {
	const most = 64
	b := newBroker(Limits{SubscriptionBytes: most * choiceCost})
	choice := func(i int) string {
		bits := strings.Join(strings.Split(fmt.Sprintf("%012b", i), ""), "/")
		return strings.NewReplacer("0", "x", "1", "+").Replace(bits)
	}
	first, second := b.Session("first"), b.Session("second")
	for i, s := range []*Session{first, second, second} {
		subscribe(t, s, Subscription{Filter: choice(3)}, Subscription{Filter: fmt.Sprint("+/+/", i)})
	}
	if used := b.Usage().SubscriptionBytes; used < 2*choiceCost || used > 3*choiceCost {
		t.Errorf("%d bytes are taken for two choices", used)
	}
	first.End()
	if used := b.Usage().SubscriptionBytes; used < 2*choiceCost {
		t.Errorf("%d bytes are taken for two choices that one client has left", used)
	}
	for i := range 1 << 12 {
		_ = b.Session(fmt.Sprint(i % 50)).Subscribe(Subscription{Filter: choice(i)})
	}
	subscribe(t, b.Session("modest"), Subscription{Filter: "a/+/b"}, Subscription{Filter: choice(3), QoS: 1})
	topic, steps := strings.Repeat("t", 1000)+choice(0), 0
	b.subscriptions.search(topic, func(cost int) bool { steps += cost; return true }, func(map[*Session]*Subscription) {})
	if limit := (most + 20) * (1 + len(topic)/128); steps > limit || steps < limit/2 {
		t.Errorf("a search takes %d steps, want at most %d", steps, limit)
	}
	for _, s := range maps.Clone(b.sessions) {
		s.End()
	}
	checkEmpty(t, b)
}

func TestMatchesGivesAllIdentifiersAndFollowsChanges(t *testing.T) {
	s := newBroker(Limits{}).Session("s")
	subscribe(t, s, Subscription{Filter: "a/b", Identifier: 1}, Subscription{Filter: "a/+", Identifier: 2}, Subscription{Filter: "c/+"})
	for _, want := range [][]int{{1, 2}, {1}} {
		if ids, ok := s.Matches("a/b"); !ok || !slices.Equal(ids, want) {
			t.Errorf("identifiers %v, %t; want %v", ids, ok, want)
		}
		if allocations := testing.AllocsPerRun(10, func() { s.Matches("a/b") }); allocations != 0 {
			t.Errorf("the same question again allocates %v times", allocations)
		}
		s.Unsubscribe("a/+")
	}
	s.Unsubscribe("a/b")
	if _, ok := s.Matches("a/b"); ok {
		t.Error("it matches still")
	}
}
