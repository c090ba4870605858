package election

import (
	"time"

	"github.com/tenurelock/tenure/transport"
)

// stance is what a node is to the requests at the election's key. It is a value: heed decides what a
// request makes the node do, as a pure function.
type stance struct {
	options          *Options
	clientID, holder string
	tenure           string // the value of the tenure of the term; empty: there is no term
	holds            bool   // the node has the lease; without a term one is about to start or to end
	yields           bool   // the hold-down of the term is over
	campaigning      bool   // the node waits for the lease, and only a leader keeps it from that
}

// source is how the node came to know what the key holds.
type source uint8

const (
	notified  source = iota // a notification, which may be forged, repeated or late, says so
	confirmed               // the store says so
	due                     // the store says so, and the time of an answer has come
)

// deed is what a request makes a node do.
type deed uint8

const (
	ignore     deed = iota
	compete         // take the lease in turn, by the rank
	confirm         // read the key, and heed what it holds
	leadOn          // no candidate has answered yet
	yield           // end the term, for a better rank
	refuse          // answer a switchover with a refusal
	handOver        // end the term, for a switchover
	answer          // answer a switchover: this node is ready
	answerSoon      // the same in a while, if the key still asks then
	goFirst         // take the lease without the delay of the rank
	goLater         // take the lease later than the rank says
)

// heed returns what a node does about what the key holds. A notification only says when to read the key,
// and only if what it says would matter.
func (s stance) heed(entry transport.Entry, from source) (do deed) {
	request, isRequest := parseFailBackRequest(entry)
	r, isSwitchover := parseSwitchover(entry)
	asked := r.state == switchoverAsked && s.campaigning
	switch leads := s.tenure != ""; {
	case s.holds && !leads:
	case leads && isRequest && request.rank < s.options.Rank && s.yields:
		do = yield
	case !leads && !isSwitchover:
		do = compete
	case !isSwitchover, leads && (r.tenure != s.tenure || r.state == switchoverRefused):
	case leads && s.options.RefuseSwitchover:
		do = refuse
	case leads && r.state == switchoverReady:
		do = handOver
	case leads:
		do = leadOn
	case asked && (r.to == s.holder || r.to == "" && from == due):
		do = answer
	case asked && r.to == "":
		do = answerSoon
	case r.state == switchoverReady && r.clientID == s.clientID:
		do = goFirst
	case r.state == switchoverReady:
		do = goLater
	}
	if from == notified && do > compete {
		return confirm
	}
	return do
}

// acquireDelay returns how long the node leaves a free lease to others. The one that goes first was there a
// moment ago. Should it not come, the others go in their turn, before the hold-off of the former leader ends.
func (s stance) acquireDelay(do deed) time.Duration {
	rank := s.options.Lease.AcquireDelay
	return map[deed]time.Duration{compete: rank, goFirst: 0, goLater: rank + s.options.TTL/4}[do]
}
