package server

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
	saysAnswers = "answers" // I am the store
	saysGone    = "gone"    // I am not; also the Will
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
}

// stage is how far a store has come.
type stage uint8

const (
	claiming  stage = iota // our claim has not come back to us
	claimed                // it has, and none was before it
	answering              // we are the store
)

// reaction is what to do about a message on presenceTopic.
type reaction uint8

const (
	ignore reaction = iota
	// insist: say again that we are the store, since another asks, or has replaced our
	// retained message by its own.
	insist
	// yield: another was first, or has taken over while we were silent.
	yield
)

// hear takes in a message. replayed is true for the one that the broker had retained.
func (p *presence) hear(text string, replayed bool) reaction {
	word, who, ok := strings.Cut(text, " ")
	switch {
	case !ok:
		return ignore // deleted, or not ours
	case who == p.me:
		if word == saysClaims && p.stage == claiming {
			p.stage = claimed
		}
		p.survived = p.survived || replayed && word == saysGone
	case replayed:
		if word != saysGone {
			p.silent = who
		}
	case word == saysAnswers:
		return yield
	case word == saysClaims && p.stage == claiming:
		return yield
	case word == saysGone && who == p.silent:
		p.silent = ""
	case p.stage == answering:
		return insist
	}
	return ignore
}

// free reports whether the store is ours to be: nobody was before us who is still there.
func (p *presence) free() bool { return p.stage != claiming && p.silent == "" }
