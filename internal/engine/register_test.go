package engine

import (
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

// An operation is one request for the key k, as its caller saw it.
type operation struct {
	words     []string
	value     string        // of SET and VDEL
	condition string        // of SET: "", NX or NEX
	lifetime  time.Duration // of SET; 0: none
	token     hlc.Token     // zero: none
	at        time.Duration // when it was made, in virtual time, which stands still during the call
	reply     statestore.Reply
}

// A register is the model: what docs/protocol.md §2.2 and §4.3 say about one key.
type register struct {
	exists          bool
	value           string
	version, latest hlc.Timestamp // of the value, zero after a restart; of all values so far
	deadline        time.Duration // 0: none
	lifetime        time.Duration // with which the value was set, or longer: its record's
	token           hlc.Token
	strict          bool // the store keeps fences
}

// at returns the register at a time.
func (r register) at(now time.Duration) register {
	if r.exists && r.deadline != 0 && now >= r.deadline {
		return r.gone()
	}
	return r
}

// gone returns the register without its value.
func (r register) gone() register {
	if !r.strict {
		r.token = hlc.Token{}
	}
	return register{latest: r.latest, token: r.token, strict: r.strict}
}

// raised returns the register after a token was used on a protected key.
func (r register) raised(token hlc.Token) register {
	if !r.token.IsZero() {
		r.token = higher(r.token, token)
	}
	return r
}

// has reports whether the value can have a version, and notes it.
func (r *register) has(version hlc.Timestamp) bool {
	if r.version.IsZero() && version.Compare(r.latest) > 0 {
		r.version, r.latest = version, version
	}
	return r.version == version
}

// renews reports whether a SET changes nothing that a restart must know.
func (r *register) renews(o operation) bool {
	return r.exists && r.value == o.value && o.lifetime > 0 && o.lifetime <= r.lifetime && o.token.Compare(r.token) <= 0
}

// apply returns the register after an operation, and false if the operation cannot have had
// its reply here.
func (r register) apply(o operation) (register, bool) {
	r = r.at(o.at)
	got := o.reply
	if o.words[0] == "GET" {
		if !r.exists {
			return r, got.Outcome == statestore.Missing
		}
		return r, got.Outcome == statestore.Found && got.Value == r.value && r.has(got.Version)
	}
	switch {
	case !r.token.IsZero() && o.token.IsZero():
		return r, got.Err == protocol.FencingTokenRequired
	case o.token.Compare(r.token) < 0:
		return r, got.Err == protocol.FencingTokenLower
	}
	if o.words[0] != "SET" {
		switch {
		case !r.exists:
			return r.raised(o.token).gone(), got.Outcome == statestore.NothingThere
		case o.words[0] == "VDEL" && r.value != o.value:
			return r, got.Outcome == statestore.ConditionFailed
		}
		ok := got.Outcome == statestore.Deleted && r.has(got.Version)
		return r.raised(o.token).gone(), ok
	}
	if r.exists && (o.condition == "NX" || o.condition == "NEX" && r.value != o.value) {
		return r, got.Outcome == statestore.ConditionFailed && r.has(got.Version)
	}
	ok := got.Outcome == statestore.OK && got.Version.Compare(r.latest) > 0
	lifetime := o.lifetime
	if r.renews(o) {
		lifetime = r.lifetime
	}
	r = register{exists: true, value: o.value, version: got.Version, latest: got.Version, lifetime: lifetime, token: higher(r.token, o.token), strict: r.strict}
	if o.lifetime > 0 {
		r.deadline = o.at + o.lifetime
	}
	return r, ok
}

func higher(a, b hlc.Token) hlc.Token {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}
