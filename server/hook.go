package server

import (
	"bytes"
	"net"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// hook is where the broker asks us. It is the only hook: the broker lets one
// permissive hook overrule all others.
type hook struct {
	mqtt.HookBase
	server *Server
	names  *nameLocks
}

// ID names the hook in the broker.
func (h *hook) ID() string { return "tenure" }

// Provides lists the calls that the broker should make.
func (h *hook) Provides(call byte) bool {
	return bytes.Contains([]byte{
		mqtt.OnConnect,
		mqtt.OnConnectAuthenticate,
		mqtt.OnACLCheck,
		mqtt.OnSessionEstablish,
		mqtt.OnSessionEstablished,
		mqtt.OnPacketRead,
		mqtt.OnPacketEncode,
		mqtt.OnPublish,
		mqtt.OnSubscribed,
		mqtt.OnUnsubscribed,
		mqtt.OnDisconnect,
	}, []byte{call})
}

// OnConnect decides who may connect.
func (h *hook) OnConnect(cl *mqtt.Client, pk packets.Packet) error {
	conn, ok := cl.Net.Conn.(*connection)
	if !ok {
		return packets.ErrNotAuthorized
	}
	who, err := h.server.authenticate(cl, conn, pk)
	if err != nil {
		return err
	}
	// Not before: a client that only says a name must not keep others waiting for it. And
	// not in OnSessionEstablish: whose the client id is may not change after it was looked at.
	conn.hold(h.names.lock(cl.ID))
	if conn.closed.Load() {
		return net.ErrClosed // and takes nothing over
	}
	if refused := h.server.admit(who, cl, conn, pk); refused != nil {
		return h.server.refuse(cl, RefusedRules, *refused, "user", logs.Name(who.User), "reason", logs.Text(refused.Reason))
	}
	limitKeepAlive(cl)
	return nil
}

// limitKeepAlive bounds how long a client may be silent.
func limitKeepAlive(cl *mqtt.Client) {
	switch wanted := cl.State.Keepalive; {
	case wanted == 0:
		cl.State.Keepalive, cl.State.ServerKeepalive = forcedKeepAlive, true
	case cl.Properties.ProtocolVersion < 5:
		cl.State.Keepalive = min(wanted, maxOldKeepAlive)
	case wanted > maxKeepAlive:
		cl.State.Keepalive, cl.State.ServerKeepalive = maxKeepAlive, true
	}
}

// OnConnectAuthenticate has nothing left to decide.
func (h *hook) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }

// OnACLCheck decides about topics. The broker asks for the topic of a publish, the
// filter of a subscription, and the topic of each delivery.
func (h *hook) OnACLCheck(cl *mqtt.Client, topic string, write bool) bool {
	who := identityOf(cl)
	if write {
		return topic == protocol.InvokeTopic || h.server.mayPublish(who, topic)
	}
	return h.server.maySubscribe(who, topic) // of a topic it asks mayRead
}

// OnSessionEstablish comes before the broker looks for an earlier connection of
// the same client. The broker's own take-over leaves both connected for a while
// and may lose the new one; so the old one is sent away here, and its end awaited.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, pk packets.Packet) {
	liftSendQuota(cl)
	conn, ok := cl.Net.Conn.(*connection)
	if !ok {
		return
	}
	conn.shortened = limitSession(cl)
	conn.establish(func() { h.server.forget(cl.ID, conn) })
	if old, ok := h.server.broker.Clients.Get(cl.ID); ok {
		if oldConn, ok := old.Net.Conn.(*connection); ok {
			h.server.takeOver(old, oldConn)
		}
	}
	// The broker may have forgotten an earlier connection, whose end still forgets what
	// the store keeps for its client.
	h.server.mu.Lock()
	ending := h.server.connections[cl.ID]
	h.server.mu.Unlock()
	if ending != nil {
		_ = ending.Close() // it ends either way
		<-ending.over
	}
	if pk.Connect.Clean {
		h.server.endSession(cl.ID)
	}
	if conn.will != nil {
		h.server.responseTopics.reserveForWill(cl.ID, conn.will.responseTopic)
	}
	h.server.mu.Lock()
	h.server.connections[cl.ID] = conn
	h.server.mu.Unlock()
}

// OnSessionEstablished comes after CONNACK; by now the client can be found by the
// next connection of the same name.
func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	liftSendQuota(cl)
	if conn, ok := cl.Net.Conn.(*connection); ok {
		conn.letGo()
		if conn.express != nil {
			conn.express.board(h.server, cl)
		}
	}
}

// OnSubscribed and OnUnsubscribed come when a subscription has changed, before that is
// acknowledged, and also when a session ends.
func (h *hook) OnSubscribed(*mqtt.Client, packets.Packet, []byte) { h.server.subscriptions.Add(1) }

