//go:build unix

package takeover_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/crashtest"
	"github.com/tenurelock/tenure/transport"
)

// node is a client that campaigns, with the defaults of a program.
type node struct {
	Name, Stores    string
	TTL             time.Duration
	InstantFailover bool
}

// run campaigns until ctx ends, and calls led when a term begins.
func (n node) run(ctx context.Context, led func()) error {
	client, err := n.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	options := election.Options{TTL: n.TTL, Lease: lease.Options{InstantFailover: n.InstantFailover}}
	elector, err := election.New(client, "press-7/active", options)
	if err != nil {
		return err
	}
	return elector.Run(ctx, func(ctx context.Context, _ *election.Term) error {
		led()
		<-ctx.Done()
		return nil
	})
}

func (n node) dial(ctx context.Context) (*transport.Client, error) {
	quiet := transport.ClientOptions{Logger: slog.New(slog.DiscardHandler)}
	return transport.Dial(ctx, n.Stores, transport.Options{ClientID: n.Name, ClientOptions: quiet})
}

// campaign is a child: a node, which announces its name when it leads.
func campaign(ctx context.Context, task crashtest.Task) error {
	var n node
	if err := json.Unmarshal([]byte(task.Arguments["node"]), &n); err != nil {
		return err
	}
	return n.run(ctx, func() { task.Announce(n.Name) })
}

const (
	// undisturbed is how long everything works before a fault: a client that was connected for a shorter
	// time goes on with its pauses between attempts to connect.
	undisturbed = 5500 * time.Millisecond
	// askEvery and askPatience are for the writes that find out when a store answers again.
	askEvery, askPatience = 5 * time.Millisecond, 250 * time.Millisecond
)

// BenchmarkPair measures what docs/pair.md says of a takeover: how long no write is answered, how often the
// leader keeps its lease, and when another client leads after the machine of store and leader is lost.
func BenchmarkPair(b *testing.B) {
	for _, way := range ways {
		b.Run("store "+way.name, func(b *testing.B) {
			newMeasured(b, way, node{TTL: 3500 * time.Millisecond}).loseStore()
		})
	}
	for _, way := range []way{killed, cutOff} {
		b.Run("machine "+way.name, func(b *testing.B) {
			newMeasured(b, way, node{TTL: 3500 * time.Millisecond}).loseMachine()
		})
		b.Run("machine "+way.name+", instant failover", func(b *testing.B) {
			newMeasured(b, way, node{TTL: 2 * time.Second, InstantFailover: true}).loseMachine()
		})
	}
}

// measured is a pair with a client that writes, and one that is to lead.
type measured struct {
	*testing.B
	pair   *pair
	node   node
	writer *transport.Client
	leader *crashtest.Child // on the machine of the active store; nil: elsewhere
	tasks  sync.WaitGroup
}

func newMeasured(b *testing.B, way way, n node) *measured {
	m := &measured{B: b, pair: newPair(b, way, crashtest.None), node: n}
	b.Cleanup(func() {
		if m.leader != nil {
			_ = m.leader.Kill() // again, unless the row failed
		}
		m.check(m.pair.close())
	})
	for i, g := range m.pair.gateways {
		port, err := m.pair.network.Port(1883)
		m.check(err)
		g.listen = net.JoinHostPort(m.pair.network.Host(i), strconv.Itoa(port))
	}
	m.node.Stores = fmt.Sprintf("mqtt://%s,mqtt://%s", m.pair.gateways[0].listen, m.pair.gateways[1].listen)
	m.settle()
	var err error
	m.writer, err = node{Name: "writer", Stores: m.node.Stores}.dial(b.Context())
	m.check(err)
	b.Cleanup(func() { _ = m.writer.Close() })
	return m
}

