package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// weather is how likely each harm is to a message, and how long one is held.
type weather struct {
	lose, hold, repeat, cut float64
	longest                 time.Duration
}

var (
	fair  = weather{lose: 0.002, hold: 0.002, repeat: 0.01, cut: 0.0005, longest: 20 * time.Second}
	rough = weather{lose: 0.10, hold: 0.10, repeat: 0.10, cut: 0.01, longest: 20 * time.Second}
	slow  = weather{lose: 0.01, hold: 0.7, repeat: 0.05, longest: 2 * requestTimeout}
	storm = weather{lose: 0.30, hold: 0.25, repeat: 0.20, cut: 0.05, longest: 4 * time.Minute}
)

// dice are thrown for one kind of message of a node: requests of one verb about one key,
// or notifications of one key. Each kind has its own, so that two messages which leave at
// the same instant get the same fates whichever comes first.
type dice struct{ *rand.Rand }

// diceLocked returns the dice of a kind.
func (n *node) diceLocked(kind string) dice {
	thrown, ok := n.dice[kind]
	if !ok {
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(kind)) // never fails, says its documentation
		thrown = dice{rand.New(rand.NewPCG(n.seed, hash.Sum64()))}
		n.dice[kind] = thrown
	}
	return thrown
}

// kindOf names the verb and the key of a request.
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

// holdLocked draws for how long a message is held: until it is calm at the latest.
func (n *node) holdLocked(d dice) time.Duration {
	longest := min(n.weather.longest, calmAt-time.Second-n.sim.elapsed())
	if longest <= 0 {
		return 0
	}
	return time.Duration(d.Int64N(int64(longest)))
}

func (d dice) chance(p float64) bool { return d.Float64() < p }

// fate decides what becomes of a request and of its reply, each for itself.
func (n *node) fate(request transport.Request) transporttest.Fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.diceLocked(kindOf(request))
	fault := transporttest.Fault{HoldRequest: d.latency(), HoldReply: d.latency()}
	w := n.weather
	if w == (weather{}) {
		return fault
	}
	before := fault
	fault.LoseRequest, fault.LoseReply = d.chance(w.lose), d.chance(w.lose)
	fault.CutBefore, fault.CutAfter = d.chance(w.cut), d.chance(w.cut)
	fault.Repeat, fault.RepeatReply = d.chance(w.repeat), d.chance(w.repeat)
	if fault.Repeat {
		fault.RepeatAfter = d.latency() + n.holdLocked(d)
	}
	if d.chance(w.hold) {
		fault.HoldRequest += n.holdLocked(d)
	}
	if d.chance(w.hold) {
		fault.HoldReply += n.holdLocked(d)
	}
	if fault.CutBefore || fault.CutAfter {
		// Somebody must connect again; a real client does it by itself.
		at := fault.HoldRequest + time.Duration(d.Int64N(int64(8*time.Second)))
		if process := n.process; process != nil {
			time.AfterFunc(at, process.reconnect)
		}
	}
	if n.sim.tracing && fault != (transporttest.Fault{HoldRequest: before.HoldRequest, HoldReply: before.HoldReply}) {
		n.sim.tracef("%s: fate of %s: %s", n.id, kindOf(request), describe(fault))
	}
	return fault
}

func describe(f transporttest.Fault) string {
	text := fmt.Sprintf("request after %v, reply after %v", f.HoldRequest.Round(time.Millisecond), f.HoldReply.Round(time.Millisecond))
	for _, harm := range []struct {
		done bool
		name string
	}{
		{f.LoseRequest, "request lost"}, {f.LoseReply, "reply lost"}, {f.CutBefore, "cut before"}, {f.CutAfter, "cut after"},
		{f.Repeat, fmt.Sprintf("repeated after %v", f.RepeatAfter.Round(time.Millisecond))}, {f.RepeatReply, "reply repeated"},
	} {
		if harm.done {
			text += ", " + harm.name
		}
	}
	return text
}

// hint decides what becomes of a notification.
func (n *node) hint(notification transport.Notification) transporttest.NotificationFault {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.diceLocked("NOTIFY " + notification.Key)
	fault := transporttest.NotificationFault{Hold: d.latency()}
	w := n.weather
	if w == (weather{}) {
		return fault
	}
	fault.Lose, fault.Repeat = d.chance(w.lose), d.chance(w.repeat)
	if fault.Repeat {
		fault.RepeatAfter = d.latency() + n.holdLocked(d)
	}
	if d.chance(w.hold) {
		fault.Hold += n.holdLocked(d)
	}
	return fault
}

