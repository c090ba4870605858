package simulation

import (
	"errors"
	"strings"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// tooMany requests of one process in a second are a hot loop.
const tooMany = 50

// sent is a request for the lease that left, or one for what it protects.
type sent struct {
	key, verb, value, token string
	late                    *holding // a tenure that ended with its connection before
}

// sending checks a request before it leaves.
func (c *checker) sending(p *process, request transporttest.Request) sent {
	var buffer [8][]byte
	words, err := resp3.DecodeArray(buffer[:0], request.Payload)
	if err != nil || len(words) < 2 {
		c.violation("%s sends what is no request", p.name)
		return sent{}
	}
	s := sent{verb: string(words[0]), key: string(words[1]), token: request.FencingToken}
	if len(words) > 2 {
		s.value = string(words[2])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bursts[p]++
	if s.key != lockKey || s.verb != "SET" && s.verb != "VDEL" {
		return s
	}
	if c.sim.tracing {
		c.sim.tracef("%s: sends %s of %s", p.name, s.verb, c.nameLocked(s.value))
	}
	if s.verb == "VDEL" {
		c.freeing[s.value] = true
		return s // it may free what an earlier acquisition left, while the next is under way
	}
	if _, known := c.latest[p]; !known {
		c.firsts[s.value] = true
	}
	c.latest[p] = s.value
	if p.node.endsWithConnection() {
		c.willed[s.value] = true
	}
	if h := c.owners[s.value]; h != nil && h.released.Load() {
		c.violationLocked("%s sends %s of %s, which was released", p.name, s.verb, h.name)
	} else if h != nil && p.node.endsWithConnection() && closed.Is(h.lost) && (s.verb == "SET" || c.sim.instant) {
		s.late = h
	}
	return s
}

// metStore checks, when a process has a reply of a store, that its tenures are of that store or
// end.
func (c *checker) metStore(p *process, reply transporttest.Reply) {
	if reply.Store == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.valid {
		if h.process == p && h.store != reply.Store {
			c.mustEndLocked(h, "another store answered")
		}
	}
}

// mustEndLocked checks, a moment later, that a tenure is over.
func (c *checker) mustEndLocked(h *holding, why string) {
	time.AfterFunc(time.Microsecond, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !h.forgotten && h.tenure.Remaining() > 0 {
			c.violationLocked("%s goes on after %s", h.name, why)
		}
	})
}

// answered checks a reply after its process has it. A tenure that was refused is over at
// once, and so is a tenure of a client that lost its client id.
func (c *checker) answered(p *process, s sent, reply transporttest.Reply, err error) {
	if c.sim.tracing && s.key == lockKey && s.verb != "KEYNOTIFY" {
		text := strings.TrimSpace(string(reply.Payload))
		if s.verb == "GET" {
			text = ""
		}
		c.mu.Lock()
		c.sim.tracef("%s: %s of %s got %q %v", p.name, s.verb, c.nameLocked(s.value), text, err)
		c.mu.Unlock()
	}
	if err != nil && !errors.Is(err, transport.ErrSessionTakenOver) {
		return
	}
	if s.late != nil && !errors.Is(err, transport.ErrNotSent) {
		c.violation("%s sent %s of %s over a connection that began after the tenure ended", p.name, s.verb, s.late.name)
	}
	c.metStore(p, reply)
	text := strings.TrimPrefix(string(reply.Payload), ":") // one dialect has the colon
	refused := s.key == lockKey && s.verb == "SET" && (err != nil || strings.HasPrefix(text, "-1"))
	fenced := s.key == dataKey && s.verb == "SET" && strings.Contains(string(reply.Payload), "lower version")
	if !refused && !fenced {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var h *holding
	if refused {
		h = c.owners[s.value]
	} else if token, err := hlc.Parse(s.token); err == nil {
		h = c.owners[c.versions[token]]
	}
	if h == nil {
		return
	}
	c.mustEndLocked(h, "it was refused")
}