func (m *measured) check(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// start starts a node that runs until stop is called.
func (m *measured) start(name string, led func()) (stop func()) {
	ctx, cancel := context.WithCancel(m.Context())
	n := m.node
	n.Name = name
	m.tasks.Go(func() {
		if err := n.run(ctx, led); ctx.Err() == nil {
			m.Error(err)
		}
	})
	return func() {
		cancel()
		await.Done(m.tasks.Wait)
	}
}

// loseStore harms the store while a client elsewhere leads.
func (m *measured) loseStore() {
	var terms atomic.Int64
	stop := m.start("leader", func() { terms.Add(1) })
	defer stop()
	var outages []time.Duration
	for m.Loop() {
		sleep.For(m.Context(), undisturbed)
		outages = append(outages, m.harm())
		m.settle()
	}
	sleep.For(m.Context(), m.node.TTL) // a lease that is lost gets another term
	m.report("outage", outages)
	m.ReportMetric(float64(m.N+1-int(terms.Load())), "kept")
}

// loseMachine harms the machine of the store and of the leader while a client elsewhere waits.
func (m *measured) loseMachine() {
	var outages, without []time.Duration
	for m.Loop() {
		machine := m.active()
		m.launchLeader(machine)
		led := make(chan time.Time, 1)
		stop := m.start("successor", sync.OnceFunc(func() { led <- time.Now() }))
		sleep.For(m.Context(), undisturbed)
		if m.active() != machine {
			m.Fatal("the store went to the other machine by itself: this one is too busy for figures")
		}
		began := time.Now()
		outages = append(outages, m.harm())
		without = append(without, await.Receive(led).Sub(began))
		stop()
		m.check(m.leader.Kill())
		m.settle()
	}
	m.report("outage", outages)
	m.report("leaderless", without)
}

// active returns the machine of the active store.
func (m *measured) active() string {
	m.settle()
	m.pair.mu.Lock()
	defer m.pair.mu.Unlock()
	if m.pair.active == nil {
		return ""
	}
	return m.pair.active.name
}

// launchLeader makes a client on a machine lead.
func (m *measured) launchLeader(machine string) {
	n := m.node
	n.Name = "leader"
	encoded, err := json.Marshal(n)
	m.check(err)
	m.leader, err = crashtest.Launch(crashtest.Task{Arguments: map[string]string{"node": string(encoded)}},
		func(program string) []string { return m.pair.network.Command(machine, program) })
	m.check(err)
	ctx, cancel := context.WithTimeout(m.Context(), await.Patience)
	defer cancel()
	_, err = m.leader.Address(ctx)
	m.check(err)
}

// harm harms the active gateway, and returns for how long no write was answered.
func (m *measured) harm() time.Duration {
	m.settle()
	m.awaitAnswer()
	began := time.Now()
	m.check(m.pair.Kill())
	if m.leader != nil && !m.pair.way.lives {
		m.check(m.leader.Kill())
	}
	m.awaitAnswer()
	return time.Since(began)
}

// awaitAnswer writes a key until that is answered.
func (m *measured) awaitAnswer() {
	ctx, cancel := context.WithTimeout(m.Context(), await.Patience)
	defer cancel()
	for !m.write(ctx) {
		if !sleep.For(ctx, askEvery) {
			m.Fatal("the store answers no write")
		}
		m.writer.Probe(askPatience) // as leases do: a frozen server keeps its connections
	}
}

func (m *measured) write(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	_, err := m.writer.Set(ctx, "press-7/setpoint", []byte("42"), transport.SetOptions{})
	return err == nil
}

// settle undoes the harm, and waits until one gateway is active and the other is back.
func (m *measured) settle() {
	m.check(m.pair.Start(m.Context(), crashtest.Life{}))
	await.Done(m.pair.heals.Wait)
}

// report reports the median and the longest of times.
func (m *measured) report(of string, times []time.Duration) {
	slices.Sort(times)
	m.ReportMetric(0, "ns/op")
	m.ReportMetric(times[(len(times)-1)/2].Seconds(), of+"-s-p50")
	m.ReportMetric(times[len(times)-1].Seconds(), of+"-s-worst")
}
