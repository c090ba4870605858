package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// journalAttacks fill what waits for the commits of a slow disk. The healthy client also changes a key,
// which has to wait for a commit.
var journalAttacks = []attack{{
	name:   "large changes before a slow disk",
	what:   "has 50 clients change keys as fast as they get answers, with values of 64 KiB, on a disk that takes 20 ms for a commit.",
	users:  true,
	commit: 20 * time.Millisecond,
	change: 2 * time.Second,
	memory: 192,
	run: func(ctx context.Context, t *target) {
		value := strings.Repeat("v", 64<<10)
		t.each(ctx, 50, 50, "flood-", func(p *peer) {
			_ = p.requests(t.lasting(ctx), 0, 4, func(i int) []string {
				return []string{protocol.VerbSet, fmt.Sprint(p.id, "-", i%4), value, protocol.OptionPX, "8000"}
			})
		})
	},
}, {
	name: "a clock a minute ahead before a slow disk",
	what: "has 4 clients change keys with a __ts that is 59.5 s ahead and has the counter 2^31-1, on a disk that takes half a second " +
		"for a commit.",
	users:  true,
	commit: 500 * time.Millisecond,
	p99:    20 * time.Millisecond,
	limit:  "the counter of another client's version has 31 bits",
	run: func(ctx context.Context, t *target) {
		lasting := t.lasting(ctx)
		t.each(ctx, 4, 4, "ahead-", func(p *peer) {
			p.timestamp = func() string {
				return fmt.Sprintf("%d:%d:%s", time.Now().Add(59_500*time.Millisecond).UnixMilli(), math.MaxInt32, p.id)
			}
			_ = p.requests(lasting, 0, 4, func(i int) []string { return []string{protocol.VerbSet, p.id, strconv.Itoa(i)} })
		})
		reply := t.as(ctx, "victim").answer(protocol.VerbSet, "victim", "value")
		_, text, _ := bytes.Cut(reply, []byte(protocol.PropertyTimestamp))
		in := mqtt.Reader(text)
		value, _ := in.Binary()
		if version, err := hlc.Parse(string(value)); err != nil || version.Counter > math.MaxInt32 {
			t.breach("another client's version is %q (%v)", value, err)
		}
	},
}, {
	name:   "keys that expire at once before a slow disk",
	what:   "lets 100,000 keys expire at once, of which another client watches 1,000, on a disk that takes 20 ms for a commit.",
	users:  true,
	commit: 20 * time.Millisecond,
	change: 2 * time.Second,
	memory: 192,
	limit:  "each watched key is notified",
	run: func(ctx context.Context, t *target) {
		const clients, watched = 20, 1_000
		keys := t.n(100_000, 10_000)
		watcher := t.as(ctx, "watcher")
		// It watches only after all keys are set, so that all that it hears is that they are gone.
		end := time.Now().Add(t.duration + 8*time.Second)
		t.each(ctx, clients, clients, "key-", func(p *peer) {
			_ = p.requests(ctx, keys/clients, 200, func(i int) []string {
				left := max(time.Until(end).Milliseconds(), 1)
				return []string{protocol.VerbSet, fmt.Sprint(p.id, "-", i), "v", protocol.OptionPX, strconv.FormatInt(left, 10)}
			})
		})
		var heard atomic.Int64
		var reader sync.WaitGroup
		registered := make(chan struct{}, watched)
		reader.Go(func() { // ends with the connection
			for {
				first, body, err := watcher.read()
				if err != nil {
					return
				}
				in := mqtt.Reader(body)
				switch topic, _ := in.Binary(); {
				case first>>4 == packets.PUBACK:
					registered <- struct{}{}
				case first>>4 == packets.PUBLISH && strings.HasPrefix(string(topic), "clients/statestore/"):
					heard.Add(1)
				}
			}
		})
		defer reader.Wait()
		defer hangUp(watcher)
		for i := range watched {
			t.need(watcher.send(watcher.request(uint16(i%1000+1), protocol.VerbKeyNotify, fmt.Sprint("key-", i%clients, "-", i/clients))))
			select {
			case <-registered:
			case <-ctx.Done():
				t.need(ctx.Err())
			}
		}
		if time.Now().After(end) {
			t.need(errors.New("the keys expired before all were watched: the machine is too slow"))
		}
		for time.Since(end) < t.within(t.duration) && heard.Load() < watched {
			sleep.For(ctx, 10*time.Millisecond)
		}
		if got := heard.Load(); got < watched {
			t.breach("%d of %d watched keys are notified", got, watched)
		}
	},
}, {
	name:   "sessions that end at once before a slow disk",
	what:   "has 1,000 clients fill their windows of remembered replies, and cuts them all at once, on a disk that takes 20 ms for a commit.",
	users:  true,
	commit: 20 * time.Millisecond,
	change: 2 * time.Second,
	memory: 256, // 1,000 connections, and 256,000 replies
	run: func(ctx context.Context, t *target) {
		peers := t.each(ctx, t.n(1_000, 100), 64, "gone-", func(p *peer) {
			_ = p.requests(ctx, 256, 64, func(i int) []string { return []string{protocol.VerbSet, p.id, strconv.Itoa(i)} })
		})
		hangUp(peers...)
		sleep.For(ctx, t.duration/2)
	},
}}

// beServer serves a store on a file whose commits take some time more. The command tenure has no such
// option.
func beServer(t task) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	file, err := journal.Open(filepath.Join(t.Folder, "data"), journal.Options{})
	if err != nil {
		return err
	}
	defer file.Close()
	options := server.Options{Addr: "127.0.0.1:0", Journal: &slowJournal{file, t.Commit}}
	if t.Users {
		options.Authenticator = anyone{}
	}
	s, err := server.Open(ctx, options)
	if err != nil {
		return err
	}
	fmt.Printf("listening on mqtt://%v\n", s.Addr())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	tasks.Go(func() { // as the command does after a burst
		for ctx.Err() == nil {
			sleep.For(ctx, 5*time.Second)
			debug.FreeOSMemory()
		}
	})
	return s.Serve(ctx)
}

// anyone admits each user.
type anyone struct{}

// Authenticate implements access.Authenticator.
func (anyone) Authenticate(access.Credentials) error { return nil }

type slowJournal struct {
	statestore.Journal
	commit time.Duration
}

// Commit implements statestore.Journal.
func (j *slowJournal) Commit(ctx context.Context, batch []statestore.Group) error {
	sleep.For(ctx, j.commit)
	return j.Journal.Commit(ctx, batch)
}
