package testsupport

import (
	"cmp"
	"net"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// ConnectPacket is a Login with a keep-alive of 600 s, unless it says another, and the password "secret"
// if it has a user.
type ConnectPacket rawmqtt.Login

// Packet encodes the packet.
func (h ConnectPacket) Packet() []byte {
	h.KeepAlive = cmp.Or(h.KeepAlive, 600)
	if h.User != "" {
		h.Password = "secret"
	}
	return rawmqtt.Login(h).Packet()
}

// Start sends the packet, and does not wait for the CONNACK.
func (h ConnectPacket) Start(t testing.TB, conn net.Conn) *RawClient {
	t.Helper()
	c := NewRaw(t, conn, h.ID)
	c.Write(h.Packet())
	return c
}

// StartLogin sends a CONNECT, and does not wait for the CONNACK. user may be empty.
func StartLogin(t testing.TB, address, id, user string) *RawClient {
	t.Helper()
	return ConnectPacket{ID: id, User: user}.Start(t, DialTCP(t, address))
}

// TryConnect connects and returns the CONNACK, or nil if the connection ended without one.
func (h ConnectPacket) TryConnect(t testing.TB, address string) (c *RawClient, connack []byte) {
	t.Helper()
	c = h.Start(t, DialTCP(t, address))
	connack, _ = c.TryRead()
	return c, connack
}

// Connect is TryConnect for a client that must be accepted.
func (h ConnectPacket) Connect(t testing.TB, address string) *RawClient {
	t.Helper()
	c, connack := h.TryConnect(t, address)
	if connack == nil || connack[0] != 0x20 || connack[3] != 0 {
		t.Fatalf("%s: CONNACK %x", h.ID, connack)
	}
	c.Present = connack[2] == 1
	return c
}

// OrdinaryWill returns a Will that is not a request. delay is in seconds; properties are encoded.
func OrdinaryWill(topic string, delay uint32, properties ...byte) *rawmqtt.Message {
	list := append(rawmqtt.Body{packets.PropWillDelayInterval}.Uint32(delay), properties...)
	return &rawmqtt.Message{Topic: topic, QoS: 1, Payload: []byte("gone"), Properties: list}
}

// WillConnect is a CONNECT with a Will, encoded here: paho v0.23.0 leaves out the response topic
// and the correlation data of a Will.
type WillConnect struct {
	KeepAlive uint16 // default 600
	Session   uint32 // Session Expiry Interval, in seconds; 0 begins a new session
	User      string // none if empty

	QoS     byte
	Retain  bool
	Payload []byte

	Response, Correlation string       // absent if empty
	Properties            rawmqtt.Body // the others
	Ts, Ft                string       // absent if empty
}

// RequestWill returns the CONNECT of a client with a complete request as its Will.
func RequestWill(id string, words ...string) WillConnect {
	return WillConnect{
		QoS: 1, Payload: Command(words...),
		Response: "clients/" + id + "/response", Correlation: "the will of " + id,
	}
}

// Request encodes a request of the client that sends this CONNECT.
func (w WillConnect) Request(words ...string) []byte {
	properties := rawmqtt.Body{packets.PropResponseTopic}.Text(w.Response).
		Byte(packets.PropCorrelationData).Text("boom").User("__ts", InAMinute())
	return rawmqtt.Message{Topic: InvokeTopic, QoS: 1, ID: 5, Properties: properties, Payload: Command(words...)}.Packet()
}

// Packet encodes the CONNECT of a client.
func (w WillConnect) Packet(id string) string {
	properties := w.Properties.User("__protVer", "1.0")
	for property, text := range map[byte]string{
		packets.PropResponseTopic: w.Response, packets.PropCorrelationData: w.Correlation,
	} {
		if text != "" {
			properties = properties.Byte(property).Text(text)
		}
	}
	for name, value := range map[string]string{"__ts": w.Ts, "__ft": w.Ft} {
		if value != "" {
			properties = properties.User(name, value)
		}
	}
	return string(ConnectPacket{
		ID: id, User: w.User, Resume: w.Session > 0, Expiry: w.Session, KeepAlive: w.KeepAlive,
		Will: &rawmqtt.Message{Topic: InvokeTopic, QoS: w.QoS, Retain: w.Retain, Properties: properties, Payload: w.Payload},
	}.Packet())
}

// Connect connects a client, which must be accepted.
func (w WillConnect) Connect(t testing.TB, address, id string) *RawClient {
	t.Helper()
	c, err := w.TryConnect(t, address, id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TryConnect connects a client and subscribes to its response topic.
func (w WillConnect) TryConnect(t testing.TB, address, id string) (*RawClient, error) {
	t.Helper()
	c := NewRaw(t, DialTCP(t, address), id)
	return c, c.login([]byte(w.Packet(id)))
}
