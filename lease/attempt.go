package lease

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// candidacy is what one attempt to hold the lease rests on.
type candidacy struct {
	value   string          // what will stand in the store; no other attempt has the same
	lost    <-chan struct{} // closed when the connection drops, where that matters; else nil
	bequest *transport.Will // what frees the lease then; nil if nothing does
	// What was there when the latest request was about to leave: the identity of the store;
	// replaced, which is closed when another store answers; and connection, which is closed
	// when it is lost.
	store                string
	replaced, connection <-chan struct{}
	// mayHold: a request got no answer, so it may have set the key, or may yet. That a
	// later request was refused says nothing of one that is still on its way.
	mayHold bool
	why     *obstacle // notes what keeps it from success; may be nil
}

// errReconnected: what an attempt rested on has gone with its connection.
var errReconnected = fmt.Errorf("begin anew: %w", ErrConnectionLost)

// campaign makes attempts to acquire the lease, each a candidacy of its own, as long as
// their connections are lost under them. What an attempt may hold when it is given up is
// freed. why notes what keeps them from success; it may be nil.
func (l *Lease) campaign(ctx context.Context, why *obstacle, attempt func(*candidacy) (*Tenure, error)) (*Tenure, error) {
	var left time.Time // until then the store may keep what an attempt left
	orUnknown := func(err error) error {
		if time.Now().Before(left) && !errors.Is(err, transport.ErrOutcomeUnknown) {
			return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err)
		}
		return err
	}
	for {
		c, err := l.stand(ctx, why)
		if err != nil {
			return nil, orUnknown(err)
		}
		tenure, err := attempt(c)
		if tenure != nil {
			return tenure, nil // to which the candidacy belongs now
		}
		c.withdraw()
		again := errors.Is(err, errReconnected) && ctx.Err() == nil
		if again && (!c.mayHold || l.free(ctx, c.value, transport.Binding{Store: c.store}, l.options.TTL) == nil) {
			continue
		}
		if c.mayHold {
			l.abandon(c.value, transport.Binding{Store: c.store})
			left = time.Now().Add(l.options.TTL)
		}
		if again && ctx.Err() == nil {
			continue // the store may refuse to free it, and keeps it for a TTL at most
		}
		return nil, orUnknown(err)
	}
}

// stand begins a candidacy.
func (l *Lease) stand(ctx context.Context, why *obstacle) (*candidacy, error) {
	c := &candidacy{value: l.newValue(), why: why}
	if !l.options.InstantFailover {
		return c, nil
	}
	bequest, err := l.bequeath(ctx, c.value, why)
	var refused *transport.ConnectError
	switch {
	case err == nil:
	case errors.Is(err, transport.ErrNoWill), errors.As(err, &refused):
		l.options.Logger.Warn("there will be no instant failover; after a crash the TTL decides", "lease", l.name, "error", err)
		return c, nil
	default:
		return c, err
	}
	// A broker that hears nothing for a while declares the connection dead. Were that
	// before this end gives up, two would believe that they hold the lease.
	if silence := bequest.Silence(); silence > 0 && silence < l.options.TTL {
		bequest.Close()
		whole := (l.options.TTL + time.Second - 1) / time.Second
		return c, fmt.Errorf("InstantFailover: the broker declares a silent connection dead after %v, and then frees a lease that its holder may believe in for TTL %v: "+
			"make the client's KeepAlive at least %v, or TTL at most %v", silence, l.options.TTL, (whole*2+2)/3*time.Second, silence)
	}
	c.bequest, c.lost = bequest, bequest.Lost()
	return c, nil
}

// binding returns what ties the requests of this attempt to the store that is asked and,
// where a Will would release what they acquire, to the connection that carries it.
func (c *candidacy) binding() transport.Binding {
	b := transport.Binding{Store: c.store}
	if c.bequest != nil {
		b.Connection = c.lost
	}
	return b
}

// bequeath makes a connection with a last will. While it waits for the broker it counts,
// after RequestTimeout, as a request that is not sent.
func (l *Lease) bequeath(ctx context.Context, value string, why *obstacle) (bequest *transport.Will, err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		bequest, err = l.client.SetWill(ctx, l.name, []byte(value))
	}()
	patience := time.NewTimer(l.options.RequestTimeout)
	defer patience.Stop()
	select {
	case <-ended:
		return bequest, err
	case <-patience.C:
	}
	cause := l.client.Connection().Err
	if cause == nil {
		cause = errors.New("the broker takes no connection with a last will yet")
	}
	why.met(fmt.Errorf("%w: %w", transport.ErrNotSent, cause))
	<-ended
	return bequest, err
}

// withdraw ends the use of the connection's last will, which does no harm after that:
// the value it deletes never comes again.
func (c *candidacy) withdraw() {
	if c.bequest != nil {
		c.bequest.Close()
	}
}

// newValue returns what will stand in the store for one tenure.
func (l *Lease) newValue() string {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails, says its documentation
	return l.options.Holder + ":" + hex.EncodeToString(nonce[:])
}

func isClosed(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}
