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
)

// pipedLink returns a link that handles messages, of which so many may wait (0: the Receive Maximum), and the
// broker's end of its connection. What the link writes waits until the test reads it.
func pipedLink(t *testing.T, waiting int) (*link, net.Conn) {
	t.Helper()
	s := attachedTo(t, Options{})
	near, far := net.Pipe()
	conn, err := mqtt.Dial(t.Context(), s.broker, nil, mqtt.DialOptions{
		MaxPacket: 1 << 20, WriteTimeout: time.Hour,
		Dialer: func(context.Context, string, string) (net.Conn, error) { return near, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = packets.ReadPacket(far)
		_, _ = far.Write(mqtt.Encode(&packets.Connack{Properties: &packets.Properties{}}))
	}()
	ctx, lost := context.WithCancel(context.Background())
	l := s.newLink(ctx, false)
	if waiting > 0 {
		l.messages = make(chan arrival, waiting)
	}
	client, _, err := mqtt.Connect(t.Context(), conn, l.connectPacket(), mqtt.ClientOptions{
		Received: l.received, Deferred: true, Lost: func(*packets.Disconnect) { lost() },
	})
	if err != nil {
		t.Fatal(err)
	}
	l.client = client
	var tasks sync.WaitGroup
	tasks.Go(client.Run)
	tasks.Go(l.dispatch)
	t.Cleanup(func() { _ = far.Close(); await.Done(tasks.Wait) })
	return l, far
}

// request returns a packet with a request.
func request(t *testing.T, id uint16) []byte {
	t.Helper()
	return requestWith(t, id, "k", 0)
}

func requestWith(t *testing.T, id uint16, key string, expiry uint32) []byte {
	t.Helper()
	message := mqtt.Message{
		MessageExpiry: expiry,
		Topic:         protocol.InvokeTopic, QoS: 1, PacketID: id, Payload: resp3.AppendCommand(nil, protocol.VerbGet, key),
		ResponseTopic: protocol.ResponseTopic("a"), CorrelationData: fmt.Append(nil, id),
	}
	packet, err := message.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// A broker may read no replies before it has written all that it has.
func TestRequestsAreReadWhileNothingReadsReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 20
		_, far := pipedLink(t, 0)
		for id := range uint16(count) {
			_ = far.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := far.Write(request(t, id+1)); err != nil {
				t.Fatalf("request %d is not read: %v", id+1, err)
			}
		}
		replies, acks := 0, 0
		for acks < count {
			packet, err := packets.ReadPacket(far)
			if err != nil {
				t.Fatal(err)
			}
			switch p := packet.Content.(type) {
			case *packets.Publish:
				if replies++; string(p.Properties.CorrelationData) != fmt.Sprint(replies) {
					t.Errorf("reply %d is to request %s", replies, p.Properties.CorrelationData)
				}
			case *packets.Puback:
				if acks++; int(p.PacketID) != acks || acks > replies {
					t.Errorf("PUBACK %d is for request %d, after %d replies", acks, p.PacketID, replies)
				}
			}
		}
	})
}

// The broker has no more than the Receive Maximum on their way, and a store must not lose what it has acknowledged.
func TestARequestIsAcknowledgedAfterItIsHandled(t *testing.T) {
	l, far := pipedLink(t, 5)
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
	for _, want := range []byte{packets.PUBLISH, packets.PUBACK} {
		if packet, err := packets.ReadPacket(far); err != nil || packet.Type != want {
			t.Fatalf("got %v (%v), want a packet of type %d", packet, err, want)
		}
	}
}

// Large requests that wait are bounded in bytes, too.
func TestABrokerIsNotReadWhileLargeRequestsTakeUpTheirRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, far := pipedLink(t, 0) // nothing reads its replies
		key := strings.Repeat("k", 1<<19)
		read := 0
		for ; read <= 2*maxWaiting/len(key); read++ {
			_ = far.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := far.Write(requestWith(t, uint16(read+1), key, 0)); err != nil {
				break
			}
		}
		// One is being handled, one waits for room, and of one a part is read.
		if most := maxWaiting/len(key) + 1; read > most || read < most-3 {
			t.Errorf("%d requests are read, want about %d", read, most)
		}
	})
}

// A client gives a request up when its Message Expiry Interval is over, also while it waits in the store.
func TestTheTimeInTheStoreCountsForTheExpiryOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, far := pipedLink(t, 5)
		for id, expiry := range []uint32{0, 1} { // the second one waits until the reply to the first is read
			if _, err := far.Write(requestWith(t, uint16(id+1), "k", expiry)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(1500 * time.Millisecond)
		for _, want := range []byte{packets.PUBLISH, packets.PUBACK, packets.PUBACK} {
			if packet, err := packets.ReadPacket(far); err != nil || packet.Type != want {
				t.Fatalf("got %v (%v), want a packet of type %d", packet, err, want)
			}
		}
	})
}

// What such a broker makes the store keep has a bound.
func TestABrokerThatSendsMoreThanTheReceiveMaximumIsNotReadUntilThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiting = 5
		l, far := pipedLink(t, waiting)
		read := 0
		for ; ; read++ {
			_ = far.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := far.Write(request(t, uint16(read+1))); err != nil {
				break
			}
		}
		if want := waiting + 2; read != want { // one is being handled, and one waits for room
			t.Errorf("%d requests are read, want %d", read, want)
		}
		if l.ctx.Err() != nil {
			t.Error("the connection has ended")
		}
		if _, err := packets.ReadPacket(far); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		_ = far.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := far.Write(request(t, uint16(read+1))); err != nil {
			t.Errorf("it is not read after a reply: %v", err)
		}
	})
}
