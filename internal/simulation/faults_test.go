package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// fault is one row of a table of faults.
type fault struct {
	weight int // how often it happens, in comparison with the other rows
	name   string
	gentle bool                   // it must not cost a leader its lease
	in     func(*simulation) bool // the hours in which it happens; nil: all
	begin  func(hit)
	end    func(hit) // called after hit.lasts; nil: the fault ends in another way
}

// hit is one fault that happens.
type hit struct {
	*simulation
	node   *node         // the node that it happens to; some faults happen to all
	lasts  time.Duration // how long it lasts, if it does not end by itself
	amount time.Duration // at random, from -40 s to 40 s
}

var faults = []fault{
	// The network.
	{weight: 2, name: "poor network", begin: func(h hit) { h.node.setNetwork(poor, h.lasts) }},
	{weight: 2, name: "terrible network", begin: func(h hit) { h.node.setNetwork(terrible, h.lasts) }},
	{weight: 2, name: "slow network", begin: func(h hit) { h.node.setNetwork(slow, h.lasts) }},
	{
		weight: 2, name: "cut",
		begin: func(h hit) { h.node.current().cut() },
		end:   func(h hit) { h.node.current().reconnect() },
	},
	{weight: 3, name: "cut for a moment", begin: func(h hit) {
		process := h.node.current()
		process.cut()
		time.AfterFunc(h.amount.Abs()/100, process.reconnect)
	}},
	{weight: 2, name: "half-open connection", gentle: true, begin: func(h hit) { h.node.current().conn.Freeze() }},
	{
		weight: 1, name: "no notifications",
		begin: func(h hit) { h.node.silence(true) },
		end:   func(h hit) { h.node.silence(false) },
	},
	{weight: 1, name: "forged notifications", gentle: true, begin: func(h hit) { h.forge(h.node.current().conn) }},

	// The machine and its clocks.
	{weight: 1, name: "steady clock jumps", begin: func(h hit) { h.node.jump(h.amount.Abs()) }},
	{weight: 2, name: "suspended", begin: func(h hit) { h.node.suspend(h.lasts, h.amount.Abs()) }},
	{weight: 1, name: "wall clock off by seconds", gentle: true, begin: func(h hit) { h.node.stepWall(h.amount) }},
	{
		weight: 2, name: "wall clock off by hours", gentle: true,
		begin: func(h hit) { h.node.stepWall(h.amount * 300) },
		end:   func(h hit) { h.node.stepWall(h.amount / 2) },
	},

	// The process and its functions.
	{
		weight: 1, name: "crash",
		begin: func(h hit) { h.node.crash() },
		end:   func(h hit) { h.node.start() },
	},
	{
		weight: 1, name: "close",
		begin: func(h hit) { h.node.leave(h.node.current()) },
		end:   func(h hit) { h.node.start() },
	},
	{weight: 1, name: "another process takes its client id", begin: func(h hit) { h.node.start() }},
	{weight: 1, name: "resigns", begin: func(h hit) { h.node.current().resign() }},

	// The store.
	{
		weight: 1, name: "wall clock of the store off by hours", gentle: true,
		begin: func(h hit) { h.stepWall(h.amount * 300) },
		end:   func(h hit) { h.stepWall(0) },
	},
	{
		weight: 1, name: "not authorized",
		begin: func(h hit) { h.node.denied.Add(1) },
		end:   func(h hit) { h.node.denied.Add(-1) },
	},
	{
		weight: 1, name: "the store is restarted",
		in:    func(s *simulation) bool { return s.restarts },
		begin: func(h hit) { h.restart() },
	},
	{
		weight: 3, name: "the store crashes", gentle: true,
		in:    (*simulation).isDurable,
		begin: func(h hit) { h.crashStore(0, h.amount.Abs()/40, false) },
	},
	{
		weight: 2, name: "the store crashes and stays down",
		in:    (*simulation).isDurable,
		begin: func(h hit) { h.crashStore(0, h.lasts, false) },
	},
	{
		weight: 3, name: "a store on another machine takes over",
		in:    (*simulation).isDurable,
		begin: func(h hit) { h.crashStore(0, min(h.amount.Abs()/8, h.lasts), true) },
	},
	{
		// Until its deadline it answers from memory, and not what depends on a commit. The journal may
		// have a part of what it sent last.
		weight: 3, name: "the store is cut off from its journal until another takes over",
		in: (*simulation).isDurable,
		begin: func(h hit) {
			if h.crashStore(h.amount.Abs()/8, h.amount.Abs()/40, true) {
				h.journal.Hold()
			}
		},
	},
	{
		weight: 2, name: "a backup is restored",
		in: func(s *simulation) bool { return s.backups && !s.anonymous },
		begin: func(h hit) {
			backup, free := slices.Collect(h.journal.Records()), h.random.IntN(2) == 0
			time.AfterFunc(h.lasts, func() { h.restoreBackup(backup, free) })
		},
	},
	{
		weight: 1, name: "the disk is full within a commit",
		in: (*simulation).isDurable,
		begin: func(h hit) {
			defer h.takeStore()() // no store starts meanwhile
			if h.crashStore(0, h.amount.Abs()/40, false) {
				h.journal.Fail(h.random.IntN(3))
			}
		},
	},
	{
		weight: 1, name: "slow commits", gentle: true,
		in:    (*simulation).isDurable,
		begin: func(h hit) { h.journal.SetLatency(h.amount.Abs() / 80) },
		end:   func(h hit) { h.journal.SetLatency(commitTime) },
	},
}

