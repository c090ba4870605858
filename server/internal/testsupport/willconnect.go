package testsupport

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Request encodes a request of the client that sends this CONNECT.
func (w WillConnect) Request(words ...string) []byte {
	properties := rawmqtt.Body{wire.ResponseTopic}.Text(w.Response).Byte(wire.CorrelationData).Text("boom").User("__ts", InAMinute())
	return rawmqtt.Message{Topic: InvokeTopic, QoS: 1, ID: 5, Properties: properties, Payload: Command(words...)}.Packet()
}

// WillConnect is a CONNECT with a Will, encoded here: paho v0.23.0 leaves out the response topic
// and the correlation data of a Will.
type WillConnect struct {
	Version   byte
	KeepAlive uint16
	Session   uint32 // Session Expiry Interval, in seconds
	User      string // none if empty

	topic   string
	QoS     byte
	Retain  bool
	Payload []byte

	Response, Correlation string // absent if empty
	Delay, Expiry         uint32 // absent if 0
	Ts, Ft                string // absent if empty
}

// RequestWill returns the CONNECT of a client with a complete request as its Will.
func RequestWill(id string, words ...string) WillConnect {
	return WillConnect{
		Version: 5, KeepAlive: 600, topic: InvokeTopic, QoS: 1, Payload: Command(words...),
		Response: "clients/" + id + "/response", Correlation: "the will of " + id,
	}
}

// Packet encodes the CONNECT of a client.
func (w WillConnect) Packet(id string) string {
	field := func(text string) string {
		return string(binary.BigEndian.AppendUint16(nil, uint16(len(text)))) + text
	}
	number := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	counted := func(text string) string {
		length := binary.AppendUvarint(nil, uint64(len(text))) // which is MQTT's too
		return string(length) + text
	}
	flags := byte(0x04) | w.QoS<<3
	if w.Session == 0 {
		flags |= 0x02 // begin a new session
	}
	if w.Retain {
		flags |= 0x20
	}
	if w.User != "" {
		flags |= 0xc0
	}
	body := field("MQTT") + string([]byte{w.Version, flags}) + string(binary.BigEndian.AppendUint16(nil, w.KeepAlive))
	if w.Version == 5 {
		body += counted("\x11" + number(w.Session))
	}
	body += field(id)
	if w.Version == 5 {
		var properties string
		if w.Response != "" {
			properties += "\x08" + field(w.Response)
		}
		if w.Correlation != "" {
			properties += "\x09" + field(w.Correlation)
		}
		if w.Delay != 0 {
			properties += "\x18" + number(w.Delay)
		}
		if w.Expiry != 0 {
			properties += "\x02" + number(w.Expiry)
		}
		if w.Ts != "" {
			properties += "\x26" + field("__ts") + field(w.Ts)
		}
		if w.Ft != "" {
			properties += "\x26" + field("__ft") + field(w.Ft)
		}
		body += counted(properties)
	}
	body += field(w.topic) + field(string(w.Payload))
	if w.User != "" {
		body += field(w.User) + field("secret")
	}
	return "\x10" + counted(body)
}

// Connect connects a client, which must be accepted.
func (w WillConnect) Connect(t testing.TB, address, id string) *PacketClient {
	t.Helper()
	c, err := w.TryConnect(t, address, id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TryConnect connects a client and subscribes to its response topic.
func (w WillConnect) TryConnect(t testing.TB, address, id string) (*PacketClient, error) {
	t.Helper()
	c := &PacketClient{ID: id, Conn: DialTCP(t, address), ReplyTo: "clients/" + id + "/response"}
	c.In = bufio.NewReader(c.Conn)
	c.ExtendDeadline()
	if _, err := io.WriteString(c.Conn, w.Packet(id)); err != nil {
		return nil, err
	}
	if err := c.expect(packets.CONNACK); err != nil {
		return nil, err
	}
	return c, c.Subscribe(c.ReplyTo, 1)
}

// WatchKey connects a client that is notified about key.
func WatchKey(t *testing.T, address, key string) *PahoClient {
	t.Helper()
	p := Connect(t, address, "watcher", nil)
	if got := p.Do("KEYNOTIFY", key); got != "+OK\r\n" {
		t.Fatal(got)
	}
	return p
}

// Stamped adds the present time as the __ts of the Will.
func (w WillConnect) Stamped() WillConnect {
	w.Ts = fmt.Sprintf("%d:0:p", time.Now().UnixMilli())
	return w
}
