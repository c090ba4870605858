package simulation

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
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
		weight: 1, name: "half-open connection of the second client", gentle: true,
		begin: func(h hit) {
			if p := h.node.current(); h.node.twoClients {
				p.writerConn.Freeze()
				// The keep-alive notices at last. (A lease has its own connection probed.)
				time.AfterFunc(h.lasts, func() { p.writerConn.Cut(); p.reconnect() })
			}
		},
	},
	{
		weight: 1, name: "no notifications",
		begin: func(h hit) { h.node.silence(true) },
		end:   func(h hit) { h.node.silence(false) },
	},
	{weight: 1, name: "forged notifications", gentle: true, begin: func(h hit) {
		h.forge(h.node.current().conn)
		h.forge(h.onlooker.conn)
	}},
	{
		weight: 2, name: "rejected in front of the store",
		begin: func(h hit) { h.node.rejected.Add(1) },
		end:   func(h hit) { h.node.rejected.Add(-1) },
	},

	// The machine and its clocks.
	{weight: 1, name: "suspended", begin: func(h hit) { h.node.suspend(h.lasts, h.amount.Abs()) }},
	{weight: 1, name: "steady clock jumps", begin: func(h hit) { h.node.jump(h.amount.Abs()) }},
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
	{
		weight: 1, name: "unhealthy",
		begin: func(h hit) { h.node.turnUnhealthy(h.lasts) },
		end:   func(h hit) { h.node.unhealthy.Add(-1) },
	},
	{weight: 1, name: "resigns", begin: func(h hit) { h.node.current().resign() }},
	{
		weight: 2, name: "callbacks block",
		begin: func(h hit) { h.node.blocking.Add(1) },
		end:   func(h hit) { h.node.blocking.Add(-1) },
	},

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
		weight: 3, name: "the store crashes when the lease expires",
		in: (*simulation).isDurable,
		begin: func(h hit) {
			if leader := h.checker.leader(); leader != nil {
				h.node = leader
				process := leader.current()
				process.cut()
				time.AfterFunc(2*ttl, process.reconnect)
			}
			h.crashStore(h.checker.untilExpiry()-100*time.Millisecond, h.amount.Abs()/40, false)
		},
	},
	{
		weight: 2, name: "two stores in a row take over",
		in: (*simulation).isDurable,
		begin: func(h hit) {
			h.crashStore(0, h.amount.Abs()/400, true)
			h.amount = -h.amount
			h.crashStore(h.amount.Abs()/20, h.amount.Abs()/400, true)
		},
	},
	{
		// Until its deadline it answers from memory, and not what rests on a commit. The journal may
		// have a part of what it sent last.
		weight: 3, name: "the store is cut off from its journal until another takes over",
		in: (*simulation).isDurable,
		begin: func(h hit) {
			if h.crashStore(h.amount.Abs()/8, h.amount.Abs()/40, true) {
				h.journal.CutOff()
			}
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
		weight: 2, name: "a backup is restored",
		in: func(s *simulation) bool { return s.backups && !s.anonymous },
		begin: func(h hit) {
			backup, free := slices.Collect(h.journal.Records()), h.random.IntN(2) == 0
			time.AfterFunc(h.lasts, func() { h.restoreBackup(backup, free) })
		},
	},
	{
		weight: 1, name: "slow commits", gentle: true,
		in:    (*simulation).isDurable,
		begin: func(h hit) { h.journal.SetLatency(h.amount.Abs() / 80) },
		end:   func(h hit) { h.journal.SetLatency(commitTime) },
	},
	{
		weight: 1, name: "another client deletes the key of the lease",
		in: func(s *simulation) bool { return s.deletes },
		begin: func(h hit) {
			h.checker.rogueDeletes()
			h.requestAsRogue(resp3.AppendCommand(nil, "DEL", lockKey), "")
		},
	},
	{
		weight: 1, name: "another client writes the protected key under a token from the future",
		in: func(s *simulation) bool { return s.futureTokens },
		begin: func(h hit) {
			token := fmt.Sprintf("%d:0:%s", time.Now().Add(h.amount.Abs()/2).UnixMilli(), rogue)
			h.requestAsRogue(resp3.AppendCommand(nil, "SET", dataKey, "0 "+rogue), token)
		},
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

// network is how likely each fault is for a message, and how long one is held.
type network struct {
	lose, hold, repeat, cut float64
	longest                 time.Duration
}

var (
	good     = network{lose: 0.002, hold: 0.002, repeat: 0.01, cut: 0.0005, longest: 20 * time.Second}
	poor     = network{lose: 0.10, hold: 0.10, repeat: 0.10, cut: 0.01, longest: 20 * time.Second}
	slow     = network{lose: 0.01, hold: 0.7, repeat: 0.05, longest: 2 * requestTimeout}
	terrible = network{lose: 0.30, hold: 0.25, repeat: 0.20, cut: 0.05, longest: 4 * time.Minute}
)

// dice are the random numbers for one kind of event on a node: requests of one verb about
// one key, notifications of one key, or calls of one function. Each kind has its own, so
// that of two events at the same instant each has the same fault whichever comes first.
type dice struct{ *rand.Rand }

// diceLocked returns the dice of a kind.
func (n *node) diceLocked(kind string) dice {
	d, ok := n.dice[kind]
	if !ok {
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(kind)) // never fails, says its documentation
		d = dice{rand.New(rand.NewPCG(n.seed, hash.Sum64()))}
		n.dice[kind] = d
	}
	return d
}

// kindOf returns the verb and the key of a request.
func kindOf(request transport.Request) string {
	words, err := resp3.DecodeArray(nil, request.Payload)
	if err != nil || len(words) < 2 {
		return ""
	}
	// KEYNOTIFY STOP is a kind of its own.
	return fmt.Sprintf("%s %s %d", words[0], words[1], len(words))
}

// latency is what every message takes; no two take the same.
func (d dice) latency() time.Duration {
	return 100*time.Microsecond + time.Duration(d.Int64N(int64(5*time.Millisecond)))
}

// beforeCalm returns a random duration that is over when it is calm.
func (d dice) beforeCalm(s *simulation, longest time.Duration) time.Duration {
	longest = min(longest, calmAt-time.Second-s.elapsed())
	if longest <= 0 {
		return 0
	}
	return time.Duration(d.Int64N(int64(longest)))
}

func (d dice) chance(p float64) bool { return d.Float64() < p }

// requestFault returns the faults of a request and of its reply.
func (n *node) requestFault(request transport.Request) transporttest.Fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.diceLocked(kindOf(request))
	fault := transporttest.Fault{HoldRequest: d.latency(), HoldReply: d.latency()}
	// A STOP that came after the next KEYNOTIFY of its key would end that watch. MQTT rules
	// that out: one connection keeps the order of its packets, our client resends none over
	// the next, and a broker before the store resends in the original order, so that the
	// KEYNOTIFY follows the STOP again [MQTT-4.4.0-1, 4.6.0-5].
	stop := bytes.HasSuffix(request.Payload, []byte("\r\n"+protocol.OptionStop+"\r\n"))
	if stop {
		fault.HoldRequest = 0
	}
	net := n.network
	if net == (network{}) {
		return fault
	}
	before := fault
	fault.LoseRequest, fault.LoseReply = d.chance(net.lose), d.chance(net.lose)
	fault.CutBefore, fault.CutAfter = d.chance(net.cut), d.chance(net.cut)
	fault.Repeat, fault.RepeatReply = d.chance(net.repeat), d.chance(net.repeat)
	if fault.Repeat && !stop {
		fault.RepeatAfter = d.latency() + d.beforeCalm(n.sim, net.longest)
	}
	if d.chance(net.hold) && !stop {
		fault.HoldRequest += d.beforeCalm(n.sim, net.longest)
	}
	if d.chance(net.hold) {
		fault.HoldReply += d.beforeCalm(n.sim, net.longest)
	}
	if fault.CutBefore || fault.CutAfter {
		// A real client connects again by itself.
		at := fault.HoldRequest + time.Duration(d.Int64N(int64(8*time.Second)))
		if process := n.process; process != nil {
			time.AfterFunc(at, process.reconnect)
		}
	}
	if n.sim.tracing && fault != (transporttest.Fault{HoldRequest: before.HoldRequest, HoldReply: before.HoldReply}) {
		n.sim.tracef("%s: fault of %s: %s", n.id, kindOf(request), describe(fault))
	}
	return fault
}

