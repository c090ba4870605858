package statestore

import (
	"slices"
	"strings"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
)

// checkToken applies the fencing rule: a write to a protected key needs a token that is
// equal to the key's or higher.
func (s *Store) checkToken(current *entry, command *Command) protocol.Refusal {
	if !command.writes() {
		return ""
	}
	if s.options.Strict && s.neverIssued(command.token) {
		return protocol.FencingTokenNeverIssued
	}
	switch protection := s.protection(current, command); {
	case protection.IsZero():
		return ""
	case command.token.IsZero():
		return protocol.FencingTokenRequired
	case command.token.Compare(protection) < 0:
		return protocol.FencingTokenLower
	}
	return ""
}

// protection returns the token that protects the key of a command; zero: it is not protected.
func (s *Store) protection(current *entry, command *Command) hlc.Token {
	if current != nil {
		return current.token()
	}
	return s.fences[command.Key] // zero unless the store is strict
}

// neverIssued reports whether a token is above every version that this store has issued.
func (s *Store) neverIssued(token hlc.Token) bool {
	clock := s.versions.clock
	return token.Compare(hlc.Token{Wall: clock.wall, Counter: clock.counter, Node: storeNode}) > 0
}

// tokenSize is what a token counts towards Options.MaxBytes.
func tokenSize(token hlc.Token) int64 {
	if token.IsZero() {
		return 0
	}
	return 16 + int64(len(token.Node)) // a wall clock and a counter
}

// tokenGrows returns by how much a key grows, if the token of a command is higher than its own.
func tokenGrows(protection hlc.Token, command *Command) int64 {
	if command.token.Compare(protection) <= 0 {
		return 0
	}
	return tokenSize(command.token) - tokenSize(protection)
}

// fenceGrows returns by how much a DEL or a VDEL makes the store larger: in a strict store the fence stays, and
// may get a longer token.
func (s *Store) fenceGrows(current *entry, command *Command) int64 {
	protection, freed := s.protection(current, command), 0
	if current != nil {
		freed = len(current.value)
	}
	if !s.options.Strict || protection.IsZero() {
		return 0
	}
	return tokenGrows(protection, command) - int64(freed)
}

// higherToken returns the higher of a key's token and the command's. It clones the node of
// the latter, which is a part of a message whose buffer may be reused.
func higherToken(protection hlc.Token, command *Command) hlc.Token {
	if command.token.Compare(protection) <= 0 {
		return protection
	}
	higher := command.token
	higher.Node = strings.Clone(higher.Node)
	return higher
}

// keepFence keeps the fence of a removed key, if the store is strict. Clients that may
// delete the key can raise the fence, but not lower or drop it.
func (s *Store) keepFence(key string, fence hlc.Token) {
	if !s.options.Strict || fence.IsZero() {
		return
	}
	s.takeFence(key)
	s.fences[key] = fence
	s.bytes += int64(len(key)) + tokenSize(fence)
}

// takeFence returns the fence of a removed key that is set again, and no longer keeps it.
func (s *Store) takeFence(key string) hlc.Token {
	fence, ok := s.fences[key]
	if ok {
		delete(s.fences, key)
		s.bytes -= int64(len(key)) + tokenSize(fence)
	}
	return fence
}

// checkLock applies the rule for keys under lock prefixes: a client that writes one is the holder
// that the value names, and cannot hold the key forever. A fencing token is refused: the
// holder renews without one, so a fence would keep it out.
func (s *Store) checkLock(command *Command) protocol.Refusal {
	if !command.writes() || !s.isLock(command.Key) {
		return ""
	}
	// A prefix is not enough: gw is not gw:1, whose values begin alike.
	holder, _ := protocol.HolderOf(command.Value)
	own := len(holder) < len(command.Value) && string(holder) == command.Client
	allowed := command.Verb == VerbSet && command.Lifetime > 0 || command.Verb == VerbVDel
	if command.FencingToken != nil || !own || !allowed {
		return protocol.LockRule
	}
	return ""
}

func (s *Store) isLock(key string) bool {
	return slices.ContainsFunc(s.options.LockPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

func (c *Command) writes() bool {
	return c.Verb == VerbSet || c.Verb == VerbDel || c.Verb == VerbVDel
}
