package cluster

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/internal/explore"
)

// The etcd of explore_test.go, and how its states are described and told apart.

// at returns an item of etcd by its key.
func (w *world) at(key string) *item {
	switch key {
	case modelKeys.active:
		return &w.active
	case modelKeys.format:
		return &w.format
	case modelKeys.sequence:
		return &w.sequence
	case modelKeys.records + modelRecord:
		return &w.record
	}
	return new(item) // the key of a lease
}

func (w *world) holds(c clientv3.Cmp) bool {
	i := w.at(string(c.Key))
	var order int
	switch c.Target {
	case pb.Compare_MOD:
		order = cmp.Compare(i.revision, c.TargetUnion.(*pb.Compare_ModRevision).ModRevision)
	case pb.Compare_VERSION: // here only 0 or more is asked
		order = cmp.Compare(min(i.revision, 1), c.TargetUnion.(*pb.Compare_Version).Version)
	case pb.Compare_VALUE:
		if i.revision == 0 {
			return false
		}
		order = strings.Compare(i.value, string(c.TargetUnion.(*pb.Compare_Value).Value))
	default:
		panic("the model does not know this comparison")
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_LESS:
		return order < 0
	}
	return order > 0
}

// get returns what etcd has at a key, or in a range.
func (w *world) get(keys ...string) *pb.RangeResponse {
	r := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: w.revision}}
	for _, key := range keys {
		if i := w.at(key); i.revision != 0 {
			r.Kvs = append(r.Kvs, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(i.value), ModRevision: i.revision})
		}
	}
	return r
}

// commit carries a transaction out.
func (w *world) commit(op clientv3.Op) *clientv3.TxnResponse {
	conditions, operations, otherwise := op.Txn()
	r := &clientv3.TxnResponse{Succeeded: !slices.ContainsFunc(conditions, func(c clientv3.Cmp) bool { return !w.holds(c) })}
	if !r.Succeeded {
		operations = otherwise
	}
	if slices.ContainsFunc(operations, func(op clientv3.Op) bool { return !op.IsGet() }) {
		w.revision++
	}
	r.Header = &pb.ResponseHeader{Revision: w.revision}
	for _, op := range operations {
		key := string(op.KeyBytes())
		switch {
		case op.IsPut():
			*w.at(key) = item{string(op.ValueBytes()), w.revision}
		case op.IsDelete():
			*w.at(key) = item{}
		case key == modelKeys.records:
			key += modelRecord
		}
		r.Responses = append(r.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: w.get(key)}})
	}
	return r
}

func name(i uint8) string { return string('A' + rune(i)) }

func (w *world) describe(m explore.Move) string {
	if m.Kind == deliver || m.Kind == hold {
		message := w.messages[m.A]
		what := [...]string{"%s arrives", "%s is held"}[m.Kind-deliver]
		return fmt.Sprintf(what, fmt.Sprintf([]string{"%s's %s", "the answer to %s's %s"}[bits(message.answer)], name(message.process), requests[message.request]))
	}
	if q := &w.processes[m.A%2]; m.Kind == act && !q.proofs.lasts(q.clock) && q.phase == active {
		return name(m.A) + " finds that its deadline has passed, and closes its journal"
	}
	return strings.ReplaceAll(kinds[m.Kind], "P", name(m.A%2))
}

// canon gives terms and revisions the numbers under which they come first or rank.
type canon struct {
	terms     []string
	revisions []int64
}

func (c *canon) term(term string) byte {
	if term == "" {
		return 0
	}
	i := slices.Index(c.terms, term)
	if i < 0 {
		c.terms = append(c.terms, term)
		i = len(c.terms) - 1
	}
	return byte(i + 1)
}

func (c *canon) revision(revision int64) byte { return byte(slices.Index(c.revisions, revision)) }

func (c *canon) claim(key []byte, b claim) []byte {
	return binary.AppendVarint(append(key, c.term(b.Term), bits(b.Resigned, b.Silent)), int64(b.Standing))
}