func describe(f transporttest.Fault) string {
	text := fmt.Sprintf("request after %v, reply after %v", f.HoldRequest.Round(time.Millisecond), f.HoldReply.Round(time.Millisecond))
	for _, part := range []struct {
		happens bool
		name    string
	}{
		{f.LoseRequest, "request lost"}, {f.LoseReply, "reply lost"}, {f.CutBefore, "cut before"}, {f.CutAfter, "cut after"},
		{f.Repeat, fmt.Sprintf("repeated after %v", f.RepeatAfter.Round(time.Millisecond))}, {f.RepeatReply, "reply repeated"},
	} {
		if part.happens {
			text += ", " + part.name
		}
	}
	return text
}

// notificationFault returns the faults of a notification.
func (n *node) notificationFault(notification transport.Notification) transporttest.NotificationFault {
	n.sim.checker.notified(notification)
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.diceLocked("NOTIFY " + notification.Key)
	fault := transporttest.NotificationFault{Hold: d.latency()}
	net := n.network
	if net == (network{}) {
		return fault
	}
	fault.Lose, fault.Repeat = d.chance(net.lose), d.chance(net.repeat)
	if fault.Repeat {
		fault.RepeatAfter = d.latency() + d.beforeCalm(n.sim, net.longest)
	}
	if d.chance(net.hold) {
		fault.Hold += d.beforeCalm(n.sim, net.longest)
	}
	return fault
}