// makeTrouble does one harm after another until it is nearly calm.
func (s *simulation) makeTrouble() {
	for {
		pause := time.Duration(s.random.Int64N(int64(50 * time.Second)))
		if s.gentle {
			pause += ttl // one dead connection costs no lease; two may
		}
		lasts := time.Second + time.Duration(s.random.Int64N(int64(45*time.Second)))
		if s.random.IntN(12) == 0 {
			lasts *= 5 // minutes
		}
		if s.elapsed()+pause+lasts >= calmAt-2*time.Second {
			return
		}
		time.Sleep(pause)
		s.harm(s.victim(), lasts)
	}
}

// victim prefers the leader: harm to others shows little.
func (s *simulation) victim() *node {
	n := s.nodes[s.random.IntN(len(s.nodes))]
	if leader := s.checker.leader(); leader != nil && s.random.IntN(2) == 0 {
		return leader
	}
	return n
}

// fault is one kind of harm. In some hours there are only gentle ones, which must not cost
// a leader its lease.
type fault struct {
	name   string
	weight int
	gentle bool
	// do harms a node, for as long as lasts where the harm ends by itself. amount is at
	// random too.
	do func(s *simulation, n *node, lasts, amount time.Duration)
}

var faults = []fault{
	{"rough weather", 2, false, func(_ *simulation, n *node, lasts, _ time.Duration) { n.setWeather(rough, lasts) }},
	{"storm", 2, false, func(_ *simulation, n *node, lasts, _ time.Duration) { n.setWeather(storm, lasts) }},
	{"slow weather", 2, false, func(_ *simulation, n *node, lasts, _ time.Duration) { n.setWeather(slow, lasts) }},
	{"cut", 2, false, func(_ *simulation, n *node, lasts, _ time.Duration) { n.cut(lasts) }},
	{"cut for a moment", 3, false, func(_ *simulation, n *node, _, amount time.Duration) { n.cut(amount.Abs() / 100) }},
	{"half-open connection", 2, true, func(_ *simulation, n *node, _, _ time.Duration) { n.current().conn.Freeze() }},
	{"no notifications", 1, false, func(_ *simulation, n *node, lasts, _ time.Duration) {
		n.silence(true)
		time.AfterFunc(lasts, func() { n.silence(false) })
	}},
	{"suspended", 1, false, func(_ *simulation, n *node, lasts, amount time.Duration) { n.suspend(lasts, amount.Abs()) }},
	{"steady clock jumps", 1, false, func(_ *simulation, n *node, _, amount time.Duration) { n.jump(amount.Abs()) }},
	{"wall clock off by seconds", 1, true, func(_ *simulation, n *node, _, amount time.Duration) { n.stepWall(amount) }},
	{"wall clock off by hours", 2, true, func(_ *simulation, n *node, lasts, amount time.Duration) {
		n.stepWall(amount * 300)
		time.AfterFunc(lasts, func() { n.stepWall(amount / 2) })
	}},
	{"wall clock of the store off by hours", 1, true, func(s *simulation, _ *node, lasts, amount time.Duration) {
		s.stepWall(amount * 300)
		time.AfterFunc(lasts, func() { s.stepWall(0) })
	}},
	{"crash", 1, false, func(_ *simulation, n *node, lasts, _ time.Duration) {
		n.crash()
		time.AfterFunc(lasts, n.start)
	}},
	{"close", 1, false, func(_ *simulation, n *node, lasts, _ time.Duration) {
		n.leave(n.current())
		time.AfterFunc(lasts, n.start)
	}},
	{"another process takes its name", 1, false, func(_ *simulation, n *node, _, _ time.Duration) { n.start() }},
	{"forged notifications", 1, true, func(s *simulation, n *node, _, _ time.Duration) { s.forge(n.current().conn); s.forge(s.onlooker.conn) }},
	{"not authorized", 1, false, func(_ *simulation, n *node, lasts, _ time.Duration) {
		n.denied.Add(1)
		time.AfterFunc(lasts, func() { n.denied.Add(-1) })
	}},
	{"rejected in front of the store", 2, false, func(_ *simulation, n *node, lasts, _ time.Duration) {
		n.rejected.Add(1)
		time.AfterFunc(lasts, func() { n.rejected.Add(-1) })
	}},
	{"unhealthy", 1, false, func(_ *simulation, n *node, lasts, _ time.Duration) { n.fallIll(lasts) }},
	{"gives up the lease", 1, false, func(_ *simulation, n *node, _, _ time.Duration) { n.current().giveUp() }},
	{"the key of the lease is deleted", 1, false, func(s *simulation, n *node, _, _ time.Duration) {
		if s.foreign {
			s.vandalize(resp3.AppendCommand(nil, "DEL", lockKey), "")
		}
	}},
	{"a token from the future on the protected key", 1, false, func(s *simulation, n *node, _, amount time.Duration) {
		if s.poisons {
			token := time.Now().Add(amount.Abs() / 2).UnixMilli()
			s.vandalize(resp3.AppendCommand(nil, "SET", dataKey, "0 "+vandal), fmt.Sprintf("%d:0:%s", token, vandal))
		}
	}},
	{"the store is restarted", 1, false, func(s *simulation, _ *node, _, _ time.Duration) {
		if s.restarts {
			s.restart()
		}
	}},
}

