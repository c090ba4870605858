package testsupport_test

import (
	"testing"

	"github.com/eclipse/paho.golang/paho"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// mochi looks for a message to send at once after each packet of a client that has messages in
// flight, and may wait for ever then. A message that such a look would send stays where it is.
func TestTheBrokerDoesNotLookForMessagesToSendAtOnce(t *testing.T) {
	broker := mochi.New(&mochi.Options{Logger: testsupport.Discard})
	address := testsupport.ServeBroker(t, broker, new(testsupport.AllowAll))
	client := testsupport.Connect(t, address, "client", func(c *paho.Connect) { c.Properties.ReceiveMaximum = paho.Uint16(100) })
	session, _ := broker.Clients.Get("client")
	const id = 7
	session.State.Inflight.Set(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1},
		PacketID:    id, TopicName: client.ReplyTo, Expiry: -1,
	})
	for _, text := range []string{"first", "second"} { // the broker is done with the first when the second arrives
		if _, err := client.Publish(&paho.Publish{Topic: client.ReplyTo, Payload: []byte(text)}); err != nil {
			t.Fatal(err)
		}
	}
	for string(client.Next().Payload) != "second" && !t.Failed() {
	}
	if _, waits := session.State.Inflight.Get(id); !waits {
		t.Error("the broker looked for a message to send")
	}
}
