//go:build unix

package takeover_test

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/crashtest"
	"github.com/tenurelock/tenure/transport"
)

const (
	// undisturbed is how long everything works before a fault: a client that was connected for a shorter
	// time goes on with its pauses between attempts to connect.
	undisturbed = 5500 * time.Millisecond
	// askPatience is for the writes that find out when a store answers again.
	askPatience = 250 * time.Millisecond
)

// BenchmarkPair measures what docs/pair.md says of a takeover: how long no write is answered, how often the
// leader keeps its lease, and when another client leads after the machine of store and leader is lost.
func BenchmarkPair(b *testing.B) {
	for _, way := range ways {
		b.Run("store "+way.name, func(b *testing.B) { newMeasured(b, way, false).loseStore() })
	}
	for _, way := range []way{killed, cutOff} {
		b.Run("machine "+way.name, func(b *testing.B) { newMeasured(b, way, false).loseMachine() })
		b.Run("machine "+way.name+", instant failover", func(b *testing.B) { newMeasured(b, way, true).loseMachine() })
	}
}

// measured is a pair with a client that writes and one that leads, or is to lead.
type measured struct {
	*testing.B
	pair           *pair
	stores         string
	instant        bool
	writer, client *transport.Client
	leader         *crashtest.Child // on the machine of the active store; nil: the client leads
	outages        []time.Duration  // for which no write was answered
}

func newMeasured(b *testing.B, way way, instant bool) *measured {
	m := &measured{B: b, pair: newPair(b, way, crashtest.None), instant: instant}
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
	m.stores = "mqtt://" + m.pair.gateways[0].listen + ",mqtt://" + m.pair.gateways[1].listen
	m.settle()
	m.writer, m.client = m.dial("writer"), m.dial("client")
	return m
}

func (m *measured) check(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *measured) dial(name string) *transport.Client {
	client, err := dial(m.Context(), m.stores, name)
	m.check(err)
	m.Cleanup(func() { _ = client.Close() })
	return client
}

func dial(ctx context.Context, stores, name string) (*transport.Client, error) {
	quiet := transport.ClientOptions{Logger: slog.New(slog.DiscardHandler)}
	return transport.Dial(ctx, stores, transport.Options{ClientID: name, ClientOptions: quiet})
}

func acquire(ctx context.Context, client *transport.Client, instant bool) (*lease.Tenure, error) {
	options := lease.Options{TTL: 3500 * time.Millisecond}
	if instant {
		options = lease.Options{TTL: 2 * time.Second, InstantFailover: true}
	}
	l, err := lease.New(client, "press-7/active", options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	return l.Acquire(ctx)
}

// lead is a child: a client that leads, and then announces its name.
func lead(ctx context.Context, task crashtest.Task) error {
	client, err := dial(ctx, task.Arguments["stores"], "leader")
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := acquire(ctx, client, task.Arguments["instant"] == "true"); err != nil {
		return err
	}
	task.Announce("leader")
	sleep.For(ctx, time.Hour) // ctx ends with the parent
	return nil
}

// loseStore harms the store while a client elsewhere leads.
func (m *measured) loseStore() {
	kept := 0
	sleep.For(m.Context(), undisturbed)
	for m.Loop() {
		tenure, err := acquire(m.Context(), m.client, m.instant)
		m.check(err)
		m.harm()
		m.settle()
		sleep.For(m.Context(), undisturbed)
		if tenure.Context().Err() == nil {
			kept++
		}
		_ = tenure.Release(m.Context()) // it may have ended
	}
	m.report("outage", m.outages)
	m.ReportMetric(float64(kept), "kept")
}

// loseMachine harms the machine of store and leader while a client elsewhere waits.
func (m *measured) loseMachine() {
	var leaderless []time.Duration
	for m.Loop() {
		m.launchLeader()
		var tenure *lease.Tenure
		var err error
		led := make(chan time.Time, 1)
		go func() {
			tenure, err = acquire(m.Context(), m.client, m.instant)
			led <- time.Now()
		}()
		sleep.For(m.Context(), undisturbed)
		began := m.harm()
		leaderless = append(leaderless, await.Receive(led).Sub(began))
		m.check(err)
		m.check(m.leader.Kill())
		_ = tenure.Release(m.Context()) // it may have ended
		m.settle()
	}
	m.report("outage", m.outages)
	m.report("leaderless", leaderless)
}

// launchLeader makes a client lead on the machine of the active store.
func (m *measured) launchLeader() {
	m.pair.mu.Lock()
	machine := m.pair.active.name
	m.pair.mu.Unlock()
	task := crashtest.Task{Arguments: map[string]string{"stores": m.stores, "instant": strconv.FormatBool(m.instant)}}
	there := func(program string) []string { return m.pair.network.Command(machine, program) }
	var err error
	m.leader, err = crashtest.Launch(task, there)
	m.check(err)
	ctx, cancel := context.WithTimeout(m.Context(), await.Patience)
	defer cancel()
	_, err = m.leader.Address(ctx)
	m.check(err)
}

// harm harms the active gateway, and the leader of a lost machine. It returns when that began.
func (m *measured) harm() (began time.Time) {
	m.settle() // it may have lost its standing by itself
	await.Until(m.write)
	began = time.Now()
	m.check(m.pair.Kill())
	if m.leader != nil && !m.pair.way.lives {
		m.check(m.leader.Kill())
	}
	await.Until(m.write)
	m.outages = append(m.outages, time.Since(began))
	return began
}

// write writes a key, and reports whether that was answered.
func (m *measured) write() bool {
	ctx, cancel := context.WithTimeout(m.Context(), askPatience)
	defer cancel()
	_, err := m.writer.Set(ctx, "press-7/setpoint", []byte("42"), transport.SetOptions{})
	if err != nil {
		m.writer.Probe(askPatience) // as leases do: a frozen server keeps its connections
	}
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
