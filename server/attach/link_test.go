package attach

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// pipedLink returns a link that handles messages, and the broker's end of its connection. What the link writes waits
// until the test reads it.
func pipedLink(t *testing.T) (*link, net.Conn) {
	t.Helper()
	s := attachedTo(t, Options{})
	near, far := net.Pipe()
	ctx, lost := context.WithCancel(context.Background())
	l := s.newLink(ctx)
	client, err := mqtt.Dial(t.Context(), s.broker, mqtt.Options{
		MaxPacket: 1 << 20, WriteTimeout: time.Hour,
		Dialer:   func(context.Context, string, string) (net.Conn, error) { return near, nil },
		Received: l.received, Lost: func(*packets.Disconnect) { lost() },
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = packets.ReadPacket(far)
		_, _ = far.Write(mqtt.Encode(&packets.Connack{Properties: &packets.Properties{}}))
	}()
	if _, err := client.Connect(t.Context(), l.connectPacket()); err != nil {
		t.Fatal(err)
	}
	l.client = client
	var tasks sync.WaitGroup
	tasks.Go(client.Run)
	tasks.Go(l.sendReplies)
	t.Cleanup(func() { _ = far.Close(); await.Done(tasks.Wait) })
	return l, far
}

// request returns a packet with a request.
func request(t *testing.T, id uint16) []byte {
	t.Helper()
	message := mqtt.Message{
		Topic: protocol.InvokeTopic, QoS: 1, PacketID: id, Payload: resp3.AppendCommand(nil, protocol.VerbGet, "k"),
		ResponseTopic: protocol.ResponseTopic("a"), CorrelationData: fmt.Append(nil, id),
	}
	packet, err := message.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// The broker has no more than the Receive Maximum on their way, and a store must not lose what it has acknowledged.
func TestARequestIsAcknowledgedAfterItIsHandled(t *testing.T) {
	l, far := pipedLink(t)
	resume := l.store.Busy()
	if _, err := far.Write(request(t, 1)); err != nil {
		t.Error(err)
	}
	_ = far.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if packet, err := packets.ReadPacket(far); err == nil {
		t.Errorf("got %v before the request is handled", packet)
	}
	resume()
	_ = far.SetReadDeadline(time.Time{})
	for range 2 {
		if _, err := packets.ReadPacket(far); err != nil {
			t.Error(err)
		}
	}
}

// What a broker that takes no replies makes the store keep has a bound.
func TestABrokerIsNotReadWhileTooManyRepliesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, far := pipedLink(t)
		value := strings.Repeat("v", 1<<20)
		ts := "0:0:writer"
		submit(l.store, statestore.Parse(statestore.Request{Client: "writer", Payload: resp3.AppendCommand(nil, "SET", "k", value), Timestamp: &ts}))
		read := 0
		for ; read <= 2*maxUnsent/len(value); read++ {
			_ = far.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := far.Write(request(t, uint16(read+1))); err != nil {
				break
			}
		}
		if most := maxUnsent/len(value) + 1; read > most || read < most-3 { // one waits for space
			t.Errorf("%d requests are read, want about %d", read, most)
		}
		if l.ctx.Err() != nil {
			t.Error("the connection has ended")
		}
		for taken := false; !taken; {
			packet, err := packets.ReadPacket(far)
			if err != nil {
				t.Fatal(err)
			}
			_, taken = packet.Content.(*packets.Publish)
		}
		synctest.Wait()
		_ = far.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := far.Write(request(t, uint16(read+1))); err != nil {
			t.Errorf("it is not read after a reply: %v", err)
		}
	})
}
