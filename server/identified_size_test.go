package server_test

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// The identifiers of subscriptions count for the Maximum Packet Size of a client, too
// [MQTT-3.1.2-24].
func TestAReplyWithSubscriptionIdentifiersIsNotLargerThanItsClientTakes(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	size := 0
	for _, maximum := range []uint32{1 << 20, 0} {
		if maximum == 0 {
			maximum = uint32(size) - 1
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
		in := bufio.NewReader(conn)
		login := rawmqtt.Login{ClientID: "p", KeepAlive: 60, Properties: rawmqtt.Body(nil).Byte(wire.MaximumPacketSize).Uint32(maximum)}
		subscribe := rawmqtt.Packet(wire.Subscribe, 2, rawmqtt.Body(nil).Uint16(1).
			Properties(rawmqtt.Body(nil).Byte(wire.SubscriptionIdentifier).Variable(1<<28-1)).Text("clients/p/r").Byte(0))
		request := rawmqtt.Message{Topic: testsupport.InvokeTopic, QoS: 1, ID: 2,
			Properties: rawmqtt.Body(nil).Byte(wire.ResponseTopic).Text("clients/p/r").Byte(wire.CorrelationData).Text(fmt.Sprintf("%016d", size)),
			Payload:    testsupport.Command("GET", "k")}.Packet()
		for _, packet := range [][]byte{login.Packet(), subscribe, request} {
			if _, err := conn.Write(packet); err != nil {
				t.Fatal(err)
			}
		}
		for {
			first, body, err := rawmqtt.Read(in, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if first>>4 == wire.Publish {
				if got := len(rawmqtt.Packet(wire.Publish, 0, body)); got > int(maximum) {
					t.Errorf("a reply of %d bytes; the client takes %d", got, maximum)
				} else {
					size = got
				}
			}
			if first>>4 == wire.Puback {
				break
			}
		}
	}
	if size == 0 {
		t.Error("there was no reply")
	}
}
