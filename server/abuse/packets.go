package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Malformed packets, and packets larger than any client needs.
var packetAttacks = []attack{{
	name:  "no options byte",
	what:  "sends a SUBSCRIBE whose filter has no options byte.",
	limit: "connection ends with 0x81",
	run: func(ctx context.Context, t *target) {
		p := t.as(ctx, "attacker")
		t.need(p.send([]byte{0x82, 6, 0, 1, 0, 0, 1, 'a'}))
		body, err := p.await(packets.DISCONNECT)
		if err != nil || len(body) == 0 || body[0] != 0x81 {
			t.breach("the connection does not end with DISCONNECT and 0x81: %x, %v", body, err)
		}
	},
}, {
	name:  "garbage",
	what:  "opens connections and sends random bytes, on half of them after a login.",
	limit: "connections end",
	run: func(ctx context.Context, t *target) {
		ctx = t.lasting(ctx)
		concurrently(t.n(16, 8), 16, func(worker int) {
			random := rand.NewChaCha8([32]byte{byte(worker)})
			garbage := make([]byte, 512)
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = random.Read(garbage)
				if i%2 == 0 {
					if p, err := t.login(ctx, named("garbage-")(worker)); err == nil {
						garbage[0] |= 0x20 // no type that needs no more than a byte
						_ = p.send(garbage)
						hangUp(p)
					}
					continue
				}
				if conn, err := t.dial(ctx); err == nil {
					_ = conn.SetWriteDeadline(time.Now().Add(writeWithin))
					_, _ = conn.Write(garbage)
					_ = conn.Close()
				}
			}
		})
	},
}, {
	name:  "user properties",
	what:  "publishes messages with 9,000 user properties each.",
	limit: "such a packet is refused",
	run: func(ctx context.Context, t *target) {
		var properties rawmqtt.Body
		for range 9_000 {
			properties = properties.User("k", "v")
		}
		t.refusesMessages(ctx, rawmqtt.Message{Topic: "properties", Properties: properties})
	},
}, {
	name:  "topic of 64 KiB",
	what:  "publishes to topics of 65,000 bytes.",
	limit: "such a packet is refused",
	run: func(ctx context.Context, t *target) {
		t.refusesMessages(ctx, rawmqtt.Message{Topic: strings.Repeat("t", 65_000)})
	},
}, {
	name:  "topic of 65,000 levels",
	what:  "publishes to topics of 65,000 empty levels.",
	limit: "such a packet is refused",
	run: func(ctx context.Context, t *target) {
		t.refusesMessages(ctx, rawmqtt.Message{Topic: strings.Repeat("/", 65_000)})
	},
}, {
	name: "dropped requests",
	what: "sends requests without a response topic, on four connections, as fast as it gets answers.",
	run: func(ctx context.Context, t *target) {
		ctx = t.lasting(ctx)
		concurrently(4, 4, func(worker int) {
			t.again(ctx, named("dropped-")(worker), func(p *peer) {
				_ = p.messages(ctx, 0, 50, func(int) rawmqtt.Message {
					return rawmqtt.Message{Topic: protocol.InvokeTopic, Payload: []byte("*1\r\n$1\r\nX\r\n")}
				})
			})
		})
	},
}}

// refusesMessages publishes a message on several connections, again and again for the
// duration, while another client has subscribed to everything. It is a breach if one is
// accepted.
func (t *target) refusesMessages(ctx context.Context, m rawmqtt.Message) {
	ctx = t.lasting(ctx)
	reader := t.as(ctx, "reader")
	t.accepted(reader.subscribe(0, "#"))
	reader.drain()
	var accepted, sent atomic.Int64
	concurrently(4, 4, func(worker int) {
		t.again(ctx, named("publisher-")(worker), func(p *peer) {
			var err error
			for err == nil && ctx.Err() == nil {
				var code byte
				code, err = p.publish(m)
				sent.Add(1)
				if err == nil && !refused(code) {
					accepted.Add(1)
				}
			}
		})
	})
	if accepted.Load() > 0 {
		t.breach("%d of %d are accepted", accepted.Load(), sent.Load())
	}
}
