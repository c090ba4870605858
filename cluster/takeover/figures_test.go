//go:build unix

package takeover_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
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
	lost           atomic.Bool     // the machine of the active store and the leader
	outages        []time.Duration // for which no write was answered
}

func newMeasured(b *testing.B, way way, instant bool) *measured {
	m := &measured{B: b, pair: newPair(b, way), instant: instant}
	b.Cleanup(func() { m.check(m.pair.close()) })
	for i, g := range m.pair.gateways {
		port, err := m.pair.network.Port(1883)
		m.check(err)
		g.listen = net.JoinHostPort(m.pair.network.Host(i), strconv.Itoa(port))
	}
	m.stores = "mqtt://" + m.pair.gateways[0].listen + ",mqtt://" + m.pair.gateways[1].listen
	m.restore()
	m.writer, m.client = m.dial("writer", nil), m.dial("client", nil)
	return m
}

func (m *measured) check(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// dial connects a client, by dialer if that is not nil.
func (m *measured) dial(name string, dialer func(context.Context, string, string) (net.Conn, error)) *transport.Client {
	quiet := transport.ClientOptions{Logger: slog.New(slog.DiscardHandler)}
	client, err := transport.Dial(m.Context(), m.stores, transport.Options{ClientID: name, Dialer: dialer, ClientOptions: quiet})
	m.check(err)
	m.Cleanup(func() { _ = client.Close() })
	return client
}

// acquire waits until a client leads.
func (m *measured) acquire(client *transport.Client) (*lease.Tenure, error) {
	options := lease.Options{TTL: 3500 * time.Millisecond}
	if m.instant {
		options = lease.Options{TTL: 2 * time.Second, InstantFailover: true}
	}
	l, err := lease.New(client, "press-7/active", options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(m.Context(), await.Patience)
	defer cancel()
	return l.Acquire(ctx)
}

// loseStore harms the store while a client elsewhere leads.
func (m *measured) loseStore() {
	kept := 0
	sleep.For(m.Context(), undisturbed)
	for m.Loop() {
		tenure, err := m.acquire(m.client)
		m.check(err)
		m.harm()
		m.restore()
		sleep.For(m.Context(), undisturbed)
		if tenure.Context().Err() == nil {
			kept++
		}
		_ = tenure.Release(m.Context()) // it may have ended
	}
	m.report("outage", m.outages)
	m.ReportMetric(float64(kept), "kept")
}

// loseMachine harms the machine of store and leader while a client elsewhere waits. A leader on a machine that is lost
// reaches no store any more.
func (m *measured) loseMachine() {
	var leaderless []time.Duration
	for m.Loop() {
		m.lost.Store(false)
		leader := m.dial("leader", func(ctx context.Context, network, address string) (net.Conn, error) {
			if m.lost.Load() {
				return nil, errors.New("the machine is lost")
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		})
		_, err := m.acquire(leader)
		m.check(err)
		var tenure *lease.Tenure
		led := make(chan time.Time, 1)
		go func() {
			tenure, err = m.acquire(m.client)
			led <- time.Now()
		}()
		sleep.For(m.Context(), undisturbed)
		began := m.harm()
		leaderless = append(leaderless, await.Receive(led).Sub(began))
		m.check(err)
		_ = leader.Close()
		_ = tenure.Release(m.Context()) // it may have ended
		m.restore()
	}
	m.report("outage", m.outages)
	m.report("leaderless", leaderless)
}

// harm harms the active gateway, and its machine. It returns when that began.
func (m *measured) harm() (began time.Time) {
	m.restore() // it may have lost its standing by itself
	await.Until(m.write)
	began = time.Now()
	m.lost.Store(true)
	m.check(m.pair.Kill())
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

// restore undoes the harm, and waits until one gateway is active and the other is back.
func (m *measured) restore() {
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
