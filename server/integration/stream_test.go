package integration_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

func TestRequestsThatComeTogetherAreAnsweredInTheirOrder(t *testing.T) {
	const requests = 1000
	address := testsupport.Start(t, server.Options{})
	c := testsupport.DialRaw(t, address, "p")
	var segment []byte
	for i := range requests {
		if i == requests/2 {
			segment = append(segment, 0xc0, 0) // PINGREQ
		}
		segment = append(segment, testsupport.PacketOf(t, c.Request("SET", "k", fmt.Sprint(i)))...)
	}
	go func() { _, _ = c.Conn.Write(segment) }()
	for i := range requests {
		if i == requests/2 {
			if pong := c.Read(); pong[0] != 0xd0 {
				t.Fatalf("read %x, want PINGRESP", pong)
			}
		}
		reply, _ := testsupport.ParsePublish(c.Read())
		if got, want := string(reply.CorrelationData), fmt.Sprintf("%016d", i+1); got != want {
			t.Fatalf("the reply to %q came, want %q", got, want)
		}
		if ack, ok := testsupport.ParsePuback(c.Read()); !ok || int(ack.PacketID) != i+1 {
			t.Fatalf("the PUBACK for %d came, want %d", ack.PacketID, i+1)
		}
	}
	if got, want := c.Do("GET", "k"), "$3\r\n999\r\n"; got != want {
		t.Errorf("k holds %q", got)
	}

}

// [MQTT-4.6.0-2]. The size of the dedup window depends on it.
func TestAcknowledgementsLeaveInTheOrderOfWhatTheyAcknowledge(t *testing.T) {
	const messages, size = 120, 32 << 10 // more than the sockets hold
	address := testsupport.Start(t, server.Options{})
	c, other := testsupport.DialRaw(t, address, "p"), testsupport.DialRaw(t, address, "other")
	c.Subscribe("news")
	for range messages {
		other.Write(testsupport.Packet(0x30, testsupport.Text("news"), []byte{0}, make([]byte, size)))
	}
	other.Do("GET", "k") // all of them were handled
	ordinary := c.Request("GET", "k")
	ordinary.Topic = "factory"
	c.Write(testsupport.PacketOf(t, ordinary), testsupport.PacketOf(t, c.Request("GET", "k")))
	received, acknowledged := 0, uint16(0)
	for received < messages || acknowledged < 2 {
		switch packet := c.Read(); packet[0] {
		case 0x30:
			if len(packet) > size {
				received++
			}
		case 0x40:
			ack, _ := testsupport.ParsePuback(packet)
			if acknowledged++; ack.PacketID != acknowledged {
				t.Errorf("the PUBACK for %d came, want %d", ack.PacketID, acknowledged)
			}
		}
	}
}

func TestARequestMayComeWithItsCONNECTButNotBeforeIt(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	c := testsupport.NewRaw(t, testsupport.DialTCP(t, address), "p")
	connect := testsupport.Packet(0x10, testsupport.Text("MQTT"), []byte{5, 2, 0, 60, 0}, testsupport.Text("p"))
	subscribe := testsupport.Packet(0x82, []byte{0, 9, 0}, testsupport.Text(c.ReplyTo), []byte{1})
	c.Write(connect, subscribe, testsupport.PacketOf(t, c.Request("SET", "k", "v")))
	if connack, suback := c.Read(), c.Read(); connack[0] != 0x20 || suback[0] != 0x90 {
		t.Fatalf("read %x and %x", connack, suback)
	}
	if got := string(c.ReadReply().Payload); got != "+OK\r\n" {
		t.Errorf("reply %q", got)
	}
	early := testsupport.NewRaw(t, testsupport.DialTCP(t, address), "early")
	early.Write(testsupport.PacketOf(t, early.Request("SET", "k", "w")), connect)
	if packet, err := early.TryRead(); err == nil {
		t.Errorf("read %q", packet)
	}
	if got := c.Do("GET", "k"); got != "$1\r\nv\r\n" {
		t.Errorf("k holds %q", got)
	}
}

