package pubsub

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// bucketSize is how many filters a node stores as a plain list. With more it gets children,
	// and with half of that it becomes a list again. So a filter takes few nodes, however many
	// levels it has.
	bucketSize = 16
	// sliceSize is how many steps a search takes before it releases its lock.
	sliceSize = 512
)

// tree has the subscriptions of all sessions by their filters: those without a wildcard in a map,
// the others in a tree with a level of the filter on each edge. There is one path to each node,
// so a search visits each node at most once, however many filters and wildcards there are.
type tree struct {
	mu    sync.RWMutex
	exact map[string]*entry
	root  node // never a leaf
}

// entry has the subscriptions of one filter.
type entry struct {
	filter string
	plain  []*subscription
	groups map[string]*group
}

// group has the members of a shared subscription of one filter.
type group struct {
	members []*subscription // guarded by tree.mu
	next    atomic.Uint32   // index of the member that is next
}

// node is a node of the tree. It has the filters that begin with the levels on the path to it.
type node struct {
	count  int // of the filters in this node and below
	isLeaf bool
	bucket []item // of a leaf

	end, hash *entry // the filter that ends here, and the one that ends here with #
	plus      *node
	level     string // of child; most nodes have one child at most
	child     *node
	children  map[string]*node
}

// item is a filter in a leaf: the rest of the filter below it.
type item struct {
	rest string
	more bool
	of   *entry
}

// find returns the entry of a filter, or nil.
func (t *tree) find(filter string) *entry {
	if !isWildcard(filter) {
		return t.exact[filter]
	}
	n, rest, more := &t.root, filter, true
	for n != nil && !n.isLeaf {
		if !more {
			return n.end
		}
		var level string
		if level, rest, more = cut(rest); level == "#" {
			return n.hash
		}
		n = n.get(level)
	}
	if n == nil {
		return nil
	}
	for _, i := range n.bucket {
		if i.of.filter == filter {
			return i.of
		}
	}
	return nil
}

// add adds a subscription, or replaces the one that the session has with the same filter.
func (t *tree) add(sub, before *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before != nil {
		sub.entry, sub.group, sub.at = before.entry, before.group, before.at
		sub.list()[sub.at] = sub
		return
	}
	e := t.find(sub.plain)
	if e == nil {
		e = &entry{filter: sub.plain}
		if isWildcard(e.filter) {
			t.root.add(item{rest: e.filter, more: true, of: e})
		} else {
			if t.exact == nil {
				t.exact = make(map[string]*entry)
			}
			t.exact[e.filter] = e
		}
	}
	sub.entry = e
	if sub.groupName == "" {
		sub.at = len(e.plain)
		e.plain = append(e.plain, sub)
		return
	}
	if e.groups == nil {
		e.groups = make(map[string]*group)
	}
	sub.group = e.groups[sub.groupName]
	if sub.group == nil {
		sub.group = &group{}
		e.groups[sub.groupName] = sub.group
	}
	sub.at = len(sub.group.members)
	sub.group.members = append(sub.group.members, sub)
}

// remove removes a subscription.
func (t *tree) remove(sub *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := removeAt(sub.list(), sub.at, func(sub *subscription) *int { return &sub.at })
	e := sub.entry
	if sub.group == nil {
		e.plain = rest
	} else if sub.group.members = rest; len(rest) == 0 {
		delete(e.groups, sub.groupName)
	}
	if len(e.plain)+len(e.groups) > 0 {
		return
	}
	if isWildcard(e.filter) {
		t.root.remove(e, e.filter, true, 0)
		return
	}
	if delete(t.exact, e.filter); len(t.exact) == 0 {
		t.exact = nil // maps do not shrink
	}
}

func (n *node) get(level string) *node {
	switch {
	case level == "+":
		return n.plus
	case n.child != nil && n.level == level:
		return n.child
	}
	return n.children[level]
}

func (n *node) add(i item) {
	n.count++
	if !n.isLeaf {
		n.place(i)
		return
	}
	n.bucket = append(n.bucket, i)
	if len(n.bucket) > bucketSize {
		bucket := n.bucket
		n.isLeaf, n.bucket = false, nil
		for _, i := range bucket {
			n.place(i)
		}
	}
}

// place adds a filter to a node with children.
func (n *node) place(i item) {
	if !i.more {
		n.end = i.of
		return
	}
	level, rest, more := cut(i.rest)
	if level == "#" {
		n.hash = i.of
		return
	}
	below := n.get(level)
	if below == nil {
		below = &node{isLeaf: true}
		switch {
		case level == "+":
			n.plus = below
		case n.child == nil && len(n.children) == 0:
			n.level, n.child = level, below
		default:
			if n.children == nil {
				n.children = make(map[string]*node)
			}
			n.children[level] = below
		}
	}
	below.add(item{rest: rest, more: more, of: i.of})
}