// block sleeps for a while within a function of the program, now and then. The program does
// not look at a context meanwhile. In a gentle hour it does not happen: a health check that
// blocks costs the lease.
func (n *node) block(function string) {
	if n.sim.gentle {
		return
	}
	n.mu.Lock()
	d, p := n.diceLocked("block "+function), 0.02
	if n.blocking.Load() > 0 {
		p = 0.6
	}
	lasts := time.Duration(0)
	if d.chance(p) {
		lasts = d.beforeCalm(n.sim, 3*ttl)
	}
	n.mu.Unlock()
	if lasts > 0 {
		n.sim.tracef("%s: %s blocks for %v", n.id, function, lasts)
		time.Sleep(lasts)
	}
}

// rogue is the id of a client that does what it should not.
const rogue = "rogue"

// requestAsRogue sends a request of that client.
func (s *simulation) requestAsRogue(payload []byte, token string) {
	conn := s.store.Connect(rogue)
	_, _ = conn.RoundTrip(context.Background(), transport.Request{
		Payload: payload, Timestamp: fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), rogue), FencingToken: token,
	})
	_ = conn.Close()
}

// stepWall makes the wall clock of the store's machine differ from true time.
func (s *simulation) stepWall(by time.Duration) {
	s.store.SetWall(func() time.Time { return time.Now().Add(by) })
}

// restart puts an empty store in the place of the present one. Each process connects again
// after a time of its own.
func (s *simulation) restart() {
	defer s.takeStore()()
	s.crashes++ // it need not start again
	options := s.nextStore()
	s.tracef("the store is restarted, with a hold-off of %v", s.holdOff)
	restart := s.store.Restart
	if !s.anonymous && s.random.IntN(2) == 0 {
		restart = s.store.Replace // as with a store that is attached to a broker: connections stay
	}
	if err := restart(options); err != nil {
		panic(err)
	}
	for _, n := range s.nodes {
		time.AfterFunc(time.Duration(s.random.Int64N(int64(5*time.Second))), n.current().reconnect)
	}
	time.AfterFunc(time.Second, s.onlooker.conn.Restore)
}

// isDurable reports whether the store has a journal.
func (s *simulation) isDurable() bool { return s.journal != nil }

