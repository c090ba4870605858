package transport

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/protocol"
)

// lastWill is a request that the broker is to make in our name. It waits in an mqttConn
// for the next connection.
type lastWill struct {
	request Request
	stands  chan standing // room for one
}

// standing is what became of a will: it stands, or it was refused.
type standing struct {
	lost    <-chan struct{}
	silence time.Duration
	err     error
}

var _ Testator = (*mqttConn)(nil)

// Bequeath implements Testator.
func (c *mqttConn) Bequeath(ctx context.Context, request Request) (lost <-chan struct{}, silence time.Duration, err error) {
	will := &lastWill{request: request, stands: make(chan standing, 1)}
	c.mu.Lock()
	c.will = will
	c.mu.Unlock()
	c.wakeUp()
	select {
	case s := <-will.stands:
		return s.lost, s.silence, s.err
	case <-c.ended:
		err = c.cause
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	// A connection that is being made may have it already, and keeps it: nobody relies
	// on it, and what it deletes nobody has set.
	c.concluded(will, standing{})
	return nil, 0, err
}

// wakeUp makes run replace the connection.
func (c *mqttConn) wakeUp() {
	select {
	case c.replace <- struct{}{}:
	default:
	}
}

// nextWill returns what the next connection is to carry.
func (c *mqttConn) nextWill() *lastWill {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.will
}

// concluded says what became of a will, after which no further connection carries it.
func (c *mqttConn) concluded(will *lastWill, s standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if will != nil && c.will == will {
		c.will = nil
		will.stands <- s
	}
}

// write puts the will into a CONNECT packet: into what paho is told, and for what paho
// leaves out, into what it sends.
func (w *lastWill) write(connect *paho.Connect, conn *netConn) {
	connect.WillMessage = &paho.WillMessage{
		QoS:     1,
		Topic:   protocol.InvokeTopic,
		Payload: w.request.Payload,
	}
	connect.WillProperties = &paho.WillProperties{User: userProperties(connect.ClientID, w.request)}
	conn.complete = willProperties{
		contentType:   protocol.ContentType,
		responseTopic: protocol.ResponseTopic(connect.ClientID),
		correlation:   string(newCorrelation()),
	}.complete
}

// silence is how long the broker waits before it takes a silent connection for lost:
// one and a half times the keep-alive [MQTT-3.1.2-22], which it may have set itself; some
// drop the half of a second.
func silence(keepAlive uint16, connack *paho.Connack) time.Duration {
	if connack.Properties != nil && connack.Properties.ServerKeepAlive != nil {
		keepAlive = *connack.Properties.ServerKeepAlive
	}
	return (time.Duration(keepAlive) * 3 / 2) * time.Second
}

// newCorrelation returns correlation data that no other request has.
func newCorrelation() []byte {
	correlation := make([]byte, correlationLength)
	_, _ = rand.Read(correlation) // never fails, says its documentation
	return correlation
}
