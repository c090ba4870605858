package pubsub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// naive is match as the standard words it, level by level.
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
	} {
		if match(test.filter, test.topic) != test.want || naive(test.filter, test.topic) != test.want {
			t.Errorf("%s and %s: match %t, naive %t, want %t", test.filter, test.topic, match(test.filter, test.topic), naive(test.filter, test.topic), test.want)
		}
	}
}

// checkTree adds and removes filters as the bytes say, and compares what the tree finds, and
// what Matches and a scan of each filter find, for topics of the same levels.
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
	b := newBroker(Limits{})
	s := b.Session("s")
	held := make(map[string]bool)
	for len(script) > 1 {
		length := min(1+int(script[0]>>2)%6, len(script)-1)
		op, part := script[0]&3, script[1:1+length]
		script = script[1+length:]
		if op < 3 {
			filter := word(part, true)
			if filter == "" || isShared(filter) {
				continue
			}
			if op < 2 {
				existed, err := s.Subscribe(Subscription{Filter: filter})
				if err != nil || existed != held[filter] {
					t.Fatalf("Subscribe %q: %t, %v", filter, existed, err)
				}
				held[filter] = true
			} else if s.Unsubscribe(filter) != held[filter] {
				t.Fatalf("Unsubscribe %q: not %t", filter, held[filter])
			} else {
				delete(held, filter)
			}
		}
		topic := word(part, false)
		if topic == "" {
			continue
		}
		subs, _ := b.tree.collect(topic, nil, nil, nil)
		var got, want []string
		for _, sub := range subs {
			got = append(got, sub.Filter)
		}
		for filter := range held {
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
	checkNodes(t, &b.tree)
	s.End()
	if b.tree.root.count != 0 || b.tree.root.plus != nil || b.tree.root.child != nil || b.tree.root.children != nil || b.tree.exact != nil {
		t.Errorf("after End the tree has %+v", b.tree.root)
	}
}

// checkNodes counts the filters and nodes of the tree, which must be in proportion.
func checkNodes(t *testing.T, tree *tree) (nodes int) {
	t.Helper()
	var walk func(n *node) int
	walk = func(n *node) int {
		if n == nil {
			return 0
		}
		nodes++
		filters := len(n.bucket)
		for _, e := range []*entry{n.end, n.hash} {
			if e != nil {
				filters++
			}
		}
		filters += walk(n.plus) + walk(n.child)
		for _, below := range n.children {
			filters += walk(below)
		}
		if filters != n.count || n != &tree.root && (n.count == 0 || !n.isLeaf && n.count <= bucketSize/2) {
			t.Errorf("a node with %d filters says %d; leaf: %t", filters, n.count, n.isLeaf)
		}
		return filters
	}
	filters := walk(&tree.root)
	if nodes > 10*filters+1 {
		t.Errorf("%d nodes for %d filters", nodes, filters)
	}
	return nodes
}

func TestTheTreeFindsWhatANaiveMatcherFinds(t *testing.T) {
	for seed := range uint64(60) {
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

// deep returns a topic of 64 levels a, and 1,000 filters that match it at every level but
// one: one of two ways at each of the first ten levels, then the same for all.
func deep(client int) (topic string, filters []string) {
	for i := range 1000 {
		var levels []string
		for bit := range 10 {
			levels = append(levels, []string{"a", "+"}[i>>bit&1])
		}
		for len(levels) < 63 {
			levels = append(levels, "+")
		}
		filters = append(filters, strings.Join(append(levels, fmt.Sprint("end", client)), "/"))
	}
	return strings.Repeat("a/", 63) + "a", filters
}

func TestASearchVisitsAFewNodesForEachFilterAtMost(t *testing.T) {
	b := newBroker(Limits{})
	for client := range 10 {
		topic, filters := deep(client)
		s := b.Session(fmt.Sprint(client))
		for _, filter := range filters {
			if _, err := s.Subscribe(Subscription{Filter: filter}); err != nil {
				t.Fatal(err)
			}
		}
		search := slice{mu: &b.tree.mu}
		b.tree.mu.RLock()
		found := b.tree.search(&search, topic, nil)
		b.tree.mu.RUnlock()
		if most := 10 * 1000 * (client + 1); search.steps > most || len(found) != 0 {
			t.Errorf("%d steps, want at most %d for 10 for each filter", search.steps, most)
		}
	}
	checkNodes(t, &b.tree)
}

func TestASearchGivesUpItsLockAfterSomeSteps(t *testing.T) {
	var search slice
	b := newBroker(Limits{})
	search.mu = &b.tree.mu
	b.tree.mu.RLock()
	defer b.tree.mu.RUnlock()
	got := make(chan bool, 1)
	go func() { b.tree.mu.Lock(); got <- true; b.tree.mu.Unlock() }()
	for range 1_000_000 * sliceSize {
		search.step(1)
		select {
		case <-got:
			return
		default:
		}
	}
	t.Error("a writer never got the lock")
}

func TestMatchesDoesNotAllocateForAnExactFilter(t *testing.T) {
	s := newBroker(Limits{}).Session("s")
	_, _ = s.Subscribe(Subscription{Filter: "clients/s/reply", Identifier: 3})
	if n := testing.AllocsPerRun(100, func() {
		if ids, ok := s.Matches("clients/s/reply"); !ok || len(ids) != 1 {
			t.Error("it does not match")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMatchesFollowsChanges(t *testing.T) {
	s := newBroker(Limits{}).Session("s")
	_, _ = s.Subscribe(Subscription{Filter: "a/b", Identifier: 1})
	_, _ = s.Subscribe(Subscription{Filter: "a/+", Identifier: 2})
	_, _ = s.Subscribe(Subscription{Filter: "$share/g/a/#", Identifier: 3})
	for range 2 {
		if ids, ok := s.Matches("a/b"); !ok || !slices.Equal(ids, []int{1, 2}) {
			t.Errorf("identifiers %v, %t; want 1 and 2", ids, ok)
		}
	}
	s.Unsubscribe("a/+")
	if ids, ok := s.Matches("a/b"); !ok || !slices.Equal(ids, []int{1}) {
		t.Errorf("identifiers %v, %t; want 1", ids, ok)
	}
	if s.Unsubscribe("a/b"); func() bool { _, ok := s.Matches("a/b"); return ok }() {
		t.Error("a shared subscription matches")
	}
}

func TestFiltersThatGoTakeTheirNodesWithThem(t *testing.T) {
	b := newBroker(Limits{})
	s := b.Session("s")
	_, filters := deep(0)
	for _, filter := range filters {
		subscribe(t, s, Subscription{Filter: filter})
	}
	for _, filter := range filters[5:] {
		s.Unsubscribe(filter)
	}
	if nodes := checkNodes(t, &b.tree); nodes > 10 {
		t.Errorf("%d nodes for 5 filters", nodes)
	}
}
