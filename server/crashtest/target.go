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
type Target struct{ address atomic.Value }

// SetAddress makes clients connect to address, a host and a port, from now on.
func (t *Target) SetAddress(address string) { t.address.Store(address) }

// Address returns the address, or "" if there is none yet.
func (t *Target) Address() string {
	address, _ := t.address.Load().(string)
	return address
}

// keepAlive makes a client notice soon that its connection is dead.
const keepAlive = time.Second

// Dial returns a client that connects again by itself, each time to the present address. The
// caller closes it.
func (t *Target) Dial(ctx context.Context, clientID string,
	options transport.ClientOptions) (*transport.Client, error) {
	return transport.Dial(ctx, "mqtt://store:1883", transport.Options{
		ClientID:      clientID,
		KeepAlive:     keepAlive,
		ReconnectMin:  5 * time.Millisecond,
		ReconnectMax:  50 * time.Millisecond,
		Dialer:        func(ctx context.Context, _, _ string) (net.Conn, error) { return t.DialRaw(ctx) },
		ClientOptions: options,
	})
}

// DialRaw opens a connection to the present address.
func (t *Target) DialRaw(ctx context.Context) (net.Conn, error) {
	address := t.Address()
	if address == "" {
		return nil, errors.New("the store has no address yet")
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
