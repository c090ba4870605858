package crashtest

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// Target leads clients to the present life of a store with an address that changes: another program may
// get the port of a dead one. It has the methods Dial and DialRaw of a Store. The zero value leads
// nowhere.
type Target struct {
	address   atomic.Value
	partition atomic.Pointer[partition] // nil: the network works
}

// SetAddress makes clients connect to address, a host and a port, from now on.
func (t *Target) SetAddress(address string) { t.address.Store(address) }

// Address returns the address, or "" if there is none yet.
func (t *Target) Address() string {
	address, _ := t.address.Load().(string)
	return address
}

// Partition implements Partitioner: what a client sends meanwhile arrives when heal is called, also
// over a connection that the client has given up, and no new connection is established.
func (t *Target) Partition(toStore, toClients bool, hit func(clientID string) bool) (heal func()) {
	p := &partition{toStore: toStore, toClients: toClients, hit: hit, healed: make(chan struct{})}
	t.partition.Store(p)
	return func() {
		t.partition.Store(nil)
		p.heal()
	}
}

// failing returns the partition that a client meets now, or nil.
func (t *Target) failing(clientID string) *partition {
	if p := t.partition.Load(); p != nil && p.hit(clientID) {
		return p
	}
	return nil
}

// keepAlive makes a client notice soon that its connection is dead.
const keepAlive = time.Second

// Dial returns a client that connects again by itself, each time to the present address. The
// caller closes it.
func (t *Target) Dial(ctx context.Context, clientID string, options transport.ClientOptions) (*transport.Client, error) {
	return transport.Dial(ctx, "mqtt://store:1883", transport.Options{
		ClientID:      clientID,
		KeepAlive:     keepAlive,
		ReconnectMin:  5 * time.Millisecond,
		ReconnectMax:  50 * time.Millisecond,
		Dialer:        func(ctx context.Context, _, _ string) (net.Conn, error) { return t.dial(ctx, clientID) },
		ClientOptions: options,
	})
}

// DialRaw opens a connection to the present address.
func (t *Target) DialRaw(ctx context.Context) (net.Conn, error) { return t.dial(ctx, "") }

func (t *Target) dial(ctx context.Context, clientID string) (net.Conn, error) {
	if failing := t.failing(clientID); failing != nil {
		select {
		case <-failing.healed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	address := t.Address()
	if address == "" {
		return nil, errors.New("the store has no address yet")
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &cable{Conn: conn, target: t, clientID: clientID, done: make(chan struct{})}, nil
}
