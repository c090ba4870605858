package server_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

func TestATakeOverEndsTheOldConnectionBeforeTheNewOneIsUsable(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for range 50 {
		old := testsupport.Connect(t, address, "p", nil)
		old.Do("KEYNOTIFY", "k")
		present := testsupport.Connect(t, address, "p", nil)
		old.MustBeDisconnected(testsupport.ReasonTakenOver)
		if got := present.Do("KEYNOTIFY", "k"); got != "+OK\r\n" {
			t.Fatalf("the new connection: %q", got)
		}
		present.Do("SET", "k", "v")
		present.NextNotification() // its watch was not ended by the end of the old one
		if len(old.Notified) > 0 {
			t.Error("the old connection was notified")
		}
		_ = present.Paho.Disconnect(&paho.Disconnect{})
	}
}

func TestAStuckConnectionCanBeTakenOver(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	connectStuck(t, address)
	writer := testsupport.Connect(t, address, "writer", nil)
	value := strings.Repeat("x", 256<<10)
	for range 100 { // more than sockets hold
		writer.Do("SET", "k", value)
	}
	present := testsupport.Connect(t, address, "p", nil)
	present.MustBeSilent()
}

func TestSimultaneousConnectionsOfOneNameLeaveExactlyOne(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for range 5 {
		const attempts = 50
		peers := make([]*testsupport.PahoClient, attempts)
		var group sync.WaitGroup
		for i := range attempts {
			group.Go(func() {
				// One that loses may be sent away before or after its CONNACK.
				if p, err := testsupport.TryConnect(t, address, "p", nil); err == nil {
					peers[i] = p
				}
			})
		}
		await.Done(group.Wait)
		var alive []*testsupport.PahoClient
		for _, p := range peers {
			if p != nil && !testsupport.IsDone(p.Paho.Done()) {
				if _, err := p.TrySubscribe(p.ReplyTo); err == nil {
					alive = append(alive, p)
				}
			}
		}
		if len(alive) != 1 {
			t.Fatalf("%d connections of one name are alive", len(alive))
		}
		alive[0].MustGet("k", "")
		last := testsupport.Connect(t, address, "p", nil)
		alive[0].MustBeDisconnected(testsupport.ReasonTakenOver)
		last.MustGet("k", "")
	}
}

func TestAReceiveMaximumDoesNotStallReplies(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, maximum := range []uint16{1, 10} {
		p := testsupport.Connect(t, address, fmt.Sprintf("p%d", maximum), func(c *paho.Connect) { c.Properties.ReceiveMaximum = &maximum })
		p.Subscribe("chatter/#")
		chatterer := testsupport.Connect(t, address, "chatterer", nil)
		var group sync.WaitGroup
		group.Go(func() {
			for i := range 200 {
				message := &paho.Publish{QoS: 1, Topic: fmt.Sprintf("chatter/%d", i), Payload: []byte("x")}
				if _, err := chatterer.Publish(message); err != nil {
					t.Error(err)
				}
			}
		})
		for i := range 200 {
			if _, err := p.Publish(p.Request("SET", fmt.Sprint(i), "v")); err != nil {
				t.Fatal(err)
			}
		}
		await.Done(group.Wait)
		replies, chatter := 0, 0
		for replies+chatter < 400 {
			if p.Next().Topic == p.ReplyTo {
				replies++
			} else {
				chatter++
			}
		}
		if replies != 200 {
			t.Errorf("receive maximum %d: %d replies, %d other messages", maximum, replies, chatter)
		}
	}
}
