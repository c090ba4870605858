package attach

import (
	"strings"

	"github.com/tenurelock/tenure/internal/protocol"
)

// presenceTopic is where attached stores see each other. It is the store's, as all topics
// below protocol.Service are. Every message on it is retained, and the broker's order of
// them is the same for all, which decides who was first.
const presenceTopic = protocol.Service + "/store/presence"

// What stores say on presenceTopic, followed by a space and the name of the instance.
const (
	saysClaims  = "claims"  // I want to be the store, if nobody else is
	saysFirst   = "first"   // I claimed before you
	saysAnswers = "answers" // I am the store
	saysGone    = "gone"    // I am not any more; also the Will
)

// presence is what an attached store knows of others on its broker, over one connection.
// It is told of every message on presenceTopic, in order, and says what to do about it.
// It is not safe for concurrent use.
type presence struct {
	me    string
	stage stage
	// silent is another of whom a retained message says that it is there, and which
	// has not said so itself since; or empty.
	silent string
	// survived: the broker has published our Will, so it outlived our last connection.
	survived bool
	// vacant: we gave way to one that is gone. Nobody is there who would replace our
	// claim.
	vacant bool
	// memory is what earlier connections left.
	memory presenceMemory
}

// presenceMemory is what a store keeps of presenceTopic from one connection to the next.
type presenceMemory struct {
	// served: we have been the store.
	served bool
	// predecessor is of whom a retained message spoke before we were, or empty. A broker
	// that crashed may speak of that one again.
	predecessor string
}

// stage is how far a store has come.
type stage uint8

const (
	claiming  stage = iota // our claim has not come back to us
	claimed                // it has, and none was before it
	answering              // we are the store
	yielded                // we gave way, for good
)

// reaction is what to do about a message on presenceTopic.
type reaction uint8

const (
	ignore reaction = iota
	// insist: say again that we are the store, or will be, since another asks, or has
	// replaced our retained message by its own.
	insist
	// yield: another was first, or has taken over while we were silent.
	yield
)

// hear takes in a message. replayed is true for the one that the broker had retained.
func (p *presence) hear(text string, replayed bool) reaction {
	word, who, ok := strings.Cut(text, " ")
	switch {
	case !ok || p.stage == yielded:
		return ignore // or deleted, or not a store's
	case who == p.me:
		if word == saysClaims && p.stage == claiming && !replayed {
			p.stage = claimed
		}
		p.survived = p.survived || replayed && word == saysGone
	case replayed && p.memory.served && who != p.memory.predecessor && (word == saysAnswers || word == saysGone):
		// It was the store while we were away. What we hold is older than what it held,
		// even if it is gone by now.
		p.stage, p.vacant = yielded, word == saysGone
		return yield
	case replayed:
		if !p.memory.served {
			p.memory.predecessor = who
		}
		if word != saysGone {
			p.silent = who
		}
	case word == saysAnswers, word == saysFirst && p.stage != answering, word == saysClaims && p.stage == claiming:
		p.stage = yielded
		return yield
	default:
		if word == saysGone && who == p.silent {
			p.silent = ""
		}
		if p.stage == answering || p.free() {
			return insist
		}
	}
	return ignore
}

// insists is what to say when one insists.
func (p *presence) insists() string {
	if p.stage == answering {
		return saysAnswers
	}
	return saysFirst
}

// free reports whether the store is ours to be: nobody was before us who is still there.
// It is not certain before whoever claimed earlier had time to say so: another may have
// replaced the retained message of that.
func (p *presence) free() bool { return p.stage == claimed && p.silent == "" }

// retained reports whether what we have said may be what the broker retains.
func (p *presence) retained() bool { return p.stage != yielded || p.vacant }

// answer makes us the store, unless we gave way.
func (p *presence) answer() bool {
	if p.stage == yielded {
		return false
	}
	p.stage = answering
	p.memory.served = true
	return true
}
