package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// Attacks that make the server hold as much as its limits allow.
var memoryAttacks = []attack{{
	// It has 20 clients subscribe, watch a key, ask for a value of 256 KiB and read nothing, while it publishes to
	// them and sets the key.
	// Limit: 8 MiB for each connection; a watcher that reads, the writer and the publisher stay connected.
	name:   "deaf readers",
	memory: 20*8 + 64,
	run: func(t *target) {
		publisher, writer, watcher := t.as("publisher"), t.as("writer"), t.as("watcher")
		value := make([]byte, 256<<10)
		t.need(writer.ask(protocol.VerbSet, "large", string(value)))
		t.need(watcher.ask(protocol.VerbKeyNotify, "watched"))
		ctx := t.lasting()
		var tasks sync.WaitGroup
		tasks.Go(func() {
			t.again(ctx, t.n(20), "deaf-", func(p *peer) {
				_ = p.subscribe(1, "queue")
				_ = p.ask(protocol.VerbKeyNotify, "watched")
				for id := uint16(1); p.send(p.request(id, protocol.VerbGet, "large")) == nil && id < 500; id++ {
				}
				sleep.For(ctx, t.duration/2) // unless it is disconnected
			})
		})
		lost := make([]error, 3)
		use := func(i int, do func() error) {
			tasks.Go(func() {
				for ctx.Err() == nil && lost[i] == nil {
					if err := do(); !errors.Is(err, errRefused) {
						lost[i] = err
					}
				}
			})
		}
		stop := context.AfterFunc(ctx, func() { hangUp(watcher) }) // nothing more may come
		defer stop()
		use(0, func() error {
			if _, err := watcher.await(packets.PUBLISH); ctx.Err() == nil {
				return err
			}
			return nil
		})
		use(1, func() error { return writer.ask(protocol.VerbSet, "watched", strings.Repeat("v", 64<<10)) })
		use(2, func() error {
			message := rawmqtt.Message{Topic: "queue", QoS: 1, ID: 1, Payload: value[:64<<10]}
			return publisher.exchange(message.Packet(), packets.PUBACK)
		})
		tasks.Wait()
		if err := errors.Join(lost...); err != nil {
			t.breach("the watcher, the writer or the publisher is disconnected: %v", err)
		}
	},
}, {
	// It leaves 20 sessions with a subscription, and publishes 16 MiB in messages of 64 KiB to each.
	// Limit: 4 MiB for each session.
	name:   "offline sessions",
	memory: 2*20*4 + 64, // the collector comes when it has doubled
	run: func(t *target) {
		n := t.n(20)
		hangUp(t.eachOf(n, n, rawmqtt.Login{ID: "offline-", Expiry: 3600},
			func(p *peer) { t.need(p.subscribe(1, "queue/"+p.ID)) })...)
		message := rawmqtt.Message{Payload: make([]byte, 64<<10)}
		_ = t.as("publisher").messages(context.Background(), 256*n, 8, func(i int) rawmqtt.Message {
			message.Topic = "queue/offline-" + strconv.Itoa(i%n)
			return message
		})
		time.Sleep(t.duration / 4)
		hangUp(t.each(n, n, "offline-", func(*peer) {})...) // which ends their sessions: the memory must come back
	},
}, {
	// It leaves packets of 1 MB incomplete on 40 connections, again and again, in a server with 64 MiB
	// (--max-memory).
	// Limit: a client of another user sends 5 KiB and 100 KiB, and stays connected.
	name:  "unfinished packets",
	users: true,
	serve: []string{"--max-memory", "64MiB"},
	run: func(t *target) {
		other, ctx := t.as("other"), t.lasting()
		packet := rawmqtt.Message{Topic: "t", Payload: make([]byte, 1_000_000)}.Packet()
		var leaving sync.WaitGroup
		defer leaving.Wait()
		leaving.Go(func() {
			t.again(ctx, 40, "unfinished-", func(p *peer) {
				if p.send(packet[:len(packet)-1]) == nil {
					_, _ = p.await(packets.DISCONNECT)
				}
				sleep.For(ctx, 250*time.Millisecond)
			})
		})
		sleep.For(ctx, t.duration/4) // until the space is taken
		for n := 0; ctx.Err() == nil; n++ {
			size := []int{5 << 10, 100 << 10}[n%2]
			if err := other.ask(protocol.VerbSet, "large", string(make([]byte, size))); err != nil {
				t.breach("a client that sends %d bytes is disconnected: %v", size, err)
			}
			sleep.For(ctx, 10*time.Millisecond)
		}
	},
}, {
	// It sends all but the last byte of a message of 1 MiB on each of 500 connections, and keeps these open.
	name:   "packets without their last byte",
	memory: 384, // 256 MiB for incoming packets, and the messages in them
	run: func(t *target) {
		packet := rawmqtt.Message{Topic: "unread", Payload: make([]byte, 1<<20-100)}.Packet()
		t.each(t.n(500), 4, "hold-", func(p *peer) { _ = p.send(packet[:len(packet)-1]) })
		time.Sleep(t.duration)
	},
}, {
	// It has 300 clients subscribe with 1,000 filters of 1 KiB each.
	name:   "long filters",
	memory: 384, // 256 MiB for subscriptions, and the packets that ask for them
	run: func(t *target) {
		t.each(t.n(300), 8, "s-", func(p *peer) { _ = p.subscribe(0, p.filters("", 1000)...) })
		time.Sleep(t.duration)
	},
}, {
	// It watches a million keys on one connection, and hangs up.
	name:   "a million watches",
	memory: 128,
	run: func(t *target) {
		p := t.as("watcher")
		_ = p.requests(t.lasting(), t.n(1_000_000), 200, func(i int) []string { // the server may end such a connection
			return []string{protocol.VerbKeyNotify, "watched-" + strconv.Itoa(i)}
		})
		hangUp(p)
		time.Sleep(2 * time.Second) // for what the end of the connection costs
	},
}, {
	// It sets keys of a few bytes in a store of 2 MiB (--max-bytes), each under a fencing token of 983 bytes and
	// by a request with correlation data of 20,000.
	name:  "long tokens and correlation data",
	serve: []string{"--max-bytes=2MiB"},
	run: func(t *target) {
		t.each(20, 20, "", func(p *peer) {
			token, n := "1:0:"+strings.Repeat("n", 983), uint64(0)
			p.change = func(m *mqtt.Message) {
				n++
				m.User = append(m.User, mqtt.UserProperty{Name: protocol.PropertyFencingToken, Value: token})
				m.CorrelationData = binary.BigEndian.AppendUint64(make([]byte, 20_000), n)
			}
			_ = p.requests(t.lasting(), 0, 20, func(i int) []string {
				return []string{protocol.VerbSet, p.ID + "-" + strconv.Itoa(i), "", protocol.OptionPX, "8000"}
			})
		})
	},
}, {
	// It fills a server with 128 MiB (--max-memory) with small keys, watches, long filters, small messages that
	// wait in sessions, large ones that wait for connections, and packets of 1 MiB that do not end.
	// Limit: 192 MiB in all.
	name:   "everything at once",
	serve:  []string{"--max-memory=128MiB"},
	memory: 192 - 12,               // what a server has at first
	p99:    200 * time.Millisecond, // a server that is full collects often
	run: func(t *target) {
		ctx := t.lasting()
		var fillers sync.WaitGroup
		fill := func(n int, prefix string, do func(p *peer)) {
			fillers.Go(func() { t.each(n, n, prefix, do) })
		}
		// They expire within the time in which memory must come back.
		fill(2, "keys-", func(p *peer) {
			_ = p.requests(ctx, 20_000, 100, func(i int) []string {
				return []string{protocol.VerbSet, fmt.Sprint(p.ID, "-", i), strings.Repeat("v", i%900), "PX",
					strconv.Itoa(8_000 + i/8)}
			})
		})
		fill(4, "watches-", func(p *peer) {
			_ = p.requests(ctx, 11_000, 100,
				func(i int) []string { return []string{protocol.VerbKeyNotify, fmt.Sprint(p.ID, "-", i)} })
		})
		fill(8, "filters-", func(p *peer) { _ = p.subscribe(0, p.filters(strings.Repeat("/l", 50), 850)...) })
		fill(16, "session-", func(p *peer) { _ = p.subscribe(1, "session/"+p.ID) })
		fill(8, "outgoing-", func(p *peer) { _ = p.subscribe(0, "outgoing/"+p.ID) })
		fillers.Wait()
		fill(2, "sender-", func(p *peer) {
			_ = p.messages(t.lasting(), 60_000, 200, func(i int) rawmqtt.Message {
				return rawmqtt.Message{Topic: "session/session-" + strconv.Itoa(i%16)}
			})
		})
		fill(1, "publisher-", func(p *peer) {
			_ = p.messages(t.lasting(), 1_000, 16, func(i int) rawmqtt.Message {
				return rawmqtt.Message{Topic: "outgoing/outgoing-" + strconv.Itoa(i%8), Payload: make([]byte, 64<<10)}
			})
		})
		fillers.Wait()
		endless := rawmqtt.Message{Topic: "unread", Payload: make([]byte, 1<<20-100)}.Packet()
		t.each(200, 200, "endless-", func(p *peer) { _ = p.send(endless[:len(endless)-1]) })
		time.Sleep(t.duration / 2)
	},
}}