// gentleFaults are those that must not cost a leader its lease.
func gentleFaults() []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !f.gentle })
}

// harm does one harm, to a node or to what all of them use.
func (s *simulation) harm(n *node, lasts time.Duration) {
	s.mu.Lock()
	s.faults++
	s.mu.Unlock()
	total := 0
	for _, f := range s.possible {
		total += f.weight
	}
	at := s.random.IntN(total)
	amount := time.Duration(s.random.Int64N(int64(80*time.Second))) - 40*time.Second
	for _, f := range s.possible {
		if at -= f.weight; at < 0 {
			s.tracef("%s: %s, for %v, by %v", n.id, f.name, lasts, amount)
			f.do(s, n, lasts, amount)
			return
		}
	}
}

// vandalize sends a request of a client that does what it should not.
func (s *simulation) vandalize(payload []byte, token string) {
	conn := s.store.Connect(vandal)
	_, _ = conn.RoundTrip(context.Background(), transport.Request{
		Payload: payload, Timestamp: fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), vandal), FencingToken: token,
	})
	_ = conn.Close()
}

// stepWall makes the wall clock of the store's machine differ from true time.
func (s *simulation) stepWall(by time.Duration) {
	s.store.SetWall(func() time.Time { return time.Now().Add(by) })
}

// restart puts an empty store in the place of the present one. Each process connects again
// in its own time.
func (s *simulation) restart() {
	options := s.nextStore()
	options.HoldOff = s.holdOff
	s.tracef("the store is restarted, with a hold-off of %v", s.holdOff)
	restart := s.store.Restart
	if !s.anonymous && s.random.IntN(2) == 0 {
		restart = s.store.Replace // as one that is attached to a broker, which stays
	}
	if err := restart(options); err != nil {
		panic(err)
	}
	for _, n := range s.nodes {
		time.AfterFunc(time.Duration(s.random.Int64N(int64(5*time.Second))), n.current().reconnect)
	}
	time.AfterFunc(time.Second, s.onlooker.conn.Restore)
}

// authorized is the store's rule: who is denied may do nothing.
func (s *simulation) authorized(client string, _ statestore.Verb, _ string) bool {
	for _, n := range s.nodes {
		if n.id == client {
			return n.denied.Load() == 0
		}
	}
	return true
}

// vandal deletes what is not its own.
const vandal = "vandal"

// forge tells a client of a change that never happened.
func (s *simulation) forge(conn *transporttest.Conn) {
	payload := resp3.AppendCommand(nil, "NOTIFY", "DELETE")
	if s.random.IntN(2) == 0 {
		payload = resp3.AppendCommand(nil, "NOTIFY", "SET", "VALUE", "nobody:0")
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

// becalm ends all faults. Notifications may stay away: they are hints.
func (s *simulation) becalm() {
	s.tracef("calm")
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	for _, n := range s.nodes {
		n.mu.Lock()
		n.weather = weather{}
		n.mu.Unlock()
		n.silence(s.stayQuiet)
		n.current().reconnect()
		n.stepWall(time.Duration(s.random.Int64N(int64(40*time.Second))) - 20*time.Second)
	}
	s.stepWall(0)
}

// lastFault takes the leader away, in one way or another, or leaves it alone.
func (s *simulation) lastFault() {
	leader := s.checker.leader()
	if leader == nil {
		return // which the checker has noted
	}
	kind := s.random.IntN(4)
	s.checker.last(kind == 3)
	switch kind {
	case 0:
		s.tracef("%s: crashes for good", leader.id)
		leader.crash()
	case 1:
		s.tracef("%s: cut off for good", leader.id)
		leader.current().conn.Cut()
	case 2:
		s.tracef("%s: told to give up the lease, the last time", leader.id)
		leader.current().giveUp()
	case 3:
		s.tracef("%s: left alone", leader.id)
	}
}