func bits(flags ...bool) (b byte) {
	for _, flag := range flags {
		b <<= 1
		if flag {
			b |= 1
		}
	}
	return b
}

// key appends what decides the future: see Model.Key. Only the equality of terms and the order of revisions count. So do times only
// relative to the clock of their process, and not beyond the moment from which on they have one effect.
func (w *world) key(key []byte) []byte {
	c := canon{terms: make([]string, 0, 8), revisions: make([]int64, 0, 16)}
	c.revisions = append(c.revisions, 0, w.active.revision, w.record.revision)
	for i := range w.processes {
		c.revisions = append(c.revisions, w.processes[i].term.revision, w.processes[i].seen.revision)
	}
	for i := range w.messages {
		m := &w.messages[i]
		c.revisions = append(c.revisions, m.won, m.term.revision, m.seen.revision)
	}
	slices.Sort(c.revisions)
	c.revisions = slices.Compact(c.revisions)
	key = append(key, c.revision(w.active.revision), c.revision(w.record.revision), byte(value(w.record)), byte(w.acked),
		bits(w.format.revision != 0, w.gentle, w.rough, w.fell), w.leader, w.faults, w.writes, w.silence, w.calm)
	if w.active.revision != 0 {
		key = c.claim(key, decodeClaim([]byte(w.active.value)))
	}
	key = c.sequence(key, w.sequence.value)
	for i := range w.processes {
		key = w.processes[i].key(&c, key)
	}
	var messages [][]byte
	for i := range w.messages {
		m := &w.messages[i]
		messages = append(messages, m.key(&c, &w.processes[m.process]))
	}
	slices.SortFunc(messages, slices.Compare) // their order is no part of the state
	for _, m := range messages {
		key = append(key, m...)
	}
	return key
}

func (c *canon) sequence(key []byte, value string) []byte {
	term, number, _ := strings.Cut(value, "/")
	return append(append(key, c.term(term)), number...)
}

func (p *process) key(c *canon, key []byte) []byte {
	key = append(key, byte(p.phase), p.waited, p.vain, byte(p.memory), byte(p.term.sequence), byte(p.proofs.underWay), byte(min(p.proofs.failures, 4)),
		bits(p.frozen, p.unproved, p.loaded, p.serving, p.served, p.leaves, p.writing), c.revision(p.term.revision))
	key = c.claim(c.claim(key, p.last), p.term.claim)
	switch p.phase {
	case taking:
		key = binary.AppendVarint(append(key, c.revision(p.seen.revision), bits(p.seen.used)), int64(p.wait))
	case proving:
		key = binary.AppendVarint(key, int64(max(p.proofs.from-p.clock, -4*p.rate)))
	case active:
		left := max(p.proofs.from-p.clock, -4*p.rate)
		if p.serving {
			left = max(left, 0)
		}
		key = binary.AppendVarint(key, int64(left))
		key = binary.AppendVarint(key, int64(max(p.proofs.deadline-p.clock, 0)))
		key = binary.AppendVarint(key, int64(max(p.proofs.due-p.clock, 0)))
	}
	return key
}

func (m *message) key(c *canon, p *process) []byte {
	key := append(make([]byte, 0, 64), byte(m.request)<<1|m.process, bits(m.answer, m.held, m.orphan, m.keep, m.err == nil, m.err == ErrDeposed))
	switch m.request {
	case look:
		if m.answer {
			key = c.claim(append(key, c.revision(m.seen.revision), bits(m.seen.used)), m.seen.claim)
		}
	case take:
		key = c.claim(append(key, c.revision(m.seen.revision), c.revision(m.won)), m.term.claim)
	case prove:
		key = binary.AppendVarint(append(key, c.revision(m.term.revision)), int64(max(m.began-p.clock, -p.validity)))
	case load:
		key = append(key, c.revision(m.term.revision), byte(m.value))
	case write:
		key = c.sequence(append(key, c.revision(m.term.revision), byte(m.value)), m.term.number(m.term.sequence))
	case resign:
		key = c.claim(append(key, c.revision(m.term.revision)), m.term.claim)
	}
	return key
}
