package server_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

// The broker would end the connection of a store that sends more than it takes, again and
// again, since the same request would come again.
func TestAReplyThatIsLargerThanTheBrokerTakesIsARefusal(t *testing.T) {
	const limit = 2048
	broker := mosquitto.Start(t, fmt.Sprintf("max_packet_size %d\n", limit))
	a := attach(t, broker.Address, server.AttachOptions{})
	p := connect(t, broker.Address, "node-a", nil)
	// What was asked for on a short way is answered on a long one.
	long := "clients/node-a/" + strings.Repeat("x", 800)
	p.subscribe(long)
	const refusal = "-ERR the reply is larger than the broker takes\r\n"
	largest, refused := int64(0), uint64(0)
	for size := 900; size < 1300; size += 7 {
		value := strings.Repeat("v", size)
		p.do("SET", "k", value)
		request := p.request("GET", "k")
		request.Properties.ResponseTopic = long
		if _, err := p.publish(request); err != nil {
			t.Fatal(err)
		}
		reply := p.next()
		switch got := string(reply.Payload); {
		case got == refusal:
			refused++
		case got != fmt.Sprintf("$%d\r\n%s\r\n", size, value):
			t.Fatalf("%d bytes: reply %.80q", size, got)
		case refused > 0:
			t.Errorf("%d bytes are sent, and fewer were refused", size)
		}
		if string(reply.Properties.CorrelationData) != string(request.Properties.CorrelationData) {
			t.Error("it is the reply to another request")
		}
		if refused == 0 {
			largest, _ = reply.Packet().WriteTo(io.Discard)
		}
	}
	if largest > limit || largest < limit-10 {
		t.Errorf("the largest reply had %d bytes, and the limit is %d", largest, limit)
	}
	if stats := a.Stats(); stats.Attachments != 1 || stats.Oversized != refused || refused == 0 {
		t.Errorf("%d were refused: %+v", refused, stats)
	}
}

func TestANotificationThatIsLargerThanTheBrokerTakesIsSkipped(t *testing.T) {
	broker := mosquitto.Start(t, "max_packet_size 4096\n")
	a := attach(t, broker.Address, server.AttachOptions{})
	p := connect(t, broker.Address, "node-a", nil)
	p.subscribe(fmt.Sprintf("%s/%X/command/notify/+", reservedPrefix, "node-a"))
	long := strings.Repeat("k", 1400) // twice as long in the topic of its notifications
	for _, key := range []string{long, "k"} {
		p.do("KEYNOTIFY", key)
		p.do("SET", key, strings.Repeat("v", 1400))
	}
	if got := keyOf(t, "node-a", p.nextNotification().Topic); got != "k" {
		t.Errorf("notified of %.10q", got)
	}
	if stats := a.Stats(); stats.Attachments != 1 || stats.Oversized != 1 || stats.DroppedWatches != 0 {
		t.Errorf("%+v", stats)
	}
}

func TestAStoreDoesNotBeginOnABrokerThatTakesSmallPacketsOnly(t *testing.T) {
	broker := mosquitto.Start(t, "max_packet_size 1000\n")
	store, err := server.Attach("mqtt://"+broker.Address, server.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "the broker takes packets of 1000 bytes at most; a store needs 1024"
	if err := store.Serve(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Serve: %v; want %q", err, want)
	}
}

// The broker ends the connection of whoever has more messages under way than it wants.
func TestNotificationsKeepToTheReceiveMaximumOfTheBroker(t *testing.T) {
	broker := mosquitto.Start(t, "max_inflight_messages 1\n")
	a := attach(t, broker.Address, server.AttachOptions{})
	if got := connect(t, broker.Address, "node-a", nil).connack.Properties.ReceiveMaximum; got == nil || *got != 1 {
		t.Fatalf("the broker has a Receive Maximum of %v", got)
	}
	const readers, writes = 20, 20
	var watching []*peer
	for i := range readers {
		p := connect(t, broker.Address, fmt.Sprintf("reader-%d", i), nil)
		p.subscribe(fmt.Sprintf("%s/%X/command/notify/+", reservedPrefix, p.id))
		p.do("KEYNOTIFY", "k")
		watching = append(watching, p)
	}
	writer := dial(t, broker.Address, transport.Options{})
	for i := range writes {
		if _, err := writer.Set(t.Context(), "k", fmt.Append(nil, i), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range watching {
		for i := range writes {
			if got, want := string(p.nextNotification().Payload), fmt.Sprintf("\r\n%d\r\n", i); !strings.HasSuffix(got, want) {
				t.Fatalf("%s: notification %q, want %q", p.id, got, want)
			}
		}
	}
	if stats := a.Stats(); stats.Attachments != 1 || stats.LostNotifications != 0 {
		t.Errorf("%+v", stats)
	}
}
