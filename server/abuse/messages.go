package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks with packets as fast as they go, and with what no packet may have.
var messageAttacks = []attack{{
	// It sends requests on 200 connections as fast as it gets answers, with 100 of each on the way.
	name: "200 pipelines",
	p99:  20 * time.Millisecond,
	run: func(t *target) {
		t.each(t.n(200), 200, "pipeline-", func(p *peer) {
			_ = p.requests(t.lasting(), 0, 100, func(int) []string { return []string{protocol.VerbSet, p.ID, "value"} })
		})
	},
}, {
	// It has 1,000 clients watch one key, and writes it as fast as it gets answers.
	name:   "hot key",
	p99:    20 * time.Millisecond,
	memory: 160, // 1,000 connections
	run: func(t *target) {
		t.each(t.n(1_000), 32, "watcher-", func(p *peer) {
			_ = p.ask(protocol.VerbKeyNotify, "hot")
			p.drain()
		})
		t.each(4, 4, "writer-", func(p *peer) {
			_ = p.requests(t.lasting(), 0, 50,
				func(i int) []string { return []string{protocol.VerbSet, "hot", "value " + strconv.Itoa(i)} })
		})
	},
}, {
	// It sends PINGREQ on 200 connections as fast as it can.
	name: "pings",
	p99:  20 * time.Millisecond,
	run: func(t *target) {
		pings := bytes.Repeat([]byte{packets.PINGREQ << 4, 0}, 2000)
		t.each(t.n(200), 200, "send-", func(p *peer) {
			p.drain()
			for lasting := t.lasting(); lasting.Err() == nil && p.send(pings) == nil; {
			}
		})
	},
}, {
	// It publishes and subscribes with 9,000 user properties, topics of 65,000 levels and 200,000 filters.
	// Limit: refused.
	name: "packets beyond limits",
	run: func(t *target) {
		filters := make([]string, 200_000)
		for i := range filters {
			// As many as a packet of 1 MiB holds leave space for two characters each.
			filters[i] = string([]byte{byte('0' + i%79), byte('0' + i/79%79)})
		}
		var properties rawmqtt.Body
		for range 9_000 {
			properties = properties.User("k", "v")
		}
		levels := strings.Repeat("/", 65_000)
		beyond := []struct {
			packet []byte
			answer byte
		}{
			{rawmqtt.Message{Topic: "properties", QoS: 1, ID: 1, Properties: properties}.Packet(), packets.PUBACK},
			{rawmqtt.Message{Topic: strings.Repeat("t", 65_000), QoS: 1, ID: 1}.Packet(), packets.PUBACK},
			{rawmqtt.Message{Topic: levels, QoS: 1, ID: 1}.Packet(), packets.PUBACK},
			{rawmqtt.SubscribeTo(1, 0, levels), packets.SUBACK},
			{rawmqtt.SubscribeTo(1, 0, filters...), packets.SUBACK},
		}
		granted := make([]int, len(beyond))
		ctx := t.lasting()
		t.again(ctx, len(beyond), "beyond-", func(p *peer) {
			i := int(p.ID[len(p.ID)-1] - '0')
			if p.exchange(beyond[i].packet, beyond[i].answer) == nil {
				granted[i]++
			}
			sleep.For(ctx, 5*time.Millisecond)
		})
		if fmt.Sprint(granted) != "[0 0 0 0 0]" {
			t.breach("%v of each are granted", granted)
		}
	},
}, {
	// It has 300 clients subscribe with 1,000 filters each that match one topic, and publishes there on 20
	// connections.
	name:   "overlapping filters",
	memory: 1024,
	run: func(t *target) {
		var filters []string
		for mask := range 1_000 {
			filters = append(filters, withWildcards("a/b/c/d/e/f/g/h/i/j", mask+1))
		}
		t.eachOf(t.n(300), 8, neverAcknowledges, func(p *peer) {
			_ = p.subscribe(1, filters...)
			p.drain()
		})
		t.each(20, 20, "publisher-", func(p *peer) {
			_ = p.messages(t.lasting(), 0, 2,
				func(int) rawmqtt.Message { return rawmqtt.Message{Topic: "a/b/c/d/e/f/g/h/i/j", Payload: []byte("x")} })
		})
	},
}}

// neverAcknowledges is for clients that are sent one message and no more.
var neverAcknowledges = rawmqtt.Login{ID: "s-", Properties: rawmqtt.Body{packets.PropReceiveMaximum}.Uint16(1)}

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