// remove removes an entry below a node at some depth. A search may still hold nodes that are
// removed, so they stay as they are.
func (n *node) remove(e *entry, rest string, more bool, depth int) {
	n.count--
	if n.isLeaf {
		n.bucket = slices.DeleteFunc(n.bucket, func(i item) bool { return i.of == e })
		return
	}
	if depth > 0 && n.count <= bucketSize/2 {
		bucket := n.gather(nil, e)
		for i := range bucket {
			bucket[i].rest, bucket[i].more = skip(bucket[i].of.filter, depth)
		}
		*n = node{count: n.count, isLeaf: true, bucket: bucket}
		return
	}
	if !more {
		n.end = nil
		return
	}
	level, rest, more := cut(rest)
	if level == "#" {
		n.hash = nil
		return
	}
	below := n.get(level)
	below.remove(e, rest, more, depth+1)
	if below.count > 0 {
		return
	}
	switch below {
	case n.plus:
		n.plus = nil
	case n.child:
		n.level, n.child = "", nil
	default:
		if delete(n.children, level); len(n.children) == 0 {
			n.children = nil
		}
	}
}

// gather returns all entries in and below a node, except one.
func (n *node) gather(items []item, but *entry) []item {
	if n == nil {
		return items
	}
	for _, e := range []*entry{n.end, n.hash} {
		if e != nil && e != but {
			items = append(items, item{of: e})
		}
	}
	for _, i := range n.bucket {
		if i.of != but {
			items = append(items, item{of: i.of})
		}
	}
	items = n.plus.gather(items, but)
	items = n.child.gather(items, but)
	for _, below := range n.children {
		items = below.gather(items, but)
	}
	return items
}

// slice is a search under the lock of a tree, which it releases and takes again after some steps.
// It may find or miss subscriptions that are added or removed meanwhile. It finds all others,
// since removed nodes and entries stay as they are.
type slice struct {
	mu    *sync.RWMutex
	steps int // in all
	uncut int // since it took the lock
	of    *steps
}

func (s *slice) step(steps int) {
	s.steps += steps
	if s.uncut += steps; s.uncut < sliceSize {
		return
	}
	s.mu.RUnlock()
	s.of.add(s.uncut)
	s.uncut = 0
	s.mu.RLock()
}

// collect appends the subscriptions and the groups with filters that match a topic. It may append a
// subscription twice.
func (t *tree) collect(topic string, subs []*subscription, groups []*group, steps *steps) ([]*subscription, []*group) {
	search := slice{mu: &t.mu, of: steps}
	t.mu.RLock()
	defer t.mu.RUnlock()
	var room [16]*entry
	entries := room[:0]
	if e := t.exact[topic]; e != nil {
		entries = append(entries, e)
	}
	if t.root.count > 0 {
		entries = t.search(&search, topic, entries)
	}
	for _, e := range entries {
		// Backwards: when one is removed, the last one, which was visited already, takes its
		// place.
		for i := len(e.plain) - 1; i >= 0; i-- {
			if i < len(e.plain) {
				subs = append(subs, e.plain[i])
			}
			search.step(1)
		}
		for _, g := range e.groups {
			groups = append(groups, g)
			search.step(1)
		}
	}
	return subs, groups
}

// search appends the entries of filters with a wildcard that match a topic.
func (t *tree) search(search *slice, topic string, entries []*entry) []*entry {
	type place struct {
		n    *node
		rest string
		more bool
	}
	var room [16]place
	places := append(room[:0], place{&t.root, topic, true})
	for len(places) > 0 {
		p := places[len(places)-1]
		places = places[:len(places)-1]
		n := p.n
		search.step(1 + len(n.bucket)/4)
		if n.isLeaf {
			for _, i := range n.bucket {
				if matchRest(i.rest, i.more, p.rest, p.more) {
					entries = append(entries, i.of)
				}
			}
			continue
		}
		own := n == &t.root && strings.HasPrefix(topic, "$") // not for a wildcard [MQTT-4.7.2-1]
		if n.hash != nil && !own {
			entries = append(entries, n.hash)
		}
		if !p.more {
			if n.end != nil {
				entries = append(entries, n.end)
			}
			continue
		}
		level, rest, more := cut(p.rest)
		if n.plus != nil && !own {
			places = append(places, place{n.plus, rest, more})
		}
		if level == "+" {
			continue // not a topic's
		}
		if below := n.get(level); below != nil {
			places = append(places, place{below, rest, more})
		}
	}
	return entries
}

// candidates appends the members of a group, from the one that is after places behind index from,
// until to is full. It returns how many members the group has.
func (t *tree) candidates(g *group, from, after int, to []*subscription) ([]*subscription, int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := len(g.members)
	for ; after < all && len(to) < cap(to); after++ {
		to = append(to, g.members[(from+after)%all])
	}
	return to, all
}
