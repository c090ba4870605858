package testsupport

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// PacketClient is an MQTT client without a goroutine and with little memory, so that many of
// them show what the server needs. It uses only the codec of paho.
type PacketClient struct {
	ID      string
	Conn    net.Conn
	In      *bufio.Reader
	ReplyTo string
}

// EncodeConnect encodes NewConnect.
func EncodeConnect(id string, change func(*packets.Connect)) []byte {
	return Encode(NewConnect(id, change))
}

// NewConnect returns a CONNECT packet. change, which may be nil, alters it.
func NewConnect(id string, change func(*packets.Connect)) *packets.Connect {
	connect := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: id, CleanStart: true, KeepAlive: 600,
		Properties: &packets.Properties{},
	}
	if change != nil {
		change(connect)
	}
	return connect
}

// Encode encodes a packet. It panics if the codec cannot.
func Encode(packet packets.Packet) []byte {
	var buffer bytes.Buffer
	if _, err := packet.WriteTo(&buffer); err != nil {
		panic(err)
	}
	return buffer.Bytes()
}

// TryDialPacketClient connects a client. change, which may be nil, alters its socket before
// anything is sent.
func TryDialPacketClient(address, id string, change func(*net.TCPConn)) (*PacketClient, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(conn.(*net.TCPConn))
	}
	c := &PacketClient{ID: id, Conn: conn, In: bufio.NewReaderSize(conn, 512), ReplyTo: "clients/" + id + "/response"}
	if err := c.Connect(nil); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	return c, nil
}

// Connect sends CONNECT and subscribes to the response topic.
func (c *PacketClient) Connect(change func(*packets.Connect)) error {
	c.ExtendDeadline()
	if err := c.Send(NewConnect(c.ID, change)); err != nil {
		return err
	}
	if err := c.expect(packets.CONNACK); err != nil {
		return err
	}
	return c.Subscribe(c.ReplyTo, 1)
}

// Subscribe subscribes to a topic.
func (c *PacketClient) Subscribe(topic string, qos byte) error {
	c.ExtendDeadline()
	err := c.Send(&packets.Subscribe{
		PacketID: 60000, Properties: &packets.Properties{},
		Subscriptions: []packets.SubOptions{{Topic: topic, QoS: qos}},
	})
	if err != nil {
		return err
	}
	return c.expect(packets.SUBACK)
}

// ExtendDeadline bounds the next calls. Under load each client waits for all the others.
func (c *PacketClient) ExtendDeadline() { _ = c.Conn.SetDeadline(time.Now().Add(3 * Patience)) }

// Send writes a packet.
func (c *PacketClient) Send(packet packets.Packet) error {
	_, err := c.Conn.Write(Encode(packet))
	return err
}

// Receive returns the next packet, or ErrSentAway for a DISCONNECT.
func (c *PacketClient) Receive() (*packets.ControlPacket, error) {
	packet, err := packets.ReadPacket(c.In)
	if err == nil && packet.Type == packets.DISCONNECT {
		return nil, fmt.Errorf("%w: %#x", ErrSentAway, packet.Content.(*packets.Disconnect).ReasonCode)
	}
	return packet, err
}

// ErrSentAway reports that the server ended the connection with a DISCONNECT.
var ErrSentAway = errors.New("the server sent a DISCONNECT")

// expect reads the next packet, which must have this type and report no failure.
func (c *PacketClient) expect(kind byte) error {
	packet, err := c.Receive()
	if err != nil {
		return err
	}
	code := byte(0)
	switch content := packet.Content.(type) {
	case *packets.Connack:
		code = content.ReasonCode
	case *packets.Suback:
		code = content.Reasons[0]
	}
	if packet.Type != kind || code >= 0x80 {
		return fmt.Errorf("got %v, want a packet of type %d", packet, kind)
	}
	return nil
}

// Request returns the request number n of a client.
func (c *PacketClient) Request(n int, change func(*packets.Publish), words ...string) *packets.Publish {
	message := &packets.Publish{
		QoS: 1, PacketID: uint16(1 + n%50000), Topic: InvokeTopic, Payload: Command(words...),
		Properties: &packets.Properties{
			ResponseTopic:   c.ReplyTo,
			CorrelationData: c.correlation(n),
			User:            []packets.User{{Key: "__ts", Value: fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), c.ID)}, {Key: "__protVer", Value: "1.0"}},
		},
	}
	if change != nil {
		change(message)
	}
	return message
}

