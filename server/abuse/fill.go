package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// fillAttacks make a server hold as much as its limits allow of everything at once, in the forms
// that cost it most beyond the bytes that it counts.
var fillAttacks = []attack{{
	name: "everything at once",
	what: "fills a server with 128 MiB (--max-memory) with small keys, watches, long filters, small messages that wait in sessions, " +
		"large ones that wait for connections, and packets of 1 MiB that do not end.",
	limit:  "192 MiB in all",
	serve:  []string{"--max-memory=128MiB"},
	memory: 192 - 12,               // what a server has at first
	p99:    200 * time.Millisecond, // a server that is full collects often
	run: func(ctx context.Context, t *target) {
		var fillers sync.WaitGroup
		fill := func(n int, prefix string, do func(p *peer)) {
			for _, p := range t.logins(ctx, n, named(prefix)) {
				fillers.Go(func() { do(p) })
			}
		}
		bounded, cancel := context.WithTimeout(ctx, 2*t.duration+10*time.Second)
		defer cancel()
		// They expire within the time in which memory must come back.
		fill(2, "keys-", func(p *peer) {
			_ = p.requests(bounded, 20_000, 100, func(i int) []string {
				return []string{protocol.VerbSet, fmt.Sprint(p.id, "-", i), strings.Repeat("v", i%900), "PX", strconv.Itoa(8_000 + i/8)}
			})
		})
		fill(4, "watches-", func(p *peer) {
			_ = p.requests(bounded, 11_000, 100, func(i int) []string { return []string{protocol.VerbKeyNotify, fmt.Sprint(p.id, "-", i)} })
		})
		fill(8, "filters-", func(p *peer) {
			filters := make([]string, 1_000)
			for i := range filters {
				filters[i] = fmt.Sprint(p.id, "/+/", i/50, "/", i%50, strings.Repeat("/l", 50), strings.Repeat("f", 850))
			}
			p.subscribeAll(0, filters)
		})
		fill(16, "session-", func(p *peer) { _, _ = p.subscribe(1, "session/"+p.id) })
		fill(8, "outgoing-", func(p *peer) { _, _ = p.subscribe(0, "outgoing/"+p.id) })
		fillers.Wait()
		fill(2, "sender-", func(p *peer) {
			_ = p.messages(bounded, 60_000, 200, func(i int) rawmqtt.Message {
				return rawmqtt.Message{Topic: "session/session-" + strconv.Itoa(i%16)}
			})
		})
		fill(1, "publisher-", func(p *peer) {
			_ = p.messages(bounded, 1_000, 16, func(i int) rawmqtt.Message {
				return rawmqtt.Message{Topic: "outgoing/outgoing-" + strconv.Itoa(i%8), Payload: make([]byte, 64<<10)}
			})
		})
		fillers.Wait()
		// The client ids that are left.
		endless := largePublish()
		t.each(ctx, 200, 200, "endless-", func(p *peer) { _ = p.send(endless[:len(endless)-1]) })
		sleep.For(ctx, t.duration/2)
	},
}}