// lastFaults are what can happen to the leader when all else is calm. A row without begin
// leaves it alone.
var lastFaults = []fault{
	{weight: 1, name: "crashes and stays down", begin: func(h hit) { h.node.crash() }},
	{weight: 1, name: "cut off until the end", begin: func(h hit) { h.node.current().cut() }},
	{weight: 1, name: "resigns for the last time", begin: func(h hit) { h.node.current().resign() }},
	{weight: 1, name: "left alone"},
}

// draw returns a row of a table, each as often as its weight says.
func draw(random *rand.Rand, table []fault) fault {
	total := 0
	for _, f := range table {
		total += f.weight
	}
	at := random.IntN(total)
	for _, f := range table {
		if at -= f.weight; at < 0 {
			return f
		}
	}
	panic("unreachable")
}

// injectFaults lets one fault after another happen until it is nearly calm.
func (s *simulation) injectFaults() {
	table := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return s.gentle && !f.gentle || f.in != nil && !f.in(s)
	})
	for {
		pause := time.Duration(s.random.Int64N(int64(50 * time.Second)))
		if s.gentle {
			pause += ttl // one dead connection costs no lease; two may
		}
		h := hit{simulation: s, lasts: time.Second + time.Duration(s.random.Int64N(int64(45*time.Second)))}
		if s.random.IntN(12) == 0 {
			h.lasts *= 5 // minutes
		}
		if s.elapsed()+pause+h.lasts >= calmAt-2*time.Second {
			return
		}
		time.Sleep(pause)
		h.node = s.target()
		h.amount = time.Duration(s.random.Int64N(int64(80*time.Second))) - 40*time.Second
		f := draw(s.random, table)
		s.tracef("%s: %s, for %v, by %v", h.node.id, f.name, h.lasts, h.amount)
		s.mu.Lock()
		s.faults++
		s.mu.Unlock()
		f.begin(h)
		if f.end != nil {
			time.AfterFunc(h.lasts, func() { f.end(h) })
		}
	}
}

// target prefers the leader: faults of other nodes show little.
func (s *simulation) target() *node {
	n := s.nodes[s.random.IntN(len(s.nodes))]
	if leader := s.checker.leader(); leader != nil && s.random.IntN(2) == 0 {
		return leader
	}
	return n
}

// lastFault takes the leader away, in one way or another, or leaves it alone.
func (s *simulation) lastFault() {
	leader := s.checker.leader()
	if leader == nil {
		return // which the checker has noted
	}
	f := draw(s.random, lastFaults)
	s.tracef("%s: %s", leader.id, f.name)
	s.checker.last(f.begin == nil)
	if f.begin != nil {
		f.begin(hit{simulation: s, node: leader})
	}
}

// forge notifies a client of a change that never happened.
func (s *simulation) forge(conn *transporttest.Conn) {
	said := [][]string{{"NOTIFY", "DELETE"}, {"NOTIFY", "SET", "VALUE", "forger:0"}}[s.random.IntN(2)]
	wall := time.Now().Add(time.Duration(s.random.Int64N(int64(20*time.Minute))) - 10*time.Minute)
	for range 1 + s.random.IntN(5) {
		conn.Forge(transporttest.Notification{
			Key:       lockKey,
			Payload:   resp3.AppendCommand(nil, said...),
			Timestamp: fmt.Sprintf("%d:0:forger", wall.UnixMilli()),
		})
	}
}

// endFaults makes it calm. Notifications may stay away: they are hints.
func (s *simulation) endFaults() {
	s.tracef("calm")
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	for _, n := range s.nodes {
		n.mu.Lock()
		n.network = network{}
		n.mu.Unlock()
		n.silence(s.noNotifications)
		n.current().reconnect()
		n.stepWall(time.Duration(s.random.Int64N(int64(40*time.Second))) - 20*time.Second)
	}
	s.stepWall(0)
}
