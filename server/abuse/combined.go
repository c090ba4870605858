package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks that combine allowed actions.
var combinedAttacks = []attack{{
	name:   "idle after 1 MiB",
	what:   "publishes one message of 1 MiB without a subscriber on each of 300 connections, and keeps these open.",
	memory: 384, // 256 MiB for incoming packets, and the messages in them
	run:    sendAndHold(300, 100, largePublish),
}, {
	name:   "packets without their last byte",
	what:   "sends all but the last byte of a message of 1 MiB on each of 500 connections, and keeps these open.",
	memory: 384, // 256 MiB for incoming packets, and the messages in them
	run: sendAndHold(500, 100, func() []byte {
		packet := largePublish()
		return packet[:len(packet)-1]
	}),
}, {
	name:   "deaf crowd and a watcher",
	what:   "has 80 clients subscribe and not read, and publishes messages of all sizes to them, while another client watches a key and reads.",
	limit:  "the watcher stays connected",
	memory: 512,
	run:    starveWatcher,
}, {
	name:   "overlapping filters",
	what:   "has 300 clients subscribe with 1,000 filters each that match one topic, and publishes there on 20 connections.",
	memory: 1024,
	run: func(ctx context.Context, t *target) {
		topic := "a/b/c/d/e/f/g/h/i/j"
		var filters []string
		for mask := range 1_000 {
			filters = append(filters, withWildcards(topic, mask+1))
		}
		for _, p := range t.subscribers(ctx, t.n(300, 30), 1, func(*peer) []string { return filters }) {
			p.drain()
		}
		t.publishOn(ctx, 20, topic)
	},
}, {
	name:   "long filters",
	what:   "has 300 clients subscribe with 1,000 filters of 1 KiB each.",
	memory: 384, // 256 MiB for subscriptions, and the packets that ask for them
	run: func(ctx context.Context, t *target) {
		long := strings.Repeat("f", 1000)
		t.subscribers(ctx, t.n(300, 30), 0, func(p *peer) []string {
			filters := make([]string, 1_000)
			for i := range filters {
				filters[i] = fmt.Sprint(p.id, "-", i, long)
			}
			return filters
		})
		sleep.For(ctx, t.duration)
	},
}, {
	name:  "one name on 2,000 connections",
	what:  "logs in on 2,000 connections with one client id.",
	limit: "no more than --max-clients stay open",
	serve: []string{"--max-clients", "20"},
	run: func(ctx context.Context, t *target) {
		var open atomic.Int64
		var conns sync.WaitGroup
		for range t.n(2000, 300) {
			p, err := t.connect(ctx, rawmqtt.Login{ClientID: "one"})
			t.need(err)
			conns.Go(func() {
				_ = p.SetReadDeadline(time.Now().Add(t.duration))
				if _, err := io.Copy(io.Discard, p.in); errors.Is(err, os.ErrDeadlineExceeded) {
					open.Add(1)
				}
			})
		}
		conns.Wait()
		if open.Load() > 20 {
			t.breach("%d connections are open after %v", open.Load(), t.duration)
		}
	},
}, {
	name: "pings",
	what: "sends PINGREQ on 200 connections as fast as it can.",
	p99:  20 * time.Millisecond,
	run:  keepSending(200, 50, func() []byte { return bytes.Repeat([]byte{packets.PINGREQ << 4, 0}, 2000) }),
}, {
	name:   "text of 1 MiB",
	what:   "publishes messages of 1 MiB with a payload format of UTF-8, on 100 connections.",
	p99:    20 * time.Millisecond,
	memory: 384, // 256 MiB for incoming packets, and the messages in them
	run: keepSending(100, 30, func() []byte {
		return rawmqtt.Message{Topic: "unread", Properties: rawmqtt.Body(nil).Byte(packets.PropPayloadFormat).Byte(1),
			Payload: bytes.Repeat([]byte("\u00e4"), 1<<19-100)}.Packet()
	}),
}, {
	name:   "bytes of 1 MiB",
	what:   "publishes messages of 1 MiB on 100 connections.",
	memory: 384, // 256 MiB for incoming packets, and the messages in them
	run:    keepSending(100, 30, largePublish),
}, {
	name:   "watches of all",
	what:   "fills the room for watches with 70 clients of one user; another user then watches a key.",
	limit:  "the other user may watch",
	users:  true,
	memory: 2*256 + 64, // the room for watches, and requests; the collector comes when it has doubled
	run: func(ctx context.Context, t *target) {
		t.each(ctx, 70, 8, "watch-", func(p *peer) {
			for size := 1<<20 - 400; size > 0; size /= 2 {
				for k := range 4 {
					key := strings.Repeat("k", size) + strconv.Itoa(k) + p.id
					if p.send(p.request(uint16(k+1), protocol.VerbKeyNotify, key)) != nil {
						return
					}
					_, _ = p.acknowledged()
				}
			}
		})
		victim := t.must(ctx, rawmqtt.Login{ClientID: "victim", User: healthyUser, Password: healthyPassword})
		body := victim.answer(protocol.VerbKeyNotify, "healthy/key")
		if bytes.Contains(body, []byte("quota")) {
			t.breach("another user's KEYNOTIFY is refused: %q", body[len(body)-40:])
		}
	},
}}

