package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
)

var (
	// ErrNoWill: this connection cannot leave a last will, or not this one.
	ErrNoWill = errors.New("this connection cannot leave a last will")
	// ErrWillInUse: the client's connection carries a last will already, and there is
	// one for each connection. Dial another client for another.
	ErrWillInUse = errors.New("the client's connection has a last will already, and there is one for each: dial another client")
)

// Testator is a [Conn] that can leave a last will: a request that the broker makes in
// the client's name when it loses the connection.
type Testator interface {
	Conn

	// Bequeath replaces the present connection, with a farewell, by one whose loss
	// makes the store apply will, and returns when requests can be sent over that. It
	// tries until it succeeds or ctx ends, unless the broker refuses the will with a
	// [*ConnectError], or it cannot be left at all (ErrNoWill). The connections that
	// follow a loss, or an error, have no will. Only one call may be under way.
	//
	// lost is closed once the connection is over. silence is how long the broker
	// waits, at least, before it takes a connection for lost on which it hears
	// nothing; zero means for ever.
	Bequeath(ctx context.Context, will Request) (lost <-chan struct{}, silence time.Duration, err error)
}

// Bequest is a last will that stands: the store deletes a key when the connection is
// lost. It is safe for concurrent use.
type Bequest struct {
	client  *Client
	lost    <-chan struct{}
	silence time.Duration
	once    sync.Once
}

// Lost is closed once the connection is over that the will belongs to. From then on the
// will may have been executed.
func (b *Bequest) Lost() <-chan struct{} { return b.lost }

// Silence returns how long the broker waits, at least, before it takes a connection for
// lost on which it hears nothing. Zero means for ever.
func (b *Bequest) Silence() time.Duration { return b.silence }

// Close ends the use of the will, so that another can take its place. Until then, or
// until the client is closed, it stays with the connection, which does no harm if the
// value that it deletes is not used again.
func (b *Bequest) Close() {
	b.once.Do(func() {
		b.client.mu.Lock()
		defer b.client.mu.Unlock()
		b.client.bequeathed = false
	})
}

// Bequeath makes the store delete key, if it holds value, as soon as the broker loses
// this client without a farewell: because the process died, or its network. For that it
// replaces the client's connection. Requests under way have a second to finish, others
// wait for the new connection, and watches are registered again by themselves. It
// returns when the new connection can be used.
//
// Set the key when Bequeath has returned, not before, and to a value that it never had:
// a connection that is lost while it is being made executes the will, too.
//
// The will belongs to that one connection: the one that follows a loss has none. A
// client has one will at a time; for a second the error is ErrWillInUse, until the
// first was closed.
//
// While the broker is away, or busy, it goes on trying, in the client's own time. An
// error means that there is no will, and that the client goes on without: ErrNoWill if
// the Conn knows none, if key and value are more than the 65,000 bytes or so that MQTT
// allows, or if the broker hangs up on it, and not without it; the broker's [*ConnectError] if it
// refuses, whatever its reason; the cause of the end of ctx; ErrClosed or
// ErrSessionTakenOver.
//
// Whether a broker passes on what a store needs to answer a will, and whether the store
// takes it, nobody tells. See package lease for what to rely on.
func (c *Client) Bequeath(ctx context.Context, key string, value []byte) (*Bequest, error) {
	testator, ok := c.conn.(Testator)
	if !ok {
		return nil, operationError(bequeath, key, ErrNoWill)
	}
	c.mu.Lock()
	taken := c.bequeathed
	c.bequeathed = true
	c.mu.Unlock()
	if taken {
		return nil, operationError(bequeath, key, ErrWillInUse)
	}
	bequest := &Bequest{client: c}
	var err error
	bequest.lost, bequest.silence, err = testator.Bequeath(ctx, Request{Payload: appendVDel(nil, key, value)})
	if err != nil {
		bequest.Close()
		return nil, operationError(bequeath, key, err)
	}
	return bequest, nil
}

// bequeath is the operation in errors.
const bequeath = "bequeath"

func appendVDel(dst []byte, key string, value []byte) []byte {
	dst = slices.Grow(dst, maxOverhead+len(key)+len(value))
	dst = resp3.AppendArray(dst, 3)
	dst = resp3.AppendBulk(dst, protocol.VerbVDel)
	dst = resp3.AppendBulk(dst, key)
	return resp3.AppendBulk(dst, value)
}

// Lost returns a channel that is closed when the present connection is lost, or given
// up for another. While there is no connection the channel is closed already.
func (c *Client) Lost() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// alreadyLost is the channel of a connection that there is not.
var alreadyLost = func() chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}()
