package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// fillAttacks make a server hold as much as its limits allow of everything at once, in the forms
// that cost it most beyond the bytes that it counts.
var fillAttacks = []attack{{
	name: "everything at once",
	what: "fills a server with 128 MiB (--max-memory) with small keys, watches, long filters, small messages that wait in sessions, " +
		"large ones that wait for connections, retained messages, and packets of 1 MiB that do not end.",
	limit:  "192 MiB in all",
	serve:  []string{"--max-memory=128MiB", "--retain"},
	memory: 192 - 12,               // what a server has at first
	p99:    200 * time.Millisecond, // a server that is full collects often
	run: func(ctx context.Context, t *target) error {
		var fillers sync.WaitGroup
		var all []*peer
		defer func() { hangUp(all...) }()
		fill := func(n int, prefix string, do func(p *peer)) {
			peers := t.logins(ctx, n, named(prefix))
			all = append(all, peers...)
			for _, p := range peers {
				fillers.Go(func() { do(p) })
			}
		}
		bounded, cancel := context.WithTimeout(ctx, 2*t.duration+10*time.Second)
		defer cancel()
		requests := func(p *peer, n int, command func(i int) []string) {
			_ = p.pipeline(bounded, n, 100, func(i int) []byte { return p.request(uint16(i%200+1), command(i)...) })
		}
		// They expire within the time in which memory must come back.
		fill(2, "keys-", func(p *peer) {
			requests(p, 20_000, func(i int) []string {
				return []string{protocol.VerbSet, fmt.Sprint(p.id, "-", i), strings.Repeat("v", i%900), "PX", strconv.Itoa(8_000 + i/8)}
			})
		})
		fill(4, "watches-", func(p *peer) {
			requests(p, 11_000, func(i int) []string { return []string{protocol.VerbKeyNotify, fmt.Sprint(p.id, "-", i)} })
		})
		fill(8, "filters-", func(p *peer) {
			for i := range 20 {
				filters := make([]string, 50)
				for n := range filters {
					filters[n] = fmt.Sprint(p.id, "/+/", i, "/", n, strings.Repeat("/l", 50), strings.Repeat("f", 850))
				}
				if _, err := p.subscribe(0, filters...); err != nil {
					return
				}
			}
		})
		fill(16, "session-", func(p *peer) { _, _ = p.subscribe(1, "session/"+p.id) })
		fill(8, "outgoing-", func(p *peer) { _, _ = p.subscribe(0, "outgoing/"+p.id) })
		fill(1, "retainer-", func(p *peer) {
			expiry := rawmqtt.Body(nil).Byte(wire.MessageExpiry).Uint32(10)
			_ = p.pipeline(bounded, 10_000, 16, func(i int) []byte {
				return rawmqtt.Message{Topic: "retained/" + strconv.Itoa(i), QoS: 1, ID: uint16(i%32 + 1), Retain: true, Properties: expiry,
					Payload: make([]byte, 500)}.Packet()
			})
		})
		fillers.Wait()
		fill(2, "sender-", func(p *peer) {
			_ = p.pipeline(bounded, 60_000, 200, func(i int) []byte {
				return rawmqtt.Message{Topic: "session/session-" + strconv.Itoa(i%16), QoS: 1, ID: uint16(i%400 + 1)}.Packet()
			})
		})
		fill(1, "publisher-", func(p *peer) {
			_ = p.pipeline(bounded, 1_000, 16, func(i int) []byte {
				return rawmqtt.Message{Topic: "outgoing/outgoing-" + strconv.Itoa(i%8), QoS: 1, ID: uint16(i%400 + 1), Payload: make([]byte, 64<<10)}.Packet()
			})
		})
		fillers.Wait()
		// The client ids that are left.
		endless := rawmqtt.Message{Topic: "endless", Payload: make([]byte, 1<<20-100)}.Packet()
		fill(200, "endless-", func(p *peer) { _ = p.send(endless[:len(endless)-1]) })
		fillers.Wait()
		return sleepFor(ctx, t.duration/2)
	},
}}
