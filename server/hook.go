package server

import (
	"bytes"
	"net"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/server/internal/logs"
)

// hook is where the broker asks us. It is the only hook: the broker lets one
// permissive hook overrule all others.
type hook struct {
	mqtt.HookBase
	server *Server
}

// ID names the hook in the broker.
func (h *hook) ID() string { return "tenure" }

// Provides lists the calls that the broker should make.
func (h *hook) Provides(call byte) bool {
	return bytes.Contains([]byte{
		mqtt.OnConnect,
		mqtt.OnConnectAuthenticate,
		mqtt.OnSessionEstablish,
		mqtt.OnSessionEstablished,
		mqtt.OnPacketRead,
		mqtt.OnPacketEncode,
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
	if err := h.server.lockClientID(who, cl, conn); err != nil {
		return err
	}
	if conn.closed.Load() {
		return net.ErrClosed // and takes nothing over
	}
	if refused := h.server.admit(who, cl, conn, pk); refused != nil {
		conn.unlockID() // not after the answer, which may have to wait for its reader
		return h.server.refuse(cl, RefusedRules, *refused, "user", logs.Name(who.User), "reason", logs.Text(refused.Reason))
	}
	limitKeepAlive(cl)
	return nil
}

// limitKeepAlive bounds how long a client may be silent.
func limitKeepAlive(cl *mqtt.Client) {
	switch wanted := cl.State.Keepalive; {
	case wanted == 0:
		cl.State.Keepalive, cl.State.ServerKeepalive = defaultKeepAlive, true
	case cl.Properties.ProtocolVersion < 5:
		cl.State.Keepalive = min(wanted, maxOldKeepAlive)
	case wanted > maxKeepAlive:
		cl.State.Keepalive, cl.State.ServerKeepalive = maxKeepAlive, true
	}
}

// OnConnectAuthenticate has nothing left to decide.
func (h *hook) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }

// OnSessionEstablish comes before the broker looks for an earlier connection of
// the same client. The broker's own take-over leaves both connected for a while
// and may lose the new one; so the old one is sent away here, and its end awaited.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, pk packets.Packet) {
	conn, ok := cl.Net.Conn.(*connection)
	if !ok {
		return
	}
	conn.receiveMaximum = pk.Properties.ReceiveMaximum
	conn.shortened = limitSession(cl)
	conn.onOver(func() { h.server.endConnection(cl.ID, conn) })
	if old, ok := h.server.mochi.Clients.Get(cl.ID); ok {
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
	h.server.enter(cl, conn)
}

// OnSessionEstablished comes after CONNACK; by now the client can be found by the
// next connection of the same name.
func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		conn.unlockID()
		h.server.startSession(cl, conn)
	}
}

// OnDisconnect applies or publishes the Will, and notes whether the session ends with the
// connection. It is called by the goroutine that read the connection,
// after the last packet and before another connection of the name is established. There
// is no error after a normal DISCONNECT, and always one otherwise.
func (h *hook) OnDisconnect(cl *mqtt.Client, err error, expire bool) {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		if err != nil {
			h.server.applyWill(cl, conn)
			h.server.publishOrDelayWill(cl, conn, expire)
		}
		conn.sessionEnded.Store(expire)
		conn.disconnected.Store(true)
	}
}

// OnPacketEncode completes CONNACK with the limits of the server. It also keeps the reason
// strings of CONNACK and DISCONNECT for clients that ask for no problem information: mochi
// would leave them out, and the standard allows them there [MQTT-3.1.2-29].
func (h *hook) OnPacketEncode(cl *mqtt.Client, pk packets.Packet) packets.Packet {
	switch pk.FixedHeader.Type {
	case packets.Connack:
		pk.Properties.MaximumPacketSize = h.server.options.MaxPacketSize
		pk.Mods.DisallowProblemInfo = false
		if !h.server.options.Retain && pk.ReasonCode == packets.CodeSuccess.Code {
			pk.Properties.RetainAvailable, pk.Properties.RetainAvailableFlag = 0, true
		}
		if conn, ok := cl.Net.Conn.(*connection); ok && conn.shortened {
			pk.Properties.SessionExpiryInterval, pk.Properties.SessionExpiryIntervalFlag = maxSessionExpiry, true
		}
	case packets.Disconnect:
		pk.Mods.DisallowProblemInfo = false
	}
	return pk
}

// OnPacketRead makes the broker tell every DISCONNECT from a normal one, after which there is
// no Will [MQTT-3.14.4-3]; by itself it does so for one reason code only.
func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if pk.FixedHeader.Type == packets.Disconnect {
		changeSession(cl, &pk)
		if reasonOf(cl, pk) != packets.CodeDisconnect.Code {
			pk.ReasonCode = packets.CodeDisconnectWillMessage.Code
		}
	}
	return pk, nil
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