// OnUnsubscribed: see OnSubscribed.
func (h *hook) OnUnsubscribed(*mqtt.Client, packets.Packet) { h.server.subscriptions.Add(1) }

// liftSendQuota makes the broker ignore the client's Receive Maximum, in whose
// accounting it can deadlock or stall. What the store sends is QoS 0, to which the
// quota does not apply.
func liftSendQuota(cl *mqtt.Client) {
	cl.Properties.Props.ReceiveMaximum = 0
	cl.State.Inflight.ResetSendQuota(0)
}

// OnDisconnect applies the Will, if that is a request, and notes whether the session
// ends with the connection. It is called by the goroutine that read the connection,
// after the last packet and before another connection of the name is established. There
// is no error after a normal DISCONNECT, and always one otherwise.
func (h *hook) OnDisconnect(cl *mqtt.Client, err error, expire bool) {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		if err != nil {
			h.server.applyWill(cl, conn)
		}
		conn.sessionEnded.Store(expire)
		conn.disconnected.Store(true)
	}
}

// OnPacketEncode tells clients in CONNACK which packets are too large, and mends what
// the broker does to those that ask for no problem information: it would take the
// user properties out of replies, which is not meant [MQTT-3.1.2-29].
func (h *hook) OnPacketEncode(cl *mqtt.Client, pk packets.Packet) packets.Packet {
	switch pk.FixedHeader.Type {
	case packets.Connack:
		pk.Properties.MaximumPacketSize = h.server.options.MaxPacketSize
		pk.Mods.DisallowProblemInfo = false
		if conn, ok := cl.Net.Conn.(*connection); ok && conn.shortened {
			pk.Properties.SessionExpiryInterval, pk.Properties.SessionExpiryIntervalFlag = maxSessionExpiry, true
		}
	case packets.Publish, packets.Disconnect:
		pk.Mods.DisallowProblemInfo = false
	}
	return pk
}

// OnPacketRead sends away who publishes with QoS 2. CONNACK has said that there is
// none [MQTT-3.2.2-11]; the broker would lower it to 1 and acknowledge that to a
// client that expects another answer.
//
// And it makes the broker publish the Will after every DISCONNECT but a normal one
// [MQTT-3.14.4-3]; by itself it does so for one reason code only.
func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if pk.FixedHeader.Type == packets.Disconnect {
		changeSession(cl, &pk)
	}
	if pk.FixedHeader.Type == packets.Disconnect && reasonOf(cl, pk) != packets.CodeDisconnect.Code {
		pk.ReasonCode = packets.CodeDisconnectWillMessage.Code
		return pk, nil
	}
	if pk.FixedHeader.Type != packets.Publish || pk.FixedHeader.Qos < 2 {
		return pk, nil
	}
	if pk.TopicName == protocol.InvokeTopic {
		h.server.drop(cl, DroppedQoS)
	}
	h.server.disconnect(cl, packets.ErrQosNotSupported)
	return pk, packets.ErrRejectPacket
}

// reasonOf returns the reason code of a DISCONNECT. The broker does not read it where
// no properties follow; it is then the last byte of the connection, since a client sends
// nothing after a DISCONNECT [MQTT-3.14.4-1].
func reasonOf(cl *mqtt.Client, pk packets.Packet) byte {
	conn, ok := cl.Net.Conn.(*connection)
	if ok && cl.Properties.ProtocolVersion >= 5 && pk.FixedHeader.Remaining == 1 {
		return conn.lastByte
	}
	return pk.ReasonCode
}

// OnPublish takes requests out of the stream, before they are acknowledged; the
// broker acknowledges them and delivers them to no client. It also refuses what would be
// retained below clients/. It is called by the goroutine that reads the client's
// connection.
func (h *hook) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if cl.Net.Inline {
		return pk, nil
	}
	var fault *packets.Code
	switch {
	case pk.TopicName == protocol.InvokeTopic:
		if fault = h.server.handle(cl, requestIn(pk)); fault == nil {
			return pk, packets.CodeSuccessIgnore
		}
	case pk.FixedHeader.Retain && isClientTopic(pk.TopicName):
		fault = refusal(packets.ErrNotAuthorized, notRetained)
	default:
		return pk, nil
	}
	switch {
	case cl.Properties.ProtocolVersion < 5:
		// An acknowledgement would say that the request was accepted.
		h.server.disconnect(cl, *fault)
		return pk, packets.ErrRejectPacket
	case pk.FixedHeader.Qos == 0:
		return pk, packets.ErrRejectPacket // there is no acknowledgement to put it in
	}
	return pk, *fault
}
