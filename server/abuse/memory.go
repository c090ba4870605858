package main

import (
	"context"
	"encoding/binary"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks that make the server hold as much as its limits allow.
var memoryAttacks = []attack{{
	name:   "outgoing queues",
	what:   "has 20 clients subscribe and not read, and publishes 64 MiB in messages of 64 KiB to each.",
	limit:  "8 MiB for each connection",
	memory: 20*8 + 64,
	run: func(ctx context.Context, t *target) {
		peers := t.each(ctx, t.n(20, 5), 20, "deaf-", func(p *peer) { _, _ = p.subscribe(1, "queue/"+p.id) })
		t.flood(ctx, t.n(1024, 256), 64<<10, len(peers), func(i int) string { return "queue/" + peers[i].id })
		sleep.For(ctx, t.duration/4)
	},
}, {
	name:  "unfinished packets",
	what:  "leaves packets of 1 MB incomplete on 40 connections of a user without rights, again and again, in a server with 64 MiB (--max-memory).",
	limit: "a client of another user sends 5 KiB and 100 KiB, and stays connected",
	rules: `  - {users: [` + healthyUser + `], read: ["*"], write: ["*"]}` + "\n",
	serve: []string{"--max-memory", "64MiB"},
	run: func(ctx context.Context, t *target) {
		other := t.must(ctx, rawmqtt.Login{ClientID: "other", User: healthyUser, Password: healthyPassword})
		ctx = t.lasting(ctx)
		var leaving sync.WaitGroup
		defer leaving.Wait()
		leaving.Go(func() { t.leaveUnfinished(ctx, 40) })
		sleep.For(ctx, t.duration/4) // until the room is taken
		for n := 0; ctx.Err() == nil; n++ {
			size := []int{5 << 10, 100 << 10}[n%2]
			if _, err := other.ask(protocol.VerbSet, "large", string(make([]byte, size))); err != nil {
				t.breach("a client that sends %d bytes is disconnected: %v", size, err)
			}
			sleep.For(ctx, 10*time.Millisecond)
		}
	},
}, {
	name:  "long tokens",
	what:  "sets 200,000 keys of a few bytes, each under a fencing token of 983 bytes, in a store of 2 MiB (--max-bytes).",
	serve: []string{"--max-bytes=2MiB"},
	run: func(ctx context.Context, t *target) {
		keys, clients := t.n(200_000, 100_000), 20
		t.each(ctx, clients, clients, "", func(p *peer) {
			p.token = "1:0:" + strings.Repeat("n", 983)
			_ = p.requests(ctx, keys/clients, 100, func(i int) []string {
				return []string{protocol.VerbSet, p.id + "-" + strconv.Itoa(i), "", protocol.OptionPX, "8000"}
			})
		})
		sleep.For(ctx, t.duration/2)
	},
}, {
	name:   "deaf watchers",
	what:   "has 20 clients watch a key and not read, and sets it to values of 64 KiB.",
	limit:  "8 MiB for each connection",
	memory: 20*8 + 64,
	run: func(ctx context.Context, t *target) {
		t.each(ctx, t.n(20, 5), 20, "deaf-", func(p *peer) { _ = p.send(p.request(1, protocol.VerbKeyNotify, "deaf")) })
		writer := t.as(ctx, "writer")
		value := make([]byte, 64<<10)
		_ = writer.requests(t.lasting(ctx), 0, 4, func(i int) []string {
			binary.BigEndian.PutUint64(value, uint64(i))
			return []string{protocol.VerbSet, "deaf", string(value)}
		})
	},
}, {
	name:   "deaf requesters",
	what:   "asks 500 times for a value of 256 KiB on each of 20 connections, and does not read the answers.",
	limit:  "8 MiB for each connection",
	memory: 20*8 + 64,
	run: func(ctx context.Context, t *target) {
		writer := t.as(ctx, "writer")
		t.accepted(writer.ask(protocol.VerbSet, "large", string(make([]byte, 256<<10))))
		t.each(ctx, t.n(20, 5), 20, "deaf-", func(p *peer) {
			for n := range 500 {
				if p.send(p.request(uint16(n+1), protocol.VerbGet, "large")) != nil {
					return
				}
			}
		})
		sleep.For(ctx, t.duration)
	},
}, {
	name:   "offline sessions",
	what:   "leaves 20 sessions with a subscription, and publishes 16 MiB in messages of 64 KiB to each.",
	limit:  "4 MiB for each session",
	memory: 2*20*4 + 64, // the collector comes when it has doubled
	run: func(ctx context.Context, t *target) {
		n := t.n(20, 5)
		peers := t.logins(ctx, n, func(i int) rawmqtt.Login {
			return rawmqtt.Login{ClientID: "offline-" + strconv.Itoa(i), Expiry: 3600}
		})
		concurrently(len(peers), len(peers), func(i int) { _, _ = peers[i].subscribe(1, "queue/"+peers[i].id) })
		hangUp(peers...)
		t.flood(ctx, t.n(256, 128), 64<<10, len(peers), func(i int) string { return "queue/" + peers[i].id })
		sleep.For(ctx, t.duration/4)
		// They end their sessions: the memory must come back.
		hangUp(t.logins(ctx, n, named("offline-"))...)
	},
}, {
	name:  "sessions of one user",
	what:  "leaves 300 sessions that are to be kept for an hour, all of one user.",
	limit: "100 are kept",
	users: true,
	run: func(ctx context.Context, t *target) {
		n := t.n(300, 150)
		login := func(i int) rawmqtt.Login {
			return rawmqtt.Login{ClientID: "session-" + strconv.Itoa(i), Resume: true, Expiry: 3600}
		}
		concurrently(n, 8, func(i int) {
			if p, err := t.login(ctx, login(i)); err == nil {
				_, _ = p.subscribe(1, "session/"+p.id)
				hangUp(p)
			}
		})
		sleep.For(ctx, time.Second) // until the server has seen that all are gone
		kept := 0
		for i := range n {
			l := login(i)
			l.Expiry = 0
			p, err := t.login(ctx, l)
			if err != nil {
				continue
			}
			if p.present {
				kept++
			}
			hangUp(p)
		}
		if kept > 100 {
			t.breach("%d sessions were kept", kept)
		}
	},
}, {
	name: "large correlation data",
	what: "sends 1,000 requests with correlation data of 60,000 bytes on each of ten connections: the store remembers requests.",
	run: func(ctx context.Context, t *target) {
		bounded, cancel := context.WithTimeout(ctx, 2*t.duration)
		defer cancel()
		n := t.n(1_000, 500)
		t.each(ctx, t.n(10, 3), 10, "correlation-", func(p *peer) {
			data := make([]byte, 60_000)
			_ = p.pipeline(bounded, n, 4, func(i int, id uint16) []byte {
				binary.BigEndian.PutUint64(data, uint64(i))
				return p.requestWith(id, string(data), protocol.VerbSet, "correlation", "value")
			})
		})
		sleep.For(ctx, t.duration/4)
	},
}, {
	name:   "large values",
	what:   "sets 2,000 keys to values of 64 KiB and deletes them.",
	memory: 2_000/16 + 192,
	run: func(ctx context.Context, t *target) {
		n := t.n(2_000, 500)
		p := t.as(ctx, "values")
		value := string(make([]byte, 64<<10))
		_ = p.requests(ctx, 2*n, 4, func(i int) []string {
			if i < n {
				return []string{protocol.VerbSet, "value-" + strconv.Itoa(i), value}
			}
			return []string{protocol.VerbDel, "value-" + strconv.Itoa(i-n)}
		})
	},
}}

// leaveUnfinished sends all but the last byte of a packet of 1 MB on each of some connections, and does so
// again on a new one whenever the server has ended one, until ctx ends.
func (t *target) leaveUnfinished(ctx context.Context, connections int) {
	packet := rawmqtt.Message{Topic: "t", Payload: make([]byte, 1_000_000)}.Packet()
	concurrently(connections, connections, func(i int) {
		t.again(ctx, rawmqtt.Login{ClientID: "unfinished-" + strconv.Itoa(i)}, func(p *peer) {
			if p.send(packet[:len(packet)-1]) == nil {
				_, _ = p.await(packets.DISCONNECT)
			}
			sleep.For(ctx, 250*time.Millisecond)
		})
	})
}

// flood publishes messages of a size to several topics in turn, on one connection. If the server
// ends the connection, flood opens another.
func (t *target) flood(ctx context.Context, each, size, topics int, topic func(int) string) {
	payload := make([]byte, size)
	sent, tries := 0, 0
	for sent < each*topics && tries < 10 && ctx.Err() == nil {
		tries++
		p, err := t.login(ctx, rawmqtt.Login{ClientID: "publisher"})
		if err != nil {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, 2*t.duration)
		from := sent
		err = p.messages(bounded, each*topics-from, 8, func(i int) rawmqtt.Message {
			sent++
			return rawmqtt.Message{Topic: topic((from + i) % topics), Payload: payload}
		})
		over := bounded.Err() != nil
		cancel()
		hangUp(p)
		if err == nil || over {
			return
		}
	}
}
