package transport

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/storeconn"
)

var (
	// ErrNoWill: this connection cannot have a Will, or not this one.
	ErrNoWill = errors.New("this connection cannot have a Will")
	// ErrWillInUse: the client's connection has a Will already, and MQTT allows one for
	// each connection. Dial another client for another Will.
	ErrWillInUse = errors.New("the client's connection has a Will already, and MQTT allows one: dial another client")
)

// Will is a Will that a connection has: the store deletes a key when the broker loses the
// connection. It is safe for concurrent use.
type Will struct {
	client  *Client
	lost    <-chan struct{}
	silence time.Duration
}

// Lost is closed when the connection that has the Will is over. From then on the store may
// have applied the Will.
func (w *Will) Lost() <-chan struct{} { return w.lost }

// Silence returns the least time that the broker waits before it takes a silent connection
// for lost. Zero means forever.
func (w *Will) Silence() time.Duration { return w.silence }

// Close lets the client set another Will. Until then this one stays with the connection, which
// does no harm if the value that it deletes is not used again.
func (w *Will) Close() {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	if w.client.will == w {
		w.client.will = nil
	}
}

// SetWill makes the store delete key, if it holds value, as soon as the broker loses this
// client without a DISCONNECT: because the process died, or its network. It replaces the
// client's connection, and returns when the new one can be used. Requests under way have a second
// to finish, others wait, and watches are registered again.
//
// Set the key after SetWill has returned, not before, and to a value that it never had:
// the loss of a connection that is still being made executes the Will too.
//
// The Will belongs to that one connection: after a loss, the next connection has none. A
// client has one Will at a time; a second SetWill fails with ErrWillInUse until the first
// Will is closed.
//
// While the broker is away or busy, sends clients elsewhere or closes connections without an answer,
// SetWill goes on trying until ctx ends, and the client has no connection. The log and [Client.Connection]
// say what each attempt failed with. After an error the client goes on without a Will. The error is ErrNoWill
// if the Conn is without Wills, or if key and value are more than the 65,000 bytes or so that MQTT
// allows; a [*ConnectionError] if the broker refuses the Will; the cause of ctx; ErrClosed or
// ErrSessionTakenOver.
//
// A client cannot find out whether the broker passes on the properties that a store needs,
// nor whether the store accepts the Will. Package lease says what to rely on.
func (c *Client) SetWill(ctx context.Context, key string, value []byte) (*Will, error) {
	will := &Will{client: c}
	c.mu.Lock()
	taken := c.will != nil
	if !taken {
		c.will = will
	}
	c.mu.Unlock()
	if taken {
		return nil, operror.New(setWill, key, ErrWillInUse)
	}
	var err error
	will.lost, will.silence, err = c.conn.SetWill(ctx, encode(protocol.VerbVDel, key, value, 0))
	if err != nil {
		will.Close()
		return nil, operror.New(setWill, key, err)
	}
	return will, nil
}

// setWill is the operation in errors.
const setWill = "transport: set Will for"

// pendingWill is a request that the broker is to make in this client's name. It waits in an
// mqttConn for the next connection.
type pendingWill struct {
	payload   []byte
	result    chan willResult // gets an item when a connection has it, or when it was refused
	withdrawn bool            // its caller has left, so no connection may keep it; guarded by mqttConn.mu
}

type willResult struct {
	lost    <-chan struct{}
	silence time.Duration
	err     error
}

// SetWill implements Conn.
func (c *mqttConn) SetWill(ctx context.Context,
	payload []byte) (lost <-chan struct{}, silence time.Duration, err error) {
	if len(payload) > math.MaxUint16 { // paho v0.23.0 would cut it off
		return nil, 0, fmt.Errorf("%w: with its key and its value it has %d bytes, and MQTT allows %d", ErrNoWill,
			len(payload), math.MaxUint16)
	}
	will := &pendingWill{payload: payload, result: make(chan willResult, 1)}
	c.mu.Lock()
	c.will = will
	signal(c.replace)
	c.mu.Unlock()
	var result willResult
	select {
	case result = <-will.result:
	case <-c.life.Done():
		result = c.withdraw(will, context.Cause(c.life))
	case <-ctx.Done():
		result = c.withdraw(will, context.Cause(ctx))
	}
	return result.lost, result.silence, result.err
}

// concluded tells the caller of a Will which connection has it, or why it was refused. No further connection
// has it.
func (c *mqttConn) concluded(will *pendingWill, result willResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if will != nil && c.will == will {
		c.will = nil
		will.result <- result
	}
}

// refusedWith returns the error for a refusal of a connection, which was to have will, or none. It decides
// about the Will, unless the broker is busy or sends clients elsewhere.
func (c *mqttConn) refusedWith(will *pendingWill, connack *paho.Connack) error {
	refused := &ConnectionError{
		Code:            connack.ReasonCode,
		Reason:          connack.Properties.ReasonString,
		ServerReference: connack.Properties.ServerReference,
	}
	if !errors.Is(refused, ErrServerBusy) && !errors.Is(refused, ErrUseAnotherServer) {
		c.concluded(will, willResult{err: refused})
	}
	return refused
}

// withdraw gives a Will up because of cause, unless its result has come. A connection that has it already is
// replaced by one without: its loss must not delete a key for a caller that has left.
func (c *mqttConn) withdraw(will *pendingWill, cause error) willResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case result := <-will.result:
		return result
	default:
	}
	c.will, will.withdrawn = nil, true
	signal(c.replace)
	return willResult{err: cause}
}

// outdated reports whether a connection that has will, or none, is to be replaced.
func (c *mqttConn) outdated(will *pendingWill) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.will != nil || will != nil && will.withdrawn
}

// write puts the Will into a CONNECT packet.
func (w *pendingWill) write(connect *paho.Connect) {
	var id correlation
	id.choose()
	connect.WillMessage = &paho.WillMessage{
		QoS:     1,
		Topic:   protocol.InvokeTopic,
		Payload: w.payload,
	}
	connect.WillProperties = &paho.WillProperties{
		ContentType:     protocol.ContentType,
		ResponseTopic:   protocol.ResponseTopic(connect.ClientID),
		CorrelationData: id[:],
	}
	for _, user := range requestProperties(nil, connect.ClientID, &storeconn.Request{}) {
		connect.WillProperties.User.Add(user.Name, user.Value)
	}
}