// filters returns a thousand filters with this in the middle, and so long an end.
func (p *peer) filters(middle string, end int) []string {
	filters := make([]string, 1_000)
	for i := range filters {
		filters[i] = fmt.Sprint(p.ID, "/", i/50, "/", i%50, middle, strings.Repeat("f", end))
	}
	return filters
}

// journalAttacks fill what waits for the commits of a slow disk. The healthy client also changes a key,
// which has to wait for a commit.
var journalAttacks = []attack{{
	// It has 50 clients change keys as fast as they get answers, with values of 64 KiB, on a disk that takes 20 ms
	// for a commit.
	name:     "large changes before a slow disk",
	slowDisk: true,
	run: func(t *target) {
		value := strings.Repeat("v", 64<<10)
		t.each(50, 50, "flood-", func(p *peer) {
			_ = p.requests(t.lasting(), 0, 4, func(i int) []string {
				return []string{protocol.VerbSet, fmt.Sprint(p.ID, "-", i%4), value, protocol.OptionPX, "8000"}
			})
		})
	},
}, {
	// It lets 100,000 keys expire at once, on a disk that takes 20 ms for a commit.
	name:     "keys that expire at once before a slow disk",
	slowDisk: true,
	run: func(t *target) {
		end := time.Now().Add(t.duration + 8*time.Second)
		t.each(20, 20, "key-", func(p *peer) {
			_ = p.requests(context.Background(), t.n(5_000), 200, func(i int) []string {
				left := max(time.Until(end).Milliseconds(), 1)
				return []string{protocol.VerbSet, fmt.Sprint(p.ID, "-", i), "v", protocol.OptionPX, strconv.FormatInt(left, 10)}
			})
		})
		time.Sleep(time.Until(end) + t.duration/2)
	},
}, {
	// It has 1,000 clients fill their windows of remembered replies, and cuts them all at once, on a disk that
	// takes 20 ms for a commit.
	name:     "sessions that end at once before a slow disk",
	slowDisk: true,
	memory:   256, // 1,000 connections, and 256,000 replies
	run: func(t *target) {
		hangUp(t.each(t.n(1_000), 64, "gone-", func(p *peer) {
			_ = p.requests(context.Background(), 256, 64,
				func(i int) []string { return []string{protocol.VerbSet, p.ID, strconv.Itoa(i)} })
		})...)
		time.Sleep(t.duration / 2)
	},
}}

// beServer serves a store on a file whose commits take some time more. The command tenure has no such
// option.
func (a attack) beServer(folder string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	file, err := journal.Open(filepath.Join(folder, "data"), journal.Options{})
	if err != nil {
		return err
	}
	defer file.Close()
	s, err := server.Open(ctx, server.Options{Addr: "127.0.0.1:0", Journal: &slowJournal{file}, Authenticator: anyone{}})
	if err != nil {
		return err
	}
	fmt.Printf("listening on mqtt://%v\n", s.Addr())
	go func() { // as the command does after a burst; ends with the process
		for range time.Tick(5 * time.Second) {
			debug.FreeOSMemory()
		}
	}()
	return s.Serve(ctx)
}

// anyone admits each user.
type anyone struct{}

// Authenticate implements access.Authenticator.
func (anyone) Authenticate(access.Credentials) error { return nil }

// slowJournal takes 20 ms more for each commit.
type slowJournal struct{ statestore.Journal }

// Commit implements statestore.Journal.
func (j *slowJournal) Commit(ctx context.Context, batch []statestore.Group) error {
	sleep.For(ctx, 20*time.Millisecond)
	return j.Journal.Commit(ctx, batch)
}
