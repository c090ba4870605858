package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wire"
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
	name:   "many groups",
	what:   "has 200 clients join 1,000 groups each for one topic, with no room for messages, and publishes there on 20 connections.",
	memory: 1024,
	run: func(ctx context.Context, t *target) error {
		topic := "g"
		peers := t.subscribers(ctx, t.n(200, 30), func(i int) string { return "$share/" + strconv.Itoa(i) + "/" + topic })
		defer hangUp(peers...)
		crowd(len(peers), len(peers), func(i int) { _, _ = peers[i].subscribe(1, "fill"); peers[i].drain() })
		t.flood(ctx, 8, 1<<20-100, 1, func(int) string { return "fill" })
		return t.publishOn(ctx, 20, topic)
	},
}, {
	name:   "overlapping filters",
	what:   "has 300 clients subscribe with 1,000 filters each that match one topic, and publishes there on 20 connections.",
	memory: 1024,
	run: func(ctx context.Context, t *target) error {
		topic := "a/b/c/d/e/f/g/h/i/j"
		filters := overlapping(topic)
		peers := t.subscribers(ctx, t.n(300, 30), func(i int) string { return filters[i] })
		defer hangUp(peers...)
		for _, p := range peers {
			p.drain()
		}
		return t.publishOn(ctx, 20, topic)
	},
}, {
	name:   "long filters",
	what:   "has 300 clients subscribe with 1,000 filters of 1 KiB each.",
	memory: 384, // 256 MiB for subscriptions, and the packets that ask for them
	run: func(ctx context.Context, t *target) error {
		long := strings.Repeat("f", 1000)
		peers := t.subscribers(ctx, t.n(300, 30), nil)
		defer hangUp(peers...)
		crowd(len(peers), 8, func(i int) {
			for from := 0; from < 1000; from += 100 {
				var some []string
				for k := range 100 {
					some = append(some, fmt.Sprint(i, "-", from+k, long))
				}
				if _, err := peers[i].subscribe(0, some...); err != nil {
					return
				}
			}
		})
		return sleepFor(ctx, t.duration)
	},
}, {
	name:  "one name on 2,000 connections",
	what:  "logs in on 2,000 connections with one client id.",
	limit: "no more than --max-clients stay open",
	serve: []string{"--max-clients", "20"},
	run: func(ctx context.Context, t *target) error {
		var open atomic.Int64
		n := t.n(2000, 300)
		var conns sync.WaitGroup
		for range n {
			conn, err := t.dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := conn.Write(rawmqtt.Login{ClientID: "one", User: malloryIf(t), Password: passwordIf(t)}.Packet()); err != nil {
				return err
			}
			conns.Go(func() {
				_ = conn.SetReadDeadline(time.Now().Add(t.duration))
				buffer := make([]byte, 512)
				for {
					if _, err := conn.Read(buffer); err != nil {
						if errors.Is(err, os.ErrDeadlineExceeded) {
							open.Add(1)
						}
						return
					}
				}
			})
		}
		conns.Wait()
		if open.Load() > 20 {
			return breach("%d connections are open after %v", open.Load(), t.duration)
		}
		return nil
	},
}, {
	name: "pings",
	what: "sends PINGREQ on 200 connections as fast as it can.",
	p99:  20 * time.Millisecond,
	run:  keepSending(200, 50, func() []byte { return bytes.Repeat([]byte{wire.Pingreq << 4, 0}, 2000) }),
}, {
	name:   "text of 1 MiB",
	what:   "publishes messages of 1 MiB with a payload format of UTF-8, on 100 connections.",
	p99:    20 * time.Millisecond,
	memory: 384, // 256 MiB for incoming packets, and the messages in them
	run: keepSending(100, 30, func() []byte {
		return rawmqtt.Message{Topic: "unread", Properties: rawmqtt.Body(nil).Byte(wire.PayloadFormat).Byte(1),
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
	memory: 512,
	run: func(ctx context.Context, t *target) error {
		peers := t.logins(ctx, 70, named("watch-"))
		defer hangUp(peers...)
		crowd(len(peers), 8, func(i int) {
			p := peers[i]
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
		victim, err := t.login(ctx, rawmqtt.Login{ClientID: "victim", User: healthyUser, Password: healthyPassword})
		if err != nil {
			return err
		}
		defer hangUp(victim)
		if _, err := victim.subscribe(0, protocol.ResponseTopic("victim")); err != nil {
			return err
		}
		if err := victim.send(victim.request(1, protocol.VerbKeyNotify, "healthy/key")); err != nil {
			return err
		}
		body, err := victim.await(wire.Publish)
		if err != nil {
			return err
		}
		if bytes.Contains(body, []byte("quota")) {
			return breach("another user's KEYNOTIFY is refused: %q", body[len(body)-40:])
		}
		return nil
	},
}}

// largePublish returns a message of 1 MiB to which no client subscribes.
func largePublish() []byte {
	return rawmqtt.Message{Topic: "unread", Payload: make([]byte, 1<<20-100)}.Packet()
}

// sendAndHold returns an attack that sends data once on each of many connections, or of few in a
// test, and keeps them open.
func sendAndHold(many, few int, data func() []byte) func(context.Context, *target) error {
	return func(ctx context.Context, t *target) error {
		peers := t.logins(ctx, t.n(many, few), named("hold-"))
		defer hangUp(peers...)
		packet := data()
		crowd(len(peers), 4, func(i int) { _ = peers[i].send(packet) })
		return sleepFor(ctx, t.duration)
	}
}

// keepSending returns an attack that sends data on many connections, or on few in a test, as fast
// as it can.
func keepSending(many, few int, data func() []byte) func(context.Context, *target) error {
	return func(ctx context.Context, t *target) error {
		peers := t.logins(ctx, t.n(many, few), named("send-"))
		defer hangUp(peers...)
		ctx, cancel := t.lasting(ctx)
		defer cancel()
		packet := data()
		for _, p := range peers {
			p.drain()
		}
		crowd(len(peers), len(peers), func(i int) {
			for ctx.Err() == nil && peers[i].send(packet) == nil {
			}
		})
		return nil
	}
}

func malloryIf(t *target) string {
	if t.users {
		return malloryUser
	}
	return ""
}

func passwordIf(t *target) string {
	if t.users {
		return malloryPassword
	}
	return ""
}

// overlapping returns 1,000 filters that match a topic of ten levels.
func overlapping(topic string) []string {
	var filters []string
	levels := strings.Split(topic, "/")
	for mask := 1; mask <= 1000; mask++ {
		filter := append([]string(nil), levels...)
		for i := range filter {
			if mask>>i&1 != 0 {
				filter[i] = "+"
			}
		}
		filters = append(filters, strings.Join(filter, "/"))
	}
	return filters
}

// subscribers logs in clients that never acknowledge, with 1,000 filters each.
func (t *target) subscribers(ctx context.Context, n int, filter func(int) string) []*peer {
	peers := t.logins(ctx, n, func(i int) rawmqtt.Login {
		return rawmqtt.Login{ClientID: "s-" + strconv.Itoa(i), Properties: rawmqtt.Body(nil).Byte(wire.ReceiveMaximum).Uint16(1)}
	})
	if filter == nil {
		return peers
	}
	crowd(len(peers), 8, func(i int) {
		for from := 0; from < 990; from += 90 {
			var some []string
			for k := range 90 {
				some = append(some, filter(from+k))
			}
			if _, err := peers[i].subscribe(1, some...); err != nil {
				return
			}
		}
	})
	return peers
}

// publishOn publishes small messages with QoS 1 on n connections, two unanswered on each.
func (t *target) publishOn(ctx context.Context, n int, topic string) error {
	peers := t.logins(ctx, n, named("publisher-"))
	defer hangUp(peers...)
	ctx, cancel := t.lasting(ctx)
	defer cancel()
	crowd(len(peers), len(peers), func(i int) {
		_ = peers[i].pipeline(ctx, 0, 2, func(k int) []byte {
			return rawmqtt.Message{Topic: topic, QoS: 1, ID: uint16(k%8 + 1), Payload: []byte("x")}.Packet()
		})
	})
	return nil
}

func starveWatcher(ctx context.Context, t *target) error {
	ctx, cancel := t.lasting(ctx)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range t.n(80, 80) { // deaf clients, which come back when they are disconnected
		all.Go(func() {
			for ctx.Err() == nil {
				p, err := t.login(ctx, rawmqtt.Login{ClientID: "deaf-" + strconv.Itoa(i)})
				if err != nil {
					_ = sleep(ctx, 100*time.Millisecond)
					continue
				}
				_, _ = p.subscribe(0, "deaf")
				_ = sleep(ctx, time.Duration(4500+10*i)*time.Millisecond)
				hangUp(p)
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			p, err := t.login(ctx, rawmqtt.Login{ClientID: "loud"})
			if err != nil {
				continue
			}
			for err == nil && ctx.Err() == nil {
				for size := 1 << 19; size > 0 && err == nil; size /= 2 {
					err = p.send(rawmqtt.Message{Topic: "deaf", Payload: make([]byte, size)}.Packet())
				}
				_ = sleep(ctx, 20*time.Millisecond)
			}
			hangUp(p)
		}
	})
	writer, err := t.login(ctx, rawmqtt.Login{ClientID: "writer"})
	if err != nil {
		return err
	}
	defer hangUp(writer)
	ends, told := 0, 0
	all.Go(func() {
		writer.drain()
		for i := 0; ctx.Err() == nil; i++ {
			_ = writer.send(writer.request(uint16(i%100+1), protocol.VerbSet, "watched", strconv.Itoa(i)))
			_ = sleep(ctx, 50*time.Millisecond)
		}
	})
	for ctx.Err() == nil {
		p, err := t.login(ctx, rawmqtt.Login{ClientID: "watcher"})
		if err != nil {
			continue
		}
		err = p.send(p.request(1, protocol.VerbKeyNotify, "watched"))
		for err == nil && ctx.Err() == nil {
			var first byte
			if first, _, err = p.read(); first>>4 == wire.Publish {
				told++
			}
		}
		hangUp(p)
		if ctx.Err() == nil {
			ends++
		}
	}
	cancel()
	if ends > 0 {
		return breach("the watcher, which reads, was disconnected %d times, and notified %d times", ends, told)
	}
	return nil
}