// The new connection of a client waits for the end of the old one. Requests that the old one had read
// and not applied are lost, as if they had not been sent.
func TestNothingIsAppliedForAConnectionThatWasClosed(t *testing.T) {
	g := newGate()
	address := testsupport.Start(t, server.Options{Authorizer: g})
	old := testsupport.DialRaw(t, address, "p")
	old.Write(testsupport.PacketOf(t, old.Request("SET", "gate", "v")), testsupport.PacketOf(t, old.Request("SET", "k", "v")))
	await.Receive(g.entered)
	established := make(chan *testsupport.RawClient)
	go func() { established <- testsupport.DialRaw(t, address, "p") }()
	for { // until the old one is disconnected
		packet, err := old.TryRead()
		if err != nil {
			break
		}
		if packet[0] != 0xe0 {
			t.Errorf("read %q", packet)
		}
	}
	close(g.opened)
	if got := (await.Receive(established)).Do("GET", "k"); got != "$-1\r\n" {
		t.Errorf("k holds %q", got)
	}

}

// The buffer of a request is reused for the next one.
func TestInvariant44NoReferenceToTheBufferOfARequestIsKept(t *testing.T) {
	c := testsupport.DialRaw(t, testsupport.Start(t, server.Options{}), "p")
	const token = "5:0:nodeAAAA"
	set := func(key, value, token string) mqtt.Message {
		request := c.Request("SET", key, value)
		request.User = append(request.User, mqtt.UserProperty{Name: "__ft", Value: token})
		return request
	}
	overwrite := func() {
		for range 3 {
			request := set("zzzz", "yyyy", "9:9:xxxxxxxx")
			request.CorrelationData = bytes.Repeat([]byte("w"), 16)
			c.Write(testsupport.PacketOf(t, request))
			c.ReadReply()
		}
	}
	first := set("keyA", "valA", token)
	c.Write(testsupport.PacketOf(t, first))
	reply := c.ReadReply()
	overwrite()
	c.Do("KEYNOTIFY", "keyA")
	overwrite()
	c.Write(testsupport.Again(testsupport.PacketOf(t, first)))
	if again := c.ReadReply(); !bytes.Equal(again.Payload, reply.Payload) {
		t.Errorf("a redelivery is answered with %q, the first was with %q", again.Payload, reply.Payload)
	}
	if got := c.Do("GET", "keyA"); got != "$4\r\nvalA\r\n" {
		t.Errorf("keyA holds %q", got)
	}
	c.Write(testsupport.PacketOf(t, set("keyA", "valB", "5:0:nodeAAA@"))) // older by its last letter
	if got := string(c.ReadReply().Payload); !strings.Contains(got, "lower version") {
		t.Errorf("an older token: %q", got)
	}
	c.Write(testsupport.PacketOf(t, set("keyA", "valB", token)))
	var seen [2]bool // in any order
	for range 3 {
		packet, _ := testsupport.ParsePublish(c.Read())
		switch string(packet.Topic) {
		case c.ReplyTo:
			seen[0] = string(packet.Payload) == "+OK\r\n"
		case testsupport.ReservedPrefix + "/70/command/notify/6B657941":
			seen[1] = string(packet.Payload) == string(testsupport.Command("NOTIFY", "SET", "VALUE", "valB"))
		}
	}
	if !seen[0] || !seen[1] {
		t.Errorf("the same token, reply and notification: %v", seen)
	}
}

// An acknowledgement that has no reply beside it, as for a request with a reply that is too large for its
// client, comes after the held-back replies to earlier requests.
func TestAcknowledgementsThroughTheBrokerOvertakeNothing(t *testing.T) {
	const limit = 300
	address := testsupport.Start(t, server.Options{})
	testsupport.DialRaw(t, address, "other").Do("SET", "large", strings.Repeat("v", limit))
	c := testsupport.ConnectRaw(t, testsupport.DialTCP(t, address), "p", 60, string(binary.BigEndian.AppendUint32([]byte{0x27}, limit)))
	c.Write(testsupport.PacketOf(t, c.Request("GET", "a")), testsupport.PacketOf(t, c.Request("GET", "large")), testsupport.PacketOf(t, c.Request("GET", "b")))
	for acknowledged := uint16(0); acknowledged < 3; {
		packet := c.Read()
		if len(packet) > limit {
			t.Errorf("a packet of %d bytes came", len(packet))
		}
		if ack, ok := testsupport.ParsePuback(packet); ok {
			if acknowledged++; ack.PacketID != acknowledged {
				t.Fatalf("the PUBACK for %d came, want %d", ack.PacketID, acknowledged)
			}
		}
	}
}
