package main

import (
	"context"
	"strconv"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks by clients that use what is allowed to excess.
var fairnessAttacks = []attack{{
	name:  "200 pipelines",
	what:  "sends requests on 200 connections as fast as it gets answers, with 100 of each on the way.",
	limit: "",
	p99:   20 * time.Millisecond,
	run: func(ctx context.Context, t *target) error {
		peers := t.logins(ctx, t.n(200, 50), named("pipeline-"))
		defer hangUp(peers...)
		ctx, cancel := t.lasting(ctx)
		defer cancel()
		crowd(len(peers), len(peers), func(i int) {
			p := peers[i]
			key := "pipeline-" + strconv.Itoa(i)
			_ = p.pipeline(ctx, 0, 100, func(i int) []byte {
				return p.request(uint16(i%200+1), protocol.VerbSet, key, "value")
			})
		})
		return nil
	},
}, {
	name:   "hot key",
	what:   "has 1,000 clients watch one key, and writes it as fast as it gets answers.",
	limit:  "",
	p99:    20 * time.Millisecond,
	memory: 160, // 1,000 connections
	run: func(ctx context.Context, t *target) error {
		peers := t.logins(ctx, t.n(1_000, 100), named("watcher-"))
		defer hangUp(peers...)
		crowd(len(peers), 32, func(i int) {
			if err := peers[i].send(peers[i].request(1, protocol.VerbKeyNotify, "hot")); err == nil {
				_, _ = peers[i].acknowledged()
			}
			peers[i].drain() // ends with the process
		})
		writers := t.logins(ctx, 4, named("writer-"))
		defer hangUp(writers...)
		ctx, cancel := t.lasting(ctx)
		defer cancel()
		crowd(len(writers), len(writers), func(i int) {
			p := writers[i]
			_ = p.pipeline(ctx, 0, 50, func(i int) []byte {
				return p.request(uint16(i%100+1), protocol.VerbSet, "hot", "value "+strconv.Itoa(i))
			})
		})
		return nil
	},
}, {
	name:  "subscriber that does not read",
	what:  "subscribes with QoS 1 and does not read, while it publishes there, and another reads.",
	limit: "publisher is acknowledged within 1 s",
	run: func(ctx context.Context, t *target) error {
		ctx, cancel := t.lasting(ctx)
		defer cancel()
		deaf, err := t.login(ctx, rawmqtt.Login{ClientID: "deaf"})
		if err != nil {
			return err
		}
		defer hangUp(deaf)
		reader, err := t.login(ctx, rawmqtt.Login{ClientID: "reader"})
		if err != nil {
			return err
		}
		defer hangUp(reader)
		for _, p := range []*peer{deaf, reader} {
			if _, err := p.subscribe(1, "slow/#"); err != nil {
				return err
			}
		}
		go func() { // ends with the connection
			for {
				first, body, err := reader.read()
				if err != nil {
					return
				}
				if id, ok := messageID(first, body); ok && reader.send(rawmqtt.Packet(wire.Puback, 0, rawmqtt.Body(nil).Uint16(id))) != nil {
					return
				}
			}
		}()
		publisher, err := t.login(ctx, rawmqtt.Login{ClientID: "publisher"})
		if err != nil {
			return err
		}
		defer hangUp(publisher)
		message := rawmqtt.Message{Topic: "slow/topic", Payload: make([]byte, 16<<10)}
		var longest time.Duration
		for ctx.Err() == nil {
			begin := time.Now()
			_, err := publisher.publish(message)
			longest = max(longest, time.Since(begin))
			if err != nil {
				return breach("the publisher lost its connection: %v", err)
			}
		}
		if longest > t.within(time.Second) {
			return breach("the publisher waited %.1f s", longest.Seconds())
		}
		return nil
	},
}}

// messageID returns the packet id of a PUBLISH with QoS 1.
func messageID(first byte, body []byte) (uint16, bool) {
	if first>>4 != wire.Publish || first>>1&3 == 0 || len(body) < 2 {
		return 0, false
	}
	at := 2 + int(body[0])<<8 + int(body[1])
	if len(body) < at+2 {
		return 0, false
	}
	return uint16(body[at])<<8 | uint16(body[at+1]), true
}
