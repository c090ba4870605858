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

// Attacks on the memory of subscriptions and watches.
var subscriptionAttacks = []attack{{
	name:  "filter of 65,000 levels",
	what:  "subscribes to filters of 65,000 levels, while another client subscribes to plain ones.",
	limit: "refused; another's SUBSCRIBE is answered within 1 s",
	run: func(ctx context.Context, t *target) {
		t.refusesFilters(ctx, strings.Repeat("/", 65_000))
	},
}, {
	name:  "200,000 filters",
	what:  "subscribes to 200,000 filters in one packet, while another client subscribes to plain ones.",
	limit: "refused; another's SUBSCRIBE is answered within 1 s",
	run: func(ctx context.Context, t *target) {
		filters := make([]string, 200_000)
		for i := range filters {
			// As many as a packet of 1 MiB holds leave room for two characters each.
			filters[i] = string([]byte{byte('0' + i%79), byte('0' + i/79%79)})
		}
		t.refusesFilters(ctx, filters...)
	},
}, {
	name: "wildcard filters",
	what: "logs in 100 clients that subscribe to 192 filters each, all of which match the healthy client's replies.",
	run: func(ctx context.Context, t *target) {
		filters := matching(protocol.ResponseTopic("healthy"))
		for _, p := range t.each(ctx, t.n(100, 20), 100, "wild-", func(p *peer) { p.subscribeAll(1, filters) }) {
			p.drain()
		}
		sleep.For(ctx, t.duration)
	},
}, {
	name:   "a million watches",
	what:   "watches a million keys on one connection, and hangs up.",
	memory: 128,
	run: func(ctx context.Context, t *target) {
		p := t.as(ctx, "watcher")
		bounded, cancel := context.WithTimeout(ctx, 3*t.duration)
		defer cancel()
		_ = p.requests(bounded, t.n(1_000_000, 50_000), 200, func(i int) []string { // the server may end such a connection
			return []string{protocol.VerbKeyNotify, "watched-" + strconv.Itoa(i)}
		})
		hangUp(p)
		sleep.For(ctx, 2*time.Second) // for what the end of the connection costs
	},
}}

// refusesFilters subscribes, again and again for the duration, and then unsubscribes by
// hanging up. Meanwhile another client subscribes: what a server knows of the readers of a
// topic is then out of date, for all clients. It is a breach if the server grants it all, or
// keeps the other waiting.
func (t *target) refusesFilters(ctx context.Context, filters ...string) {
	ctx = t.lasting(ctx)
	other := t.as(ctx, "other")
	var longest time.Duration
	var others sync.WaitGroup
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			begin := time.Now()
			_, err := other.subscribe(0, "plain/"+strconv.Itoa(i%50))
			longest = max(longest, time.Since(begin))
			if err != nil {
				return
			}
			sleep.For(ctx, 5*time.Millisecond)
		}
	})
	granted, sent := 0, 0
	for i := 0; ctx.Err() == nil; i++ {
		p, err := t.login(ctx, rawmqtt.Login{ClientID: fmt.Sprint("filters-", i)})
		if err != nil {
			sleep.For(ctx, 50*time.Millisecond)
			continue
		}
		code, err := p.subscribe(0, filters...)
		sent++
		if err == nil && !refused(code) {
			granted++
		}
		hangUp(p)
		sleep.For(ctx, 5*time.Millisecond)
	}
	others.Wait()
	waited := ""
	if longest > t.within(time.Second) {
		waited = fmt.Sprintf("; another client waited %.1f s", longest.Seconds())
	}
	if granted > 0 || waited != "" {
		t.breach("%d of %d are granted%s", granted, sent, waited)
	}
}

// matching returns the filters with wildcards that match a topic below clients/ and that any
// client is granted: the second level, the client's, is always +.
func matching(topic string) []string {
	last := strings.Count(topic, "/")
	var filters []string
	for mask := range 2 << last {
		if mask&2 == 0 {
			continue
		}
		filter := withWildcards(topic, mask)
		filters = append(filters, filter)
		if mask>>last == 0 { // the last level once, in place of both its forms
			filters = append(filters, filter[:strings.LastIndex(filter, "/")]+"/#")
		}
	}
	return filters[:min(len(filters), 192)]
}
