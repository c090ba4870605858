package pubsub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// naive says whether a filter matches a topic as the standard words it, level by level.
func naive(filter, topic string) bool {
	f, t := strings.Split(filter, "/"), strings.Split(topic, "/")
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
		{"a/+", "a/", true}, {"a/+/#", "a", false}, {"a/+/#", "a/", true}, {"a/b", "a/b/", false}, {"a/+", "a/$SYS", true},
		{strings.Repeat("a/", 63) + "+", strings.Repeat("a/", 63) + "b", true}, {"a/#", strings.Repeat("a/", 70), true},
	} {
		b := newBroker()
		subscribe(t, newSession(b, "s"), 0, test.filter)
		if got := b.Publish(message(test.topic, "x", 0), goOn); got != test.want || naive(test.filter, test.topic) != test.want {
			t.Errorf("%s and %s: %t, naive %t, want %t", test.filter, test.topic, got, naive(test.filter, test.topic), test.want)
		}
	}
}

// checkTree adds and removes filters as the bytes say, and compares what a search finds, and what a scan of each
// filter finds, for topics of the same levels.
func checkTree(t *testing.T, script []byte) {
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
	b := newBroker()
	sessions := make(map[string]*Session) // one for each filter
	for len(script) > 1 {
		length := min(1+int(script[0]>>2)%6, len(script)-1)
		op, part := script[0]&3, script[1:1+length]
		script = script[1+length:]
		filter, topic := word(part, true), word(part, false)
		switch s := sessions[filter]; {
		case filter == "" || op == 3:
		case op < 2 && s == nil:
			sessions[filter] = newSession(b, filter)
			subscribe(t, sessions[filter], 0, filter)
		case op == 2 && s != nil:
			if !s.Unsubscribe(filter) || s.Unsubscribe(filter) {
				t.Fatalf("Unsubscribe %q is wrong about what was there", filter)
			}
			delete(sessions, filter)
		}
		var got, want []string
		found, _ := b.subscribers(message(topic, "", 0), goOn)
		for s := range found {
			got = append(got, s.client)
		}
		for filter := range sessions {
			if naive(filter, topic) {
				want = append(want, filter)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%q matches %q, want %q", topic, got, want)
		}
	}
	for _, s := range sessions {
		s.End()
	}
	checkEmpty(t, b)
}

func TestTheTreeFindsWhatANaiveMatcherFinds(t *testing.T) {
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 1))
		script := make([]byte, 4000)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		checkTree(t, script)
	}
}

func FuzzTree(f *testing.F) {
	f.Add([]byte{4, 0x83, 1, 6, 0x83, 1, 5, 3, 3})
	f.Fuzz(checkTree)
}

// However many filters other clients have, in whatever form: their bytes are bounded.
func TestInvariant57ASearchTakesAStepForEachLevelThatMatchesAtMost(t *testing.T) {
	b := newBroker()
	for client := range 20 {
		s := newSession(b, fmt.Sprint(client))
		for i := range 1000 {
			levels := strings.Split(fmt.Sprintf("a/b/c/d/%d/f/g/h/i/j", client), "/")
			for level := range levels {
				if i>>level&1 != 0 {
					levels[level] = "+"
				}
			}
			subscribe(t, s, 0, strings.Join(levels[:1+i%10], "/")+[]string{"", "/#"}[i/500])
		}
	}
	for topic, most := range map[string]int{"x/y/z": 40, "a/b/c/d/e/f/g/h/i/j": 2200} {
		steps := 0
		b.root.search(topic, true, func() bool { steps++; return true }, func(map[*Session]Subscription) bool { return true })
		if steps > most {
			t.Errorf("%s: %d steps, want at most %d", topic, steps, most)
		}
	}
}