// largePublish returns a message of 1 MiB to which no client subscribes.
func largePublish() []byte {
	return rawmqtt.Message{Topic: "unread", Payload: make([]byte, 1<<20-100)}.Packet()
}

// sendAndHold returns an attack that sends data once on each of many connections, or of few in a
// test, and keeps them open.
func sendAndHold(many, few int, data func() []byte) func(context.Context, *target) {
	return func(ctx context.Context, t *target) {
		packet := data()
		t.each(ctx, t.n(many, few), 4, "hold-", func(p *peer) { _ = p.send(packet) })
		sleep.For(ctx, t.duration)
	}
}

// keepSending returns an attack that sends data on many connections, or on few in a test, as fast
// as it can.
func keepSending(many, few int, data func() []byte) func(context.Context, *target) {
	return func(ctx context.Context, t *target) {
		packet := data()
		n := t.n(many, few)
		t.each(ctx, n, n, "send-", func(p *peer) {
			p.drain()
			for lasting := t.lasting(ctx); lasting.Err() == nil && p.send(packet) == nil; {
			}
		})
	}
}

// withWildcards returns a filter that is a topic with + for each level whose bit is in mask.
func withWildcards(topic string, mask int) string {
	levels := strings.Split(topic, "/")
	for i := range levels {
		if mask>>i&1 != 0 {
			levels[i] = "+"
		}
	}
	return strings.Join(levels, "/")
}

// subscribers logs in clients that never acknowledge, and subscribe to many filters.
func (t *target) subscribers(ctx context.Context, n int, options byte, filters func(p *peer) []string) []*peer {
	peers := t.logins(ctx, n, func(i int) rawmqtt.Login {
		return rawmqtt.Login{ClientID: "s-" + strconv.Itoa(i), Properties: rawmqtt.Body(nil).Byte(packets.PropReceiveMaximum).Uint16(1)}
	})
	concurrently(len(peers), 8, func(i int) { peers[i].subscribeAll(options, filters(peers[i])) })
	return peers
}

// publishOn publishes small messages with QoS 1 on n connections, two unanswered on each.
func (t *target) publishOn(ctx context.Context, n int, topic string) {
	t.each(ctx, n, n, "publisher-", func(p *peer) {
		_ = p.messages(t.lasting(ctx), 0, 2, func(int) rawmqtt.Message { return rawmqtt.Message{Topic: topic, Payload: []byte("x")} })
	})
}

func starveWatcher(ctx context.Context, t *target) {
	writer := t.as(ctx, "writer")
	ctx = t.lasting(ctx)
	var all sync.WaitGroup
	for i := range 80 { // deaf clients, which come back when they are disconnected
		all.Go(func() {
			t.again(ctx, rawmqtt.Login{ClientID: "deaf-" + strconv.Itoa(i)}, func(p *peer) {
				_, _ = p.subscribe(0, "deaf")
				sleep.For(ctx, time.Duration(4500+10*i)*time.Millisecond)
			})
		})
	}
	all.Go(func() {
		t.again(ctx, rawmqtt.Login{ClientID: "loud"}, func(p *peer) {
			var err error
			for err == nil && ctx.Err() == nil {
				for size := 1 << 19; size > 0 && err == nil; size /= 2 {
					err = p.send(rawmqtt.Message{Topic: "deaf", Payload: make([]byte, size)}.Packet())
				}
				sleep.For(ctx, 20*time.Millisecond)
			}
		})
	})
	all.Go(func() {
		writer.drain()
		for i := 0; ctx.Err() == nil; i++ {
			_ = writer.send(writer.request(uint16(i%100+1), protocol.VerbSet, "watched", strconv.Itoa(i)))
			sleep.For(ctx, 50*time.Millisecond)
		}
	})
	ends, notified := 0, 0
	t.again(ctx, rawmqtt.Login{ClientID: "watcher"}, func(p *peer) {
		err := p.send(p.request(1, protocol.VerbKeyNotify, "watched"))
		for err == nil && ctx.Err() == nil {
			var first byte
			if first, _, err = p.read(); first>>4 == packets.PUBLISH {
				notified++
			}
		}
		if ctx.Err() == nil {
			ends++
		}
	})
	all.Wait()
	if ends > 0 {
		t.breach("the watcher, which reads, was disconnected %d times, and notified %d times", ends, notified)
	}
}
