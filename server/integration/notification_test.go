package integration_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// The conformance tests check what is notified.
func TestExactlyOneNotificationArrivesSubscribedOrNot(t *testing.T) {
	for _, subscribed := range []bool{false, true} {
		address := testsupport.Start(t, server.Options{})
		p, writer := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "writer", nil)
		if subscribed {
			p.Subscribe(testsupport.ReservedPrefix + "/70/command/notify/+")
		}
		for range 2 { // registering again changes nothing
			p.Do("KEYNOTIFY", "k")
		}
		writer.Do("SET", "k", "v")
		if got := p.NextNotification(); got.Topic != testsupport.ReservedPrefix+"/70/command/notify/6B" || got.Properties.User.Get("__ts") == "" {
			t.Errorf("subscribed: %v; notified %v", subscribed, got)
		}
		p.MustBeSilent()
	}
}

func TestNotificationsOfAKeyComeInTheStoresOrder(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	p := testsupport.Connect(t, address, "p", nil)
	p.Do("KEYNOTIFY", "k")
	const writers, each = 4, 50
	done := make(chan struct{})
	for w := range writers {
		writer := testsupport.Connect(t, address, fmt.Sprintf("writer-%d", w), nil)
		go func() {
			defer func() { done <- struct{}{} }()
			for range each {
				if _, err := writer.Publish(writer.Request("SET", "k", "v")); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	last, lastCounter := int64(0), int64(-1)
	for i := range writers * each {
		var wall, counter int64
		if _, err := fmt.Sscanf(p.NextNotification().Properties.User.Get("__ts"), "%d:%d:", &wall, &counter); err != nil {
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

func TestANotificationDoesNotWaitForTheEndOfABurstOfRequests(t *testing.T) {
	g := newGate()
	address := testsupport.Start(t, server.Options{Authorizer: g})
	c, other := testsupport.DialRaw(t, address, "p"), testsupport.DialRaw(t, address, "other")
	c.Do("KEYNOTIFY", "k")
	c.Write(testsupport.PacketOf(t, c.Request("GET", "a")), testsupport.PacketOf(t, c.Request("GET", "gate")))
	await.Receive(g.entered)
	other.Do("SET", "k", "v")
	// Notifications that were held back are sent first.
	if got := c.ReadReply().CorrelationData; string(got) != fmt.Sprintf("%016d", c.Sent-1) {
		t.Errorf("the reply to %q came", got)
	}
	notification, _ := testsupport.ParsePublish(c.Read())
	if !strings.HasPrefix(string(notification.Topic), testsupport.ReservedPrefix) {
		t.Errorf("a message came on %q", notification.Topic)
	}
	close(g.opened)
	c.ReadReply()
}

// The goroutine that applies requests may have the processor for longer than it takes to
// fill an outbox.
func TestAWatcherThatReadsIsNotTakenForSlowDuringABurstOfRequests(t *testing.T) {
	const requests = 50_000
	processors := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(processors)
	address := testsupport.Start(t, server.Options{MaxMemory: 32 << 20})
	watcher, c := testsupport.DialRaw(t, address, "watcher"), testsupport.DialRaw(t, address, "p")
	watcher.Do("KEYNOTIFY", "k")
	var burst []byte
	for range requests {
		burst = append(burst, testsupport.PacketOf(t, c.Request("SET", "k", "v"))...)
	}
	go func() { _, _ = c.Conn.Write(burst) }()
	go func() { _, _ = io.Copy(io.Discard, c.Conn) }()
	for range requests {
		if notification, ok := testsupport.ParsePublish(watcher.Read()); !ok || !bytes.Contains(notification.Payload, []byte("NOTIFY")) {
			t.Fatalf("read %q", notification.Payload)
		}
	}
}

func TestANotificationLargerThanItsClientTakesIsLeftOut(t *testing.T) {
	const limit = 300
	address, s := testsupport.StartServer(t, server.Options{})
	watcher, other := testsupport.ConnectRaw(t, testsupport.DialTCP(t, address), "p", 60, string(binary.BigEndian.AppendUint32([]byte{0x27}, limit))), testsupport.DialRaw(t, address, "other")
	watcher.Do("KEYNOTIFY", "k")
	for _, value := range []string{"first", strings.Repeat("v", limit), "last"} {
		other.Do("SET", "k", value)
	}
	for _, want := range []string{"first", "last"} {
		if got, ok := testsupport.ParsePublish(watcher.Read()); !ok || !bytes.Contains(got.Payload, []byte(want)) {
			t.Errorf("read %q, want the notification of %q", got.Payload, want)
		}
	}
	testsupport.Eventually(t, "no space is taken any more", func() bool { return s.Usage().OutgoingBytes == 0 })
}
