package simulation

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/transport/transporttest"
)

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
// one key, notifications of one key, or calls of one function. Each kind has its own: if
// two events happen at the same instant, each meets the same fault whichever comes first.
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
func kindOf(request transporttest.Request) string {
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
func (n *node) requestFault(request transporttest.Request) transporttest.Fault {
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
	if before := d.chance(net.cut); before || d.chance(net.cut) {
		fault.LoseRequest, fault.Cut = fault.LoseRequest || before, true
	}
	fault.Repeat = d.chance(net.repeat)
	if fault.Repeat && !stop {
		fault.RepeatAfter = d.latency() + d.beforeCalm(n.sim, net.longest)
	}
	if d.chance(net.hold) && !stop {
		fault.HoldRequest += d.beforeCalm(n.sim, net.longest)
	}
	if d.chance(net.hold) {
		fault.HoldReply += d.beforeCalm(n.sim, net.longest)
	}
	if fault.Cut {
		// A real client connects again by itself.
		at := fault.HoldRequest + time.Duration(d.Int64N(int64(8*time.Second)))
		if process := n.process; process != nil {
			time.AfterFunc(at, process.reconnect)
		}
	}
	if n.sim.tracing && fault != (transporttest.Fault{HoldRequest: before.HoldRequest, HoldReply: before.HoldReply}) {
		n.sim.tracef("%s: fault of %s: %+v", n.id, kindOf(request), fault)
	}
	return fault
}

// notificationFault returns the faults of a notification.
func (n *node) notificationFault(notification transporttest.Notification) transporttest.NotificationFault {
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

// link is a process's end of a connection.
type link struct {
	*transporttest.Conn
	process *process
}

// RoundTrip implements storeconn.Conn.
func (l *link) RoundTrip(ctx context.Context, request transporttest.Request) (transporttest.Reply, error) {
	l.process.awake()
	sent := l.process.node.sim.checker.sending(l.process, request)
	reply, err := l.Conn.RoundTrip(ctx, request)
	l.process.awake()
	l.process.node.sim.checker.answered(l.process, sent, reply, err)
	return reply, err
}
