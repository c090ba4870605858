package simulation

import (
	"errors"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// applied is the store's tap.
func (c *checker) applied(a transporttest.Applied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.meetLocked(a.Store)
	if a.Again && !c.judgedAnewLocked(a) {
		return
	}
	switch a.Command.Key {
	case lockKey:
		c.lockAppliedLocked(a)
	case dataKey:
		c.dataAppliedLocked(a)
	}
}

// judgedAnewLocked reports whether a SET that was delivered again has set its key: the first delivery
// changed nothing, and a crash made the store forget that.
func (c *checker) judgedAnewLocked(a transporttest.Applied) bool {
	newest := c.highest
	if a.Command.Key == dataKey {
		newest = c.count
	}
	return a.Command.Verb == statestore.VerbSet && a.Reply.Outcome == statestore.OK && a.Reply.Version.Compare(newest) > 0
}

// meetLocked notes the identity of the store.
func (c *checker) meetLocked(identity string) {
	if identity != c.store {
		c.store = identity // an empty one
		c.value, c.held, c.highest, c.count = "", "", hlc.Timestamp{}, hlc.Timestamp{}
		c.written, c.writer, c.began, c.restored, c.released = "", hlc.Token{}, hlc.Token{}, "", false
	}
}

func (c *checker) lockAppliedLocked(a transporttest.Applied) {
	now := a.At.Sub(c.sim.began) // its reply may leave later
	if c.value != "" && now >= c.expires {
		c.value = ""
	}
	value := string(a.Command.Value)
	if c.sim.tracing && a.Command.Verb != statestore.VerbKeyNotify {
		c.sim.tracef("store: %v of %s by %s: %v", a.Command.Verb, c.nameLocked(value), a.Client, a.Reply.Outcome)
	}
	switch {
	case a.Command.Verb == statestore.VerbSet && a.Reply.Outcome == statestore.OK:
		if a.Reply.Version.Compare(c.highest) <= 0 {
			c.violationLocked("the store gave version %v after %v", a.Reply.Version, c.highest)
		}
		c.highest, c.restored, c.released = a.Reply.Version, "", false
		c.value, c.held, c.expires = value, value, now+a.Command.Lifetime
		c.versions[a.Reply.Version], c.grants[a.Reply.Version] = value, a.Store
		// The first request of a client is not bound to a store: the client knows none.
		first := a.Request.Binding.Store == "" && c.firsts[value] && !c.sim.anonymous
		if h := c.owners[value]; h != nil && h.store != a.Store && !first {
			c.violationLocked("%s was renewed at a store that did not grant it", h.name)
		}
	case a.Command.Verb == statestore.VerbSet && a.Reply.Outcome == statestore.ConditionFailed:
		c.refused[value] = true
		if c.released && !a.Reply.Version.IsZero() { // a refusal during the hold-off has no version
			c.violationLocked("%s is refused the lease, which the restart of the store released", c.nameLocked(value))
		}
	case a.Reply.Outcome == statestore.Deleted:
		if a.Command.Verb != statestore.VerbVDel || value != c.value {
			c.violationLocked("%s deleted the lease of %s", a.Client, c.nameLocked(c.value))
		}
		c.value = ""
	}
	c.checkLocked()
}

func (c *checker) dataAppliedLocked(a transporttest.Applied) {
	text := a.Request.FencingToken
	if c.sim.tracing {
		c.sim.tracef("store: %v %q by %s: %v %v %q %v", a.Command.Verb, a.Command.Value, a.Client, a.Reply.Outcome, a.Reply.Err, a.Reply.Value, a.Reply.Version)
	}
	if errors.Is(a.Reply.Err, transport.ErrFencingTokenLower) {
		c.fenced[text] = true
	}
	if a.Command.Verb != statestore.VerbSet || a.Reply.Outcome != statestore.OK {
		return
	}
	if a.Reply.Version.Compare(c.count) <= 0 {
		c.violationLocked("the store gave version %v of the protected key after %v", a.Reply.Version, c.count)
	}
	c.count = a.Reply.Version
	token, err := hlc.ParseToken(text)
	version := hlc.Timestamp(token)
	value, issued := c.versions[version]
	if err != nil || !issued || c.grants[version] != a.Store {
		c.violationLocked("%s wrote under token %q, which this store did not issue", a.Client, text)
		return
	}
	if first, known := c.tokens[value]; known && first != text {
		c.violationLocked("%s wrote under a second token", c.nameLocked(value))
	}
	c.tokens[value] = text
	if token.Compare(c.writer) < 0 {
		c.violationLocked("%s wrote after a newer token", c.nameLocked(value))
	}
	if token != c.writer && string(a.Command.Value) != c.written {
		c.violationLocked("%s wrote %q over %q without a claim", c.nameLocked(value), a.Command.Value, c.written)
	}
	c.writer, c.written = token, string(a.Command.Value)
}

// recovered checks the records with which a store starts again. They are what was acknowledged,
// or what the store did last and could not say any more. The tap reports neither that nor what
// the crash undid.
func (c *checker) recovered(records []statestore.Record) {
	var lock, data, identity statestore.Item
	for _, record := range records {
		item, err := record.Decode()
		switch {
		case err != nil:
			c.violation("%v", err)
		case item.Kind == statestore.KindIdentity:
			identity = item
		case item.Key == lockKey:
			lock = item
		case item.Key == dataKey:
			data = item
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sim.tracef("store: has %q of the protected key, version %v, token %v", data.Value, data.Version, data.Token)
	switch {
	case identity.Identity == c.store:
	case identity.HoldOff: // a backup: what it lacks is lost
		c.meetLocked(identity.Identity)
		c.restored = lock.Value
	default:
		c.violationLocked("a crash made another store of it")
	}
	c.lockRecoveredLocked(lock)
	switch fresh := data.Version.Compare(c.count); {
	case fresh < 0:
		c.violationLocked("a crash lost %q of the protected key, version %v: there is %q, version %v", c.written, c.count, data.Value, data.Version)
	case data.Token.Compare(c.writer) < 0:
		c.violationLocked("a crash took the token of the protected key from %v back to %v", c.writer, data.Token)
	case fresh == 0 && data.Value != c.written:
		c.violationLocked("a crash made %q of %q", data.Value, c.written)
	}
	c.count, c.written, c.writer = data.Version, data.Value, data.Token
	c.checkLocked()
}

func (c *checker) lockRecoveredLocked(lock statestore.Item) {
	now := c.sim.elapsed()
	newer := lock.Version.Compare(c.highest) > 0
	switch {
	case lock.Kind != statestore.KindKey:
		// Its removal was not acknowledged, or nothing was there.
		if c.value != "" && now < c.expires && !c.freeing[c.value] && !c.willed[c.value] {
			c.violationLocked("a crash lost the lease of %s, which has %v left", c.nameLocked(c.value), c.expires-now)
		}
		c.value = ""
		return
	case newer:
	case lock.Value != c.held:
		c.violationLocked("a crash lost the lease of %s: the store has the lease of %s", c.nameLocked(c.held), c.nameLocked(lock.Value))
	}
	if newer {
		c.highest = lock.Version
		if c.grants[lock.Version] == "" {
			c.versions[lock.Version], c.grants[lock.Version] = lock.Value, c.store
		}
	}
	c.value, c.held, c.expires = lock.Value, lock.Value, now+lock.Lifetime
	if lock.Willed { // its connection ended with the store before
		c.value, c.released = "", true
		if !c.sim.instant {
			c.violationLocked("the lease of %s ends with its connection, which had no Will", c.nameLocked(lock.Value))
		}
	}
}
