package statestore

import (
	"strings"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
)

// token returns the fencing token that protects a key, or zero.
func (s *Store) token(current *entry, key string) hlc.Token {
	if current != nil {
		return current.token
	}
	return s.fences[key] // empty unless the store is strict
}

// checkToken applies the fencing rule: a protected key changes only for an equal
// or newer token.
func (s *Store) checkToken(current *entry, command *Command) protocol.Refusal {
	if !command.writes() {
		return ""
	}
	if s.options.Strict && command.token.present && s.neverIssued(command.token.value) {
		return protocol.FencingTokenNeverIssued
	}
	protection := s.token(current, command.Key)
	switch {
	case protection.IsZero():
		return ""
	case !command.token.present:
		return protocol.FencingTokenRequired
	case command.token.value.Compare(protection) < 0:
		return protocol.FencingTokenLower
	}
	return ""
}

// neverIssued reports whether a token is above every version that this store has issued.
func (s *Store) neverIssued(token hlc.Token) bool {
	return hlc.Timestamp(token).Compare(s.clock) > 0
}

// newerToken returns the newer of a key's token and that of a command. It does
// not keep the command's memory alive: Parse left the node where it found it, in a
// message that the network layer may use again.
func newerToken(protection hlc.Token, command *Command) hlc.Token {
	if !command.token.present || command.token.value.Compare(protection) <= 0 {
		return protection
	}
	newer := command.token.value
	newer.Node = strings.Clone(newer.Node)
	return newer
}

// outlive keeps the fence of a key that goes away, in a strict store. A fence is
// raised by whoever may delete the key, and never lowered or dropped.
func (s *Store) outlive(key string, fence hlc.Token) {
	if !s.options.Strict || fence.IsZero() {
		return
	}
	if _, known := s.fences[key]; !known {
		s.bytes += int64(len(key))
	}
	s.fences[key] = fence
}

// revive takes the fence of a key that is set again.
func (s *Store) revive(key string) hlc.Token {
	fence, ok := s.fences[key]
	if ok {
		delete(s.fences, key)
		s.bytes -= int64(len(key))
	}
	return fence
}

// checkLock applies the rule for keys under lock prefixes: a client that sets one names
// itself in the value and cannot hold the key for ever, and no client speaks for another.
// A request with a fencing token is refused, since a fence on a lock would keep out its
// own holder, who renews without one.
func (s *Store) checkLock(command *Command) protocol.Refusal {
	if !command.writes() || !s.isLock(command.Key) {
		return ""
	}
	if command.token.present {
		return protocol.LockRule
	}
	own := strings.HasPrefix(string(command.Value), command.Client+":")
	switch {
	case command.Verb == VerbSet && own && command.Lifetime > 0:
		return ""
	case command.Verb == VerbVDel && own:
		return ""
	}
	return protocol.LockRule
}

func (s *Store) isLock(key string) bool {
	for _, prefix := range s.options.LockPrefixes {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

func (c *Command) writes() bool {
	return c.Verb == VerbSet || c.Verb == VerbDel || c.Verb == VerbVDel
}
