package server

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/protocol"
)

// hook is where the broker asks us. It is the only hook: the broker lets one
// permissive hook overrule all others.
type hook struct {
	mqtt.HookBase
	server *Server
	names  nameLocks
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
		mqtt.OnPacketEncode,
		mqtt.OnPublish,
		mqtt.OnClientExpired,
	}, []byte{call})
}

// OnConnect refuses Wills on topics that belong to the store: the broker publishes
// a Will without asking anybody whether the client may.
func (h *hook) OnConnect(cl *mqtt.Client, pk packets.Packet) error {
	if pk.Connect.WillFlag && !mayPublish(pk.Connect.WillTopic) {
		refusal := packets.Code{
			Code:   packets.ErrNotAuthorized.Code,
			Reason: fmt.Sprintf("a Will may not be published to %q, which belongs to the state store", pk.Connect.WillTopic),
		}
		_ = h.server.broker.SendConnack(cl, refusal, false, nil) // the connection ends either way
		return refusal
	}
	if pk.Connect.Keepalive == 0 {
		cl.State.Keepalive, cl.State.ServerKeepalive = forcedKeepAlive, true
	}
	return nil
}

// OnConnectAuthenticate lets everybody in: there is no authentication yet.
func (h *hook) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }

// OnACLCheck protects the store's topics. The broker asks for the topic of a
// publish, the filter of a subscription, and the topic of each delivery.
func (h *hook) OnACLCheck(cl *mqtt.Client, topic string, write bool) bool {
	if write {
		return topic == protocol.InvokeTopic || mayPublish(topic)
	}
	return mayRead(cl.ID, topic)
}

// mayPublish reports whether a client may publish to a topic, other than a
// request: not where only the store speaks.
func mayPublish(topic string) bool {
	return topic != protocol.InvokeTopic && !strings.HasPrefix(topic, protocol.ReservedPrefix) && !strings.HasPrefix(topic, "$")
}

// mayRead reports whether a client may subscribe to a filter or be sent a message
// on a topic: not to the requests of others, nor to their notifications. A
// wildcard that covers such topics is granted and delivers none of them.
func mayRead(clientID, filter string) bool {
	if filter == protocol.InvokeTopic {
		return false
	}
	own := strings.TrimSuffix(protocol.NotifyFilter(clientID), "+")
	return !strings.HasPrefix(filter, protocol.ReservedPrefix) || strings.HasPrefix(filter, own)
}

// OnSessionEstablish comes before the broker looks for an earlier connection of
// the same client. The broker's own take-over leaves both connected for a while
// and may lose the new one; so the old one is sent away here, and its end awaited.
func (h *hook) OnSessionEstablish(cl *mqtt.Client, _ packets.Packet) {
	liftSendQuota(cl)
	conn, ok := cl.Net.Conn.(*connection)
	if !ok {
		return
	}
	conn.establish(h.names.lock(cl.ID), func() { h.server.forget(cl.ID, conn) })
	if old, ok := h.server.broker.Clients.Get(cl.ID); ok {
		if oldConn, ok := old.Net.Conn.(*connection); ok {
			h.server.disconnect(old, packets.ErrSessionTakenOver)
			<-oldConn.over
		}
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
	}
}

// liftSendQuota makes the broker ignore the client's Receive Maximum, in whose
// accounting it can deadlock or stall. What the store sends is QoS 0, to which the
// quota does not apply.
func liftSendQuota(cl *mqtt.Client) {
	cl.Properties.Props.ReceiveMaximum = 0
	cl.State.Inflight.ResetSendQuota(0)
}

// OnClientExpired removes the subscriptions of a session that ran out.
func (h *hook) OnClientExpired(cl *mqtt.Client) { h.server.broker.UnsubscribeClient(cl) }

// OnPacketEncode tells clients in CONNACK which packets are too large.
func (h *hook) OnPacketEncode(_ *mqtt.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type == packets.Connack {
		pk.Properties.MaximumPacketSize = h.server.options.MaxPacketSize
	}
	return pk
}

// OnPublish takes requests out of the stream, before they are acknowledged; the
// broker acknowledges them and delivers them to nobody. It is called by the
// goroutine that reads the client's connection.
func (h *hook) OnPublish(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	if cl.Net.Inline || pk.TopicName != protocol.InvokeTopic {
		return pk, nil
	}
	start := time.Now()
	fault := h.server.handle(cl, pk)
	if fault == nil {
		h.server.logger.Debug("request", "client", cl.ID, "took", time.Since(start))
		return pk, packets.CodeSuccessIgnore
	}
	h.server.logger.Warn("dropped a request", "client", cl.ID, "reason", fault.Reason)
	if pk.FixedHeader.Qos == 0 {
		return pk, packets.CodeSuccessIgnore // there is no acknowledgement to put it in
	}
	return pk, *fault
}