// crashStore ends a durable store after a while, within a commit, if one is under way: some of
// its groups are kept. The store starts again when it was down for a while; if it moves, on a
// machine with another clock. Commits are slow in the second before, so hardly a crash finds none.
// It reports false, and does nothing, if it would not be calm in time.
func (h hit) crashStore(after, down time.Duration, moves bool) bool {
	after = max(after, 0)
	if h.elapsed()+after+down+3*time.Second > calmAt {
		return false
	}
	time.AfterFunc(after, func() { h.journal.SetLatency(2 * time.Second) })
	kept := h.random.IntN(4)
	wall := h.amount * 100
	wait := time.Duration(h.random.Int64N(int64(time.Second)))
	delays := make([]time.Duration, len(h.nodes))
	for i := range delays {
		delays[i] = time.Duration(h.random.Int64N(int64(time.Second)))
	}
	time.AfterFunc(after+wait, func() {
		defer h.takeStore()()
		h.crashes++
		crash := h.crashes
		h.tracef("the store crashes, %d groups are kept", kept)
		h.store.Crash(kept)
		h.journal.SetLatency(commitTime)
		time.AfterFunc(down, func() {
			defer h.takeStore()()
			if crash == h.crashes { // else it started meanwhile
				if moves {
					h.stepWall(wall)
				}
				h.recoverStore(delays)
			}
		})
	})
	return true
}

// restoreBackup puts a store with earlier records in the place of the present one, whose disk is
// lost. The records are changed as by the command tenure restore. The hold-off covers what was
// granted since the backup. If free is true, the backup is one of a time at which the lease was free.
func (h hit) restoreBackup(backup []statestore.Record, free bool) {
	if h.elapsed()+3*ttl > calmAt {
		return // the hold-off would not be over in time
	}
	defer h.takeStore()()
	h.crashes++ // it need not start again
	h.stores++
	h.tracef("a backup is restored")
	h.store.Crash(0)
	h.journal.Erase()
	bound := hlc.Timestamp{Wall: time.Now().Add(time.Minute).UnixMilli()}
	records := statestore.Group{statestore.Item{Kind: statestore.KindIdentity, Identity: engine.NewIdentity(), HoldOff: true}.Record()}
	for _, record := range backup {
		item, err := record.Decode()
		if err != nil {
			panic(err)
		}
		if item.Version.Compare(bound) > 0 {
			bound = item.Version
			bound.Node = ""
		}
		if item.Kind != statestore.KindIdentity && item.Kind != statestore.KindBound && (item.Key != lockKey || !free) {
			records = append(records, record)
		}
	}
	records = append(records, statestore.Item{Kind: statestore.KindBound, Version: bound}.Record())
	if err := h.journal.Open().Commit(context.Background(), []statestore.Group{records}); err != nil {
		panic(err)
	}
	h.journal.SetLatency(commitTime)
	delays := make([]time.Duration, len(h.nodes))
	for i := range delays {
		delays[i] = time.Duration(h.lasts) * time.Duration(i) / 50
	}
	h.recoverStore(delays)
}

// takeStore waits until no other goroutine ends or starts the store. The function that it
// returns ends the turn of the caller. A mutex would stop the virtual time, which a commit needs.
func (s *simulation) takeStore() (leave func()) {
	s.storeTurn <- struct{}{}
	return func() { await.Receive(s.storeTurn) }
}

// recoverStore starts a store with the data of the one that crashed. Each process connects
// again after its delay.
func (s *simulation) recoverStore(delays []time.Duration) {
	s.tracef("the store starts again")
	s.checker.recovered(slices.Collect(s.journal.Records()))
	began := s.elapsed()
	if err := s.store.Recover(); err != nil {
		panic(err)
	}
	s.checker.answers(s.elapsed() - began)
	for i, n := range s.nodes {
		time.AfterFunc(delays[i], n.current().reconnect)
	}
	time.AfterFunc(time.Second, s.onlooker.conn.Restore)
}

// authorized is the access rule of the store: a node that is denied may do nothing.
func (s *simulation) authorized(client string, _ statestore.Verb, _ string) bool {
	for _, n := range s.nodes {
		if client == n.id || client == n.writerID() {
			return n.denied.Load() == 0
		}
	}
	return true
}

// forge notifies a client of a change that never happened.
func (s *simulation) forge(conn *transporttest.Conn) {
	payload := resp3.AppendCommand(nil, "NOTIFY", "DELETE")
	if s.random.IntN(2) == 0 {
		payload = resp3.AppendCommand(nil, "NOTIFY", "SET", "VALUE", "forger:0")
	}
	wall := time.Now().Add(time.Duration(s.random.Int64N(int64(20*time.Minute))) - 10*time.Minute)
	for range 1 + s.random.IntN(5) {
		conn.Forge(transport.Notification{
			Key:       lockKey,
			Payload:   payload,
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
