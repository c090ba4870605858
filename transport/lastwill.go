package transport

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mqttnet"
	"github.com/tenurelock/tenure/internal/protocol"
)

// lastWill is a request that the broker is to make in our name. It waits in an mqttConn
// for the next connection.
type lastWill struct {
	request Request
	stands  chan standing // room for one

	// A broker may hang up rather than say that it takes no wills [MQTT-3.1.4-2]. So when
	// a connection that carries a will ends without CONNACK, the next does not. Both are
	// run's.
	unanswered bool // the latest connection that carried it ended so
	suspicions int  // how often in succession it did, and the one without did not
	// abandoned: nobody waits for it any more, so no connection may keep it.
	abandoned bool // guarded by mqttConn.mu
}

// standing is what became of a will: it stands, or it was refused.
type standing struct {
	lost    <-chan struct{}
	silence time.Duration
	err     error
}

// maxSuspicions is how many it takes to believe that a broker takes no wills.
const maxSuspicions = 2

var _ Testator = (*mqttConn)(nil)

// Bequeath implements Testator.
func (c *mqttConn) Bequeath(ctx context.Context, request Request) (lost <-chan struct{}, silence time.Duration, err error) {
	if len(request.Payload) > math.MaxUint16 { // paho would cut it off
		return nil, 0, fmt.Errorf("%w: with its key and its value it has %d bytes, and MQTT allows %d", ErrNoWill, len(request.Payload), math.MaxUint16)
	}
	request.Payload = bytes.Clone(request.Payload) // it may be read when ctx has ended
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
	if s, known := c.abandon(will); known {
		return s.lost, s.silence, s.err // it came at the same moment
	}
	return nil, 0, err
}

// wakeUp makes serve look whether its connection is still the right one.
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

// notConnected says why an attempt to connect failed that carried a will, or none, and
// what that means for the will that waits, if any: nothing, if it may have been the
// network, or a broker that is busy.
func (c *mqttConn) notConnected(waits, carried *lastWill, incomplete error, connack *paho.Connack, err error) error {
	switch {
	case incomplete != nil:
		err = fmt.Errorf("%w: %w", ErrNoWill, incomplete)
		c.concluded(carried, standing{err: err})
	case connack != nil:
		refused := refusedConnect(connack)
		if !refused.temporary() {
			c.concluded(carried, standing{err: refused})
		}
		return refused
	case carried != nil:
		carried.unanswered = true
	case waits != nil: // it fares no better without
		waits.unanswered, waits.suspicions = false, 0
	}
	return err
}

// connectedWithout notes that a connection came about without the will that waits, if
// any, after one with it did not.
func (c *mqttConn) connectedWithout(waits *lastWill) {
	if waits == nil {
		return
	}
	waits.unanswered = false
	if waits.suspicions++; waits.suspicions < maxSuspicions {
		c.wakeUp() // to try it again
		return
	}
	c.concluded(waits, standing{err: fmt.Errorf("%w: the broker hangs up on a connection that carries it, and not on one without", ErrNoWill)})
}

// abandon gives a will up, unless it is known what became of it. A connection that has
// been made with it meanwhile is replaced by one without: its loss must not delete what
// nobody bequeathed.
func (c *mqttConn) abandon(will *lastWill) (s standing, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case s := <-will.stands:
		return s, true
	default:
	}
	if c.will == will {
		c.will = nil
	}
	will.abandoned = true
	c.wakeUp()
	return standing{}, false
}

// outdated reports whether a connection that carries will, or none, is to be replaced.
func (c *mqttConn) outdated(will *lastWill) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.will != nil || will != nil && will.abandoned
}

// write puts the will into a CONNECT packet: into what paho is told, and for what paho
// leaves out, into what it sends.
func (w *lastWill) write(connect *paho.Connect, conn *mqttnet.Conn) {
	connect.WillMessage = &paho.WillMessage{
		QoS:     1,
		Topic:   protocol.InvokeTopic,
		Payload: w.request.Payload,
	}
	connect.WillProperties = &paho.WillProperties{}
	for _, user := range requestProperties(nil, connect.ClientID, w.request) {
		connect.WillProperties.User.Add(user.Name, user.Value)
	}
	var id correlation
	id.choose()
	conn.CompleteFirst(willProperties{
		contentType:   protocol.ContentType,
		responseTopic: protocol.ResponseTopic(connect.ClientID),
		correlation:   string(id[:]),
	}.complete)
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

// choose fills in correlation data that no other request has, and that nobody can guess
// who would answer in the store's place.
func (id *correlation) choose() {
	_, _ = rand.Read(id[:]) // never fails, says its documentation
}
