package statestore

import (
	"strings"

	"github.com/tenurelock/tenure/hlc"
)

// stamp is a version in the memory of a store. It has a pointer to its node, because nearly
// all versions have the store's own: a string would take eight bytes more in each key and each
// remembered reply. The zero value means that there is none.
type stamp struct {
	wall    int64
	counter uint64
	node    *string
}

func (s stamp) timestamp() hlc.Timestamp {
	if s.node == nil {
		return hlc.Timestamp{}
	}
	return hlc.Timestamp{Wall: s.wall, Counter: s.counter, Node: *s.node}
}

// nodes are the nodes of versions, each once in memory. A store has versions of other nodes if
// its data comes from an earlier store with another Options.Node.
type nodes struct {
	own    *string
	others map[string]*string
}

func (n *nodes) intern(node string) *string {
	if node == *n.own {
		return n.own
	}
	known := n.others[node]
	if known == nil {
		known = new(string)
		*known = strings.Clone(node)
		if n.others == nil {
			n.others = make(map[string]*string)
		}
		n.others[*known] = known
	}
	return known
}

// stamp returns the version of a timestamp.
func (n *nodes) stamp(t hlc.Timestamp) stamp {
	if t.IsZero() {
		return stamp{}
	}
	return stamp{wall: t.Wall, counter: t.Counter, node: n.intern(t.Node)}
}
