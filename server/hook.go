package server

import (
	"bytes"
	"net"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/server/internal/logs"
)

// hook is what mochi calls. It is the only hook, since mochi v2.7.9 lets one permissive hook
// overrule all others.
type hook struct {
	mochi.HookBase
	server *Server
}

// ID implements mochi.Hook.
func (h *hook) ID() string { return "tenure" }

// Provides tells mochi which methods to call.
func (h *hook) Provides(call byte) bool {
	return bytes.Contains([]byte{
		mochi.OnConnect,
		mochi.OnConnectAuthenticate,
		mochi.OnSessionEstablish,
		mochi.OnSessionEstablished,
		mochi.OnPacketRead,
		mochi.OnPacketEncode,
		mochi.OnDisconnect,
	}, []byte{call})
}

// OnConnect decides whether a client may connect.
func (h *hook) OnConnect(cl *mochi.Client, pk packets.Packet) error {
	conn, ok := cl.Net.Conn.(*connection)
	if !ok {
		return packets.ErrNotAuthorized
	}
	identity, err := h.server.authenticate(cl, conn, pk)
	if err != nil {
		return err
	}
	// Not earlier: a client that has not authenticated must not make others wait for a client id.
	// Not in OnSessionEstablish: the owner of the client id must not change once it was
	// checked.
	if err := h.server.lockClientID(identity, cl, conn); err != nil {
		return err
	}
	if conn.closed.Load() {
		return net.ErrClosed // so that it takes no session over
	}
	if refused := h.server.admit(identity, cl, conn, pk); refused != nil {
		conn.unlockID() // before the answer, which may have to wait for the client
		return h.server.refuse(cl, RefusedRules, *refused, "user", logs.Name(identity.User), "reason", logs.Text(refused.Reason))
	}
	limitKeepAlive(cl)
	conn.silenceAllowed = time.Duration(cl.State.Keepalive) * time.Second * 3 / 2
	return nil
}

// limitKeepAlive bounds how long a client may be silent.
func limitKeepAlive(cl *mochi.Client) {
	switch wanted := cl.State.Keepalive; {
	case wanted == 0:
		cl.State.Keepalive, cl.State.ServerKeepalive = defaultKeepAlive, true
	case cl.Properties.ProtocolVersion < 5:
		cl.State.Keepalive = min(wanted, maxOldKeepAlive)
	case wanted > maxKeepAlive:
		cl.State.Keepalive, cl.State.ServerKeepalive = maxKeepAlive, true
	}
}

// OnConnectAuthenticate admits every client: OnConnect has decided already.
func (h *hook) OnConnectAuthenticate(*mochi.Client, packets.Packet) bool { return true }

// OnSessionEstablish comes before mochi looks for an earlier connection of the same client.
// mochi v2.7.9: its own take-over leaves both connected for a while and may lose the new one.
// So this method ends the old one, and waits for its end.
func (h *hook) OnSessionEstablish(cl *mochi.Client, pk packets.Packet) {
	conn, ok := cl.Net.Conn.(*connection)
	if !ok {
		return
	}
	conn.receiveMaximum = pk.Properties.ReceiveMaximum
	conn.shortened = limitSession(cl)
	conn.cleanUp = func() { h.server.endConnection(cl.ID, conn) }
	if old, ok := h.server.mochi.Clients.Get(cl.ID); ok {
		if oldConn, ok := old.Net.Conn.(*connection); ok {
			h.server.takeOver(old, oldConn, conn)
		}
	}
	// mochi may be done with an earlier connection for which endConnection has not returned yet.
	if ending := h.server.connectionOf(cl.ID); ending != nil {
		_ = ending.Close() // the connection is over even if this fails
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

// OnSessionEstablished comes after CONNACK. From now on the next connection with the same
// client id finds this one.
func (h *hook) OnSessionEstablished(cl *mochi.Client, _ packets.Packet) {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		conn.unlockID()
		h.server.startSession(cl, conn)
	}
}

// OnDisconnect applies or publishes the Will, and notes whether the session ends with the
// connection. The goroutine that reads the connection calls it, after the last packet and
// before another connection with the client id is established. err is nil after a normal
// DISCONNECT, and never otherwise.
func (h *hook) OnDisconnect(cl *mochi.Client, err error, expire bool) {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		if err != nil {
			h.server.applyWill(cl, conn)
			h.server.publishOrDelayWill(cl, conn, expire)
		}
		conn.endReason = whyEnded(conn, err, h.server.stopping.Load())
		conn.sessionEnded.Store(expire)
		conn.disconnected.Store(true)
	}
}

// OnPacketEncode adds the limits of the server to CONNACK. It also keeps the reason strings of
// CONNACK and DISCONNECT for clients that ask for no problem information: mochi v2.7.9 would
// leave them out, and the standard allows them there [MQTT-3.1.2-29].
func (h *hook) OnPacketEncode(cl *mochi.Client, pk packets.Packet) packets.Packet {
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

// OnPacketRead makes mochi treat every DISCONNECT but a normal one as a reason for the Will
// [MQTT-3.14.4-3]. mochi v2.7.9 by itself does so for one reason code only.
func (h *hook) OnPacketRead(cl *mochi.Client, pk packets.Packet) (packets.Packet, error) {
	if pk.FixedHeader.Type == packets.Disconnect {
		changeSession(cl, &pk)
		if reasonOf(cl, pk) != packets.CodeDisconnect.Code {
			pk.ReasonCode = packets.CodeDisconnectWillMessage.Code
		}
	}
	return pk, nil
}

// reasonOf returns the reason code of a DISCONNECT. mochi v2.7.9 does not read it if no
// properties follow. Then it is the last byte of the connection, since a client sends nothing
// after a DISCONNECT [MQTT-3.14.4-1].
func reasonOf(cl *mochi.Client, pk packets.Packet) byte {
	conn, ok := cl.Net.Conn.(*connection)
	if ok && cl.Properties.ProtocolVersion >= 5 && pk.FixedHeader.Remaining == 1 {
		return conn.lastByte
	}
	return pk.ReasonCode
}
