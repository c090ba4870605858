package attach

import (
	"cmp"
	"strings"

	"github.com/tenurelock/tenure/internal/protocol"
)

// presenceTopic is the topic on which attached stores find each other. It belongs to the store, like
// all topics below protocol.Service. Every message on it is retained, and the broker sends all
// messages to every store in the same order, which decides which store was first.
const presenceTopic = protocol.Service + "/store/presence"

// The words on presenceTopic, each followed by a space and the name of the instance.
const (
	saysClaims  = "claims"  // this store wants to answer requests, if no other one does
	saysFirst   = "first"   // this store claimed earlier
	saysAnswers = "answers" // this store answers requests
	saysGone    = "gone"    // this store no longer does; also the Will
)

// presence is what an attached store knows about other stores on its broker, for one connection.
// hear takes every message on presenceTopic, in order, and returns how to react. It is not safe
// for concurrent use.
type presence struct {
	me   string
	data string // how the names of stores end that have, or had, the data of this one; empty: it has no journal
	// shared: they run at the same time, and their journal decides which of them answers.
	shared bool
	stage  stage
	// continues: this store goes on with its data, so no other one may have answered since.
	continues bool
	// successor is a store with other data that has answered since, if continues; or empty.
	successor string
	// silent is another store that answers or claims by a retained message, and has sent
	// nothing since; or empty.
	silent string
	// survived: the broker has published this store's Will, so it ran on when the last
	// connection was lost.
	survived bool
	// vacant: this store has yielded to one that is gone, so no other message will replace its
	// retained claim.
	vacant bool
	// memory is what earlier connections learnt.
	memory presenceMemory
}

// presenceMemory is what a store remembers about presenceTopic from one connection to the next.
type presenceMemory struct {
	// served: this store has answered requests.
	served bool
	// predecessor is the store in the retained message before this one served, or empty. A
	// broker that crashed may send that message again.
	predecessor string
}

// stage is how far a store has come.
type stage uint8

const (
	claiming  stage = iota // the broker has not sent this store its own claim yet
	claimed                // it has, and no other store was first
	answering              // this store answers requests
	yielded                // another store does; this one has given up
)

// reaction is how to react to a message on presenceTopic. saysAnswers or saysFirst: announce that again, since
// another store asks or has replaced the retained message.
type reaction string

const (
	ignore reaction = ""
	// yield: another store was first, or has taken over while this one was disconnected.
	yield reaction = "yields"
)

// hear takes a message and returns how to react. replayed is true for the one that the broker had
// retained.
func (p *presence) hear(text string, replayed bool) reaction {
	word, instance, ok := strings.Cut(text, " ")
	switch {
	case !ok || p.stage == yielded:
		return ignore // empty, or not from a store
	case instance == p.me:
		if word == saysClaims && p.stage == claiming && !replayed {
			p.stage = claimed
		}
		p.survived = p.survived || replayed && word == saysGone
	case p.shared && strings.HasSuffix(instance, p.data):
		// Their journal decides which of them answers, so this one neither yields nor waits. Only
		// the retained message must not say that none does. One says so once, so two that both
		// believe that they answer do not go on for ever.
		if word == saysGone && !replayed && p.stage == answering {
			return saysAnswers
		}
	case replayed && (word == saysAnswers || word == saysGone) && p.isOlder(instance):
		p.stage, p.vacant = yielded, word == saysGone
		if !p.memory.served {
			p.successor = instance
		}
		return yield
	case replayed:
		if !p.memory.served {
			p.memory.predecessor = instance
		}
		if word != saysGone {
			p.silent = instance
		}
	case word == saysAnswers, word == saysFirst && p.stage != answering, word == saysClaims && p.stage == claiming:
		p.stage = yielded
		return yield
	default:
		if word == saysGone && instance == p.silent {
			p.silent = ""
		}
		if p.stage == answering {
			return saysAnswers
		} else if p.free() {
			return saysFirst
		}
	}
	return ignore
}

// isOlder reports whether the data of this store is older than those of a store that has answered, even if that is
// gone by now: it did while this store was disconnected, or before this process began. Then the journal lacks the
// changes and the leases of the other store. Names of stores with the same data end alike.
func (p *presence) isOlder(instance string) bool {
	if p.memory.served {
		return instance != p.memory.predecessor
	}
	return p.continues && !strings.HasSuffix(instance, p.data)
}

// free reports whether this store may answer requests: no store that was first is still there.
// This is certain only after objectionTimeout: a newer claim may have replaced the retained
// message of a store that was first.
func (p *presence) free() bool { return p.stage == claimed && p.silent == "" }

// retained reports whether the broker may retain a message of this store.
func (p *presence) retained() bool { return p.stage != yielded || p.vacant }

// departed returns the store to announce as gone when this one disconnects. If another store has answered
// since this data was used, that must stay known: or the next start with this data would be taken for its
// continuation.
func (p *presence) departed() string { return cmp.Or(p.successor, p.me) }

// answer notes that this store answers requests. It reports false if it has yielded.
func (p *presence) answer() bool {
	if p.stage == yielded {
		return false
	}
	p.stage = answering
	p.memory.served = true
	return true
}
