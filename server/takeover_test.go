package server_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
)

func TestATakeOverEndsTheOldConnectionBeforeTheNewOneIsUsable(t *testing.T) {
	address := start(t, server.Options{})
	for range 50 {
		old := connect(t, address, "p", nil)
		old.do("KEYNOTIFY", "k")
		present := connect(t, address, "p", nil)
		old.mustBeDisconnected(reasonTakenOver)
		if got := present.do("KEYNOTIFY", "k"); got != "+OK\r\n" {
			t.Fatalf("the new connection: %q", got)
		}
		present.do("SET", "k", "v")
		present.nextNotification() // its watch was not ended by the end of the old one
		if len(old.notified) > 0 {
			t.Error("the old connection was notified")
		}
		_ = present.paho.Disconnect(&paho.Disconnect{})
	}
}

func TestAStuckConnectionCanBeTakenOver(t *testing.T) {
	address := start(t, server.Options{})
	connectStuck(t, address)
	writer := connect(t, address, "writer", nil)
	value := strings.Repeat("x", 256<<10)
	for range 100 { // more than sockets hold
		writer.do("SET", "k", value)
	}
	present := connect(t, address, "p", nil)
	present.mustBeSilent()
}

func TestSimultaneousConnectionsOfOneNameLeaveExactlyOne(t *testing.T) {
	address := start(t, server.Options{})
	for range 5 {
		const attempts = 50
		peers := make([]*peer, attempts)
		var group sync.WaitGroup
		for i := range attempts {
			group.Go(func() {
				// One that loses may be sent away before or after its CONNACK.
				if p, err := tryConnect(t, address, "p", nil); err == nil {
					peers[i] = p
				}
			})
		}
		await.Done(group.Wait)
		var alive []*peer
		for _, p := range peers {
			if p != nil && !isDone(p.paho.Done()) {
				if _, err := p.trySubscribe(p.replyTo); err == nil {
					alive = append(alive, p)
				}
			}
		}
		if len(alive) != 1 {
			t.Fatalf("%d connections of one name are alive", len(alive))
		}
		alive[0].mustGet("k", "")
		last := connect(t, address, "p", nil)
		alive[0].mustBeDisconnected(reasonTakenOver)
		last.mustGet("k", "")
	}
}

func TestAReceiveMaximumDoesNotStallReplies(t *testing.T) {
	address := start(t, server.Options{})
	for _, maximum := range []uint16{1, 10} {
		p := connect(t, address, fmt.Sprintf("p%d", maximum), func(c *paho.Connect) { c.Properties.ReceiveMaximum = &maximum })
		p.subscribe("chatter/#")
		chatterer := connect(t, address, "chatterer", nil)
		var group sync.WaitGroup
		group.Go(func() {
			for i := range 200 {
				message := &paho.Publish{QoS: 1, Topic: fmt.Sprintf("chatter/%d", i), Payload: []byte("x")}
				if _, err := chatterer.publish(message); err != nil {
					t.Error(err)
				}
			}
		})
		for i := range 200 {
			if _, err := p.publish(p.request("SET", fmt.Sprint(i), "v")); err != nil {
				t.Fatal(err)
			}
		}
		await.Done(group.Wait)
		replies, chatter := 0, 0
		for replies+chatter < 400 {
			if p.next().Topic == p.replyTo {
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
