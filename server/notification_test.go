package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
)

const notifyTopic = reservedPrefix + "/70/command/notify/6B" // for client p and key k

func TestExactlyOneNotificationArrivesSubscribedOrNot(t *testing.T) {
	for _, subscribed := range []bool{false, true} {
		t.Run(fmt.Sprintf("subscribed %v", subscribed), func(t *testing.T) {
			address := start(t, server.Options{})
			p, writer := connect(t, address, "p", nil), connect(t, address, "writer", nil)
			if subscribed {
				p.subscribe(reservedPrefix + "/70/command/notify/+")
			}
			for range 2 { // registering again changes nothing
				if got := p.do("KEYNOTIFY", "k"); got != "+OK\r\n" {
					t.Fatalf("KEYNOTIFY: %q", got)
				}
			}
			version := ""
			for _, step := range []struct {
				words []string
				want  []byte
			}{
				{[]string{"SET", "k", "v", "NEX", "PX", "60000"}, command("NOTIFY", "SET", "VALUE", "v")},
				{[]string{"SET", "k", "v", "NEX", "PX", "60000"}, command("NOTIFY", "SET", "VALUE", "v")}, // a renewal
				{[]string{"DEL", "k"}, command("NOTIFY", "DELETE")},
				{[]string{"SET", "k", "w"}, command("NOTIFY", "SET", "VALUE", "w")},
				{[]string{"VDEL", "k", "w"}, command("NOTIFY", "DELETE")},
				{[]string{"SET", "k", "x", "PX", "1"}, command("NOTIFY", "SET", "VALUE", "x")},
				{[]string{"GET", "another"}, command("NOTIFY", "DELETE")}, // by expiry
			} {
				writer.do(step.words...)
				got := p.nextNotification()
				if got.Topic != notifyTopic || string(got.Payload) != string(step.want) {
					t.Errorf("after %q: %q on %s, want %q", step.words, got.Payload, got.Topic, step.want)
				}
				ts := got.Properties.User.Get("__ts")
				if deleted := strings.Contains(string(step.want), "DELETE"); ts == "" || deleted != (ts == version) {
					t.Errorf("after %q: version %q, before %q; a delete carries that of what went away", step.words, ts, version)
				}
				version = ts
			}
			for _, words := range [][]string{{"SET", "k", "v"}, {"SET", "k", "w", "NX"}, {"VDEL", "k", "w"}, {"SET", "k"}} {
				writer.do(words...)
			}
			p.nextNotification() // of the first
			p.mustBeSilent()     // the others were refused
			if got := p.do("KEYNOTIFY", "k", "STOP"); got != "+OK\r\n" {
				t.Errorf("STOP: %q", got)
			}
			writer.do("SET", "k", "y")
			p.mustBeSilent()
			if got := p.do("KEYNOTIFY", "k", "STOP"); got != ":0\r\n" {
				t.Errorf("STOP of what is not watched: %q", got)
			}
		})
	}
}

func TestWatchesEndWithTheirConnection(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(p *peer)
	}{
		{"disconnected", func(p *peer) { _ = p.paho.Disconnect(&paho.Disconnect{}) }},
		{"lost", func(p *peer) { _ = p.conn.Close() }},
		{"taken over", func(*peer) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := start(t, server.Options{})
			p, writer := connect(t, address, "p", nil), connect(t, address, "writer", nil)
			p.do("KEYNOTIFY", "k")
			test.end(p)
			again := connect(t, address, "p", nil)
			again.subscribe(reservedPrefix + "/70/command/notify/+")
			writer.do("SET", "k", "v")
			again.mustBeSilent()
			if got := again.do("KEYNOTIFY", "k", "STOP"); got != ":0\r\n" {
				t.Errorf("the watch outlived its connection: STOP is answered %q", got)
			}
		})
	}
}

// connectStuck returns a peer "p" that watches "k" and reads nothing more.
func connectStuck(t *testing.T, address string) *peer {
	t.Helper()
	few := uint16(1) // messages that paho keeps for a handler that is busy
	stuck := connect(t, address, "p", func(c *paho.Connect) { c.Properties.ReceiveMaximum = &few })
	stuck.do("KEYNOTIFY", "k")
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	stuck.paho.AddOnPublishReceived(func(paho.PublishReceived) (bool, error) { await.Receive(block); return true, nil })
	return stuck
}

func TestAWatcherThatDoesNotReadDelaysNobodyAndIsSentAway(t *testing.T) {
	address := start(t, server.Options{MaxPacketSize: 1 << 20})
	stuck, writer := connectStuck(t, address), connect(t, address, "writer", nil)
	value := strings.Repeat("x", 64<<10) // fills every buffer on the way soon
	deadline := time.Now().Add(patience)
	for i := 0; ; i++ {
		if got := writer.do("SET", "k", value); got != "+OK\r\n" {
			t.Fatalf("write %d: %q", i, got)
		}
		// Its own reading goroutine waits too, so ask the socket: writing to a
		// connection that the server closed fails in the end.
		if _, err := stuck.conn.Write([]byte{0xc0, 0}); err != nil { // PINGREQ
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %d notifications of %d bytes that nobody read the watcher is still connected", i, len(value))
		}
	}
}

func TestNotificationsOfAKeyComeInTheStoresOrder(t *testing.T) {
	address := start(t, server.Options{})
	p := connect(t, address, "p", nil)
	p.do("KEYNOTIFY", "k")
	const writers, each = 4, 50
	done := make(chan struct{})
	for w := range writers {
		writer := connect(t, address, fmt.Sprintf("writer-%d", w), nil)
		go func() {
			defer func() { done <- struct{}{} }()
			for range each {
				if _, err := writer.publish(writer.request("SET", "k", "v")); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	last, lastCounter := int64(0), int64(-1)
	for i := range writers * each {
		var wall, counter int64
		if _, err := fmt.Sscanf(p.nextNotification().Properties.User.Get("__ts"), "%d:%d:", &wall, &counter); err != nil {
			t.Fatal(err)
		}
		if wall < last || wall == last && counter <= lastCounter {
			t.Fatalf("notification %d has version %d:%d after %d:%d", i, wall, counter, last, lastCounter)
		}
		last, lastCounter = wall, counter
	}
	for range writers {
		await.Receive(done)
	}
}
