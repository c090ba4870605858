package statestore_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

// noon is the time of day at which a machine begins: the time in the example of
// docs/protocol.md §3.
const noon = 1696374425000

// machine is a [statestoretest.Store] that calls the state machine directly. Its clocks move only in Pass.
type machine struct {
	store   *statestore.Store
	now     statestore.Instant
	clients map[string]*machineClient
	sent    int
}

func newMachine(t testing.TB, options statestore.Options) *machine {
	t.Helper()
	store, err := statestore.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return &machine{
		store:   store,
		now:     statestore.Instant{WallMillis: noon, Elapsed: time.Hour},
		clients: make(map[string]*machineClient),
	}
}

// WallMillis implements statestoretest.Store.
func (m *machine) WallMillis() int64 { return m.now.WallMillis }

// Pass implements statestoretest.Store. Keys expire one after the other, each at its deadline.
func (m *machine) Pass(d time.Duration) {
	end := m.now.Elapsed + d
	for {
		next, ok := m.store.NextExpiry()
		if !ok || next > end {
			break
		}
		m.advance(max(next-m.now.Elapsed, 0))
		effects, _ := m.store.Expire(m.now, 1)
		m.deliver(effects.Notifications)
	}
	m.advance(end - m.now.Elapsed)
}

func (m *machine) advance(d time.Duration) {
	m.now.Elapsed += d
	m.now.WallMillis += d.Milliseconds()
}

func (m *machine) deliver(notifications []statestore.Notification) {
	for _, n := range notifications {
		client := m.clients[n.Client]
		client.received = append(client.received, statestoretest.Notification{
			Key:     n.Key,
			Payload: n.Append(nil),
			Version: n.Version.String(),
		})
	}
}

// Connect implements statestoretest.Store.
func (m *machine) Connect(_ testing.TB, clientID string) statestoretest.Client {
	client := &machineClient{machine: m, id: clientID}
	m.clients[clientID] = client
	return client
}

type machineClient struct {
	machine  *machine
	id       string
	received []statestoretest.Notification
}

func (c *machineClient) Do(request statestoretest.Request) (statestoretest.Reply, error) {
	m := c.machine
	m.sent++
	correlation := []byte(request.Correlation)
	if request.Correlation == "" {
		correlation = fmt.Appendf(nil, "%016d", m.sent)
	}
	parsed := statestore.Request{
		Client:       c.id,
		Payload:      request.Payload,
		Correlation:  correlation,
		Dialect:      statestore.DialectOf(!request.Published),
		Timestamp:    request.Timestamp,
		FencingToken: request.FencingToken,
	}
	if request.Again {
		parsed.Delivery = statestore.Redelivery
	}
	if request.Store != "" {
		parsed.Store = &request.Store
	}
	command := statestore.Parse(parsed)
	if request.Denied {
		command = command.Deny()
	}
	reply, effects := m.store.Apply(m.now, command)
	m.deliver(effects.Notifications)
	answer := statestoretest.Reply{Payload: reply.Append(nil)}
	if !reply.Version.IsZero() {
		answer.Version = reply.Version.String()
	}
	return answer, nil
}

func (c *machineClient) Notifications(int) []statestoretest.Notification {
	received := c.received
	c.received = nil
	return received
}

func (c *machineClient) Drop() { c.machine.store.Disconnect(c.machine.now, c.id, math.MaxInt) }
