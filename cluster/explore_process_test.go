package cluster

import (
	"slices"
	"strconv"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// What a process of explore_test.go does around the decisions: the goroutines of Candidate and Journal.

// send puts a request under way.
func (w *world) send(i uint8, r request) {
	p := &w.processes[i]
	m := message{request: r, process: i, term: p.term, seen: p.seen, value: p.memory + 1, began: p.clock, attempt: p.proofs.sent}
	m.keep = r == prove && p.phase == active
	if !m.keep {
		p.waited = 0
	}
	w.messages = append(w.messages, m)
}

// asks returns the request whose answer a process waits for.
func (p *process) asks() (request, bool) {
	switch {
	case p.phase == looking:
		return look, true
	case p.phase == taking:
		return take, true
	case p.phase == proving:
		return prove, true
	case p.phase == active && !p.loaded:
		return load, true
	case p.phase == active && p.writing:
		return write, true
	}
	return resign, p.phase == closing
}

// answered ends a request: what is still under way of it has no listener any more, and what only reads no effect.
func (w *world) answered(i uint8, ends func(message) bool) {
	w.messages = slices.DeleteFunc(w.messages, func(m message) bool {
		return m.process == i && ends(m) && (m.answer || m.request == look || m.request == prove || m.request == load)
	})
	for n := range w.messages {
		if m := &w.messages[n]; m.process == i && ends(*m) {
			m.orphan = true
		}
	}
}

func every(message) bool { return true }

// receive hands an answer to its process.
func (w *world) receive(m message) error {
	i, p := m.process, &w.processes[m.process]
	if m.keep {
		next, do := p.proofs.next(p.clock, &proof{m.attempt, m.began, m.err})
		p.proofs = next
		if do.over != nil {
			w.close(i)
		} else if do.send {
			w.send(i, prove)
		}
		return nil
	}
	w.answered(i, func(m message) bool { return !m.keep })
	switch m.request {
	case look: // as Candidate.try does
		if w.leader != i {
			w.failed(i, nil)
			return nil
		}
		w.terms++
		p.seen, p.term = m.seen, term{keys: modelKeys, claim: claim{Term: "t" + strconv.Itoa(w.terms)}}
		last := p.last
		p.last = p.term.claim
		p.wait = p.term.claim.inherit(m.seen, last, p.validity)
		p.phase = taking
		w.send(i, take)
	case take:
		if p.term.revision = m.won; m.won == 0 {
			w.failed(i, nil)
			return nil
		}
		p.proofs = proofs{span: span{validity: p.validity, from: answersFrom(p.clock, p.wait)}}
		p.phase = proving
		w.send(i, prove)
		if !w.rough && p.wait != 0 {
			return broken("decision 12: %s waits though the one before resigned", name(i))
		}
	case prove:
		p.proofs.deadline, p.proofs.due = m.began+p.validity, p.clock
		if m.err != nil || !p.proofs.lasts(p.clock) {
			w.close(i)
			return nil
		}
		p.phase, p.vain, p.loaded, p.serving, p.served = active, 0, false, false, false
		w.send(i, load)
	case load:
		if m.err != nil {
			w.close(i)
			return nil
		}
		p.loaded, p.memory = true, m.value
	case write: // as Journal.Commit does
		p.writing = false
		if m.err != nil || !p.proofs.lasts(p.clock) {
			w.close(i)
			return nil
		}
		p.term.sequence++
		p.memory, w.acked = m.value, max(w.acked, m.value)
	case resign:
		w.closed(i)
	}
	return nil
}

// failed ends an attempt to take the key.
func (w *world) failed(i uint8, err error) {
	p := &w.processes[i]
	if p.vain = min(p.vain+1, maxTries); err == nil {
		p.vain = 0
	}
	p.phase, p.waited = pausing, 0
}

// close ends a standing, as Journal.Close does. If the first proof failed, the attempt to take the key fails then.
func (w *world) close(i uint8) {
	p := &w.processes[i]
	p.unproved, p.writing = p.phase == proving, false
	w.answered(i, every)
	p.term.claim = p.term.claim.resign(p.proofs.left(p.clock))
	p.phase = closing
	w.send(i, resign)
}

// closed goes on with the campaign after an attempt that failed, or begins the next one, or another process.
func (w *world) closed(i uint8) {
	p := &w.processes[i]
	before := *p
	*p = process{clock: p.clock, rate: p.rate, validity: p.validity, last: p.term.claim, waited: 1}
	switch {
	case before.leaves:
		p.last, w.leader = claim{}, 1-i
	case before.unproved:
		p.vain = before.vain
		w.failed(i, errNoAnswer)
	}
}

// answers reports whether a process answers from memory.
func (p *process) answers() bool {
	return !p.frozen && p.phase == active && p.serving && p.proofs.lasts(p.clock) && p.proofs.left(p.clock) <= 0
}

// due reports whether a process has something to do of its own.
func (w *world) due(i uint8) bool {
	p := &w.processes[i]
	switch {
	case p.frozen:
		return false
	case p.phase == pausing:
		return w.leader == i && p.waited > 0
	case p.phase != active:
		return false
	}
	now := p.clock
	return !p.proofs.lasts(now) || p.loaded && !p.serving && p.proofs.left(now) <= 0 ||
		now >= p.proofs.due && p.proofs.underWay < maxProofs || w.expired(i) >= 0
}

// expired returns a proof that was not answered for as long as it would be valid.
func (w *world) expired(i uint8) int {
	return slices.IndexFunc(w.messages, func(m message) bool {
		return m.process == i && m.keep && !m.orphan && m.began+w.processes[i].validity <= w.processes[i].clock
	})
}

// act does what is due at a process.
func (w *world) act(i uint8) error {
	p := &w.processes[i]
	if p.phase == pausing {
		p.phase = looking
		w.send(i, look)
		return nil
	}
	if !p.proofs.lasts(p.clock) {
		w.close(i)
		return nil
	}
	var outcome *proof
	if n := w.expired(i); n >= 0 {
		outcome = &proof{attempt: w.messages[n].attempt, err: errNoAnswer}
		w.messages = slices.Delete(w.messages, n, n+1)
	}
	next, do := p.proofs.next(p.clock, outcome)
	if p.proofs = next; do.send {
		w.send(i, prove)
	}
	if left := p.proofs.left(p.clock); p.loaded && !p.serving && left <= 0 {
		p.serving, p.served = true, true
		return w.report(i, statestore.Former{Idle: -left, Silent: p.term.claim.Silent})
	}
	return nil
}

// report is what Journal.Load says of the processes before.
func (w *world) report(i uint8, former statestore.Former) error {
	p, other := &w.processes[i], &w.processes[1-i]
	if silent := time.Duration(w.silence) * p.rate; w.silence < never && former.Idle > silent {
		return broken("invariant 32: %s says that the process before answered nothing for %d units, and it was at most %d", name(i), former.Idle/unit, silent/unit)
	}
	if !former.Silent && (w.fell || other.served && other.phase == active) {
		return broken("invariant 62: %s does not say that a process before fell silent", name(i))
	}
	if former.Silent && !w.rough {
		return broken("invariant 62: %s says that a process fell silent, and each one resigned", name(i))
	}
	return nil
}