func (c *PacketClient) correlation(n int) []byte { return fmt.Appendf(nil, "%s/%08d", c.ID, n) }

// Exchange is a request and the reply that it must get.
type Exchange struct {
	Words []string
	Want  string
}

// Do sends requests numbered from first, and then reads their replies. change, which may be nil,
// alters each request.
func (c *PacketClient) Do(first int, change func(*packets.Publish), exchanges ...Exchange) error {
	if err := c.SendRequests(first, change, exchanges...); err != nil {
		return err
	}
	return c.ReadReplies(first, exchanges...)
}

// SendRequests sends requests numbered from first, in one write.
func (c *PacketClient) SendRequests(first int, change func(*packets.Publish), exchanges ...Exchange) error {
	c.ExtendDeadline()
	var requests []byte
	for i, d := range exchanges {
		requests = append(requests, Encode(c.Request(first+i, change, d.Words...))...)
	}
	_, err := c.Conn.Write(requests)
	return err
}

// ReadReplies reads exactly the replies and acknowledgements of these requests, in order.
// Notifications may come in between.
func (c *PacketClient) ReadReplies(first int, exchanges ...Exchange) error {
	replies, acks := 0, 0
	for replies < len(exchanges) || acks < len(exchanges) {
		packet, err := c.Receive()
		if err != nil {
			return fmt.Errorf("after %d replies and %d acknowledgements to requests %d and later: %w", replies, acks, first, err)
		}
		switch content := packet.Content.(type) {
		case *packets.Puback:
			if want := uint16(1 + (first+acks)%50000); acks == len(exchanges) || content.PacketID != want || content.ReasonCode >= 0x80 {
				return fmt.Errorf("PUBACK %v, want one of packet id %d", content, want)
			}
			acks++
		case *packets.Publish:
			if strings.HasPrefix(content.Topic, ReservedPrefix) {
				continue
			}
			if replies == len(exchanges) {
				return fmt.Errorf("one reply too many, to %q", content.Properties.CorrelationData)
			}
			if want := c.correlation(first + replies); content.Topic != c.ReplyTo || !bytes.Equal(content.Properties.CorrelationData, want) {
				return fmt.Errorf("a reply to %q on %s, want one to %q", content.Properties.CorrelationData, content.Topic, want)
			}
			if got, want := string(content.Payload), exchanges[replies].Want; got != want {
				return fmt.Errorf("%q is answered %q, want %q", exchanges[replies].Words, got, want)
			}
			replies++
		default:
			return fmt.Errorf("got %v", packet)
		}
	}
	return nil
}

// Disconnect ends the connection. It fails if an unexpected packet had arrived.
func (c *PacketClient) Disconnect() error {
	defer c.Conn.Close()
	c.ExtendDeadline()
	if _, err := c.Conn.Write([]byte{packets.PINGREQ << 4, 0}); err != nil {
		return err
	}
	if err := c.expect(packets.PINGRESP); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	_, err := c.Conn.Write([]byte{packets.DISCONNECT << 4, 0})
	return err
}

// Reset resets the connection, without DISCONNECT and TIME_WAIT.
func (c *PacketClient) Reset() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Conn.Close()
}

// DialPacketClient connects a client and closes its connection when the test ends.
func DialPacketClient(t testing.TB, address, id string, change func(*net.TCPConn)) *PacketClient {
	t.Helper()
	c, err := TryDialPacketClient(address, id, change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Conn.Close() })
	return c
}

// MustDo sends the request number n and fails unless want is the reply.
func (c *PacketClient) MustDo(t testing.TB, n int, want string, words ...string) {
	t.Helper()
	if err := c.Do(n, nil, Exchange{words, want}); err != nil {
		t.Fatalf("%s: %v", c.ID, err)
	}
}

// WriteString writes bytes that need not be a packet.
func (c *PacketClient) WriteString(data string) { _, _ = io.WriteString(c.Conn, data) }
