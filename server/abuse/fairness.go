package main

import (
	"context"
	"strconv"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks by clients that use what is allowed to excess.
var fairnessAttacks = []attack{{
	name: "200 pipelines",
	what: "sends requests on 200 connections as fast as it gets answers, with 100 of each on the way.",
	p99:  20 * time.Millisecond,
	run: func(ctx context.Context, t *target) {
		n := t.n(200, 50)
		t.each(ctx, n, n, "pipeline-", func(p *peer) {
			_ = p.requests(t.lasting(ctx), 0, 100, func(int) []string { return []string{protocol.VerbSet, p.id, "value"} })
		})
	},
}, {
	name:   "hot key",
	what:   "has 1,000 clients watch one key, and writes it as fast as it gets answers.",
	p99:    20 * time.Millisecond,
	memory: 160, // 1,000 connections
	run: func(ctx context.Context, t *target) {
		t.each(ctx, t.n(1_000, 100), 32, "watcher-", func(p *peer) {
			if err := p.send(p.request(1, protocol.VerbKeyNotify, "hot")); err == nil {
				_, _ = p.acknowledged()
			}
			p.drain()
		})
		t.each(ctx, 4, 4, "writer-", func(p *peer) {
			_ = p.requests(t.lasting(ctx), 0, 50, func(i int) []string { return []string{protocol.VerbSet, "hot", "value " + strconv.Itoa(i)} })
		})
	},
}, {
	name:  "subscriber that does not read",
	what:  "subscribes with QoS 1 and does not read, while it publishes there, and another reads.",
	limit: "publisher is acknowledged within 1 s",
	run: func(ctx context.Context, t *target) {
		ctx = t.lasting(ctx)
		deaf := t.as(ctx, "deaf")
		reader := t.as(ctx, "reader")
		for _, p := range []*peer{deaf, reader} {
			t.accepted(p.subscribe(1, "slow/#"))
		}
		go func() { // ends with the connection
			for {
				first, body, err := reader.read()
				if err != nil {
					return
				}
				in := mqtt.Reader(body)
				_, _ = in.Binary() // the topic
				id, _ := in.Uint16()
				if first>>4 == packets.PUBLISH && first>>1&3 > 0 && reader.send(rawmqtt.Packet(packets.PUBACK, 0, rawmqtt.Body(nil).Uint16(id))) != nil {
					return
				}
			}
		}()
		publisher := t.as(ctx, "publisher")
		message := rawmqtt.Message{Topic: "slow/topic", Payload: make([]byte, 16<<10)}
		var longest time.Duration
		for ctx.Err() == nil {
			begin := time.Now()
			_, err := publisher.publish(message)
			longest = max(longest, time.Since(begin))
			if err != nil {
				t.breach("the publisher lost its connection: %v", err)
			}
		}
		if longest > t.within(time.Second) {
			t.breach("the publisher waited %.1f s", longest.Seconds())
		}
	},
}}
