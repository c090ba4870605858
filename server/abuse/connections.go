package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks by clients that have not logged in, or with what a login says.
var connectionAttacks = []attack{{
	// It tries wrong passwords for the healthy user on eight connections at a time, as fast as it gets answers.
	name:   "password flood",
	costly: true,
	run: func(t *target) {
		ctx := t.lasting()
		concurrently(8, 8, func(worker int) {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("guess-%d-%d", worker, i)
				_, err := t.login(rawmqtt.Login{ID: id, User: healthyUser, Password: "wrong"})
				if !errors.Is(err, errRefused) {
					sleep.For(ctx, 5*time.Millisecond)
				}
			}
		})
	},
}, {
	// It opens 3,000 connections, sends on each the five bytes that announce a CONNECT of 1 MiB, and begins again
	// after a while.
	name: "five bytes",
	run: func(t *target) {
		// A runtime that gets fresh memory from the system need not touch it. What it uses
		// again it has to clear.
		for range 4 {
			round, cancel := context.WithTimeout(context.Background(), t.duration/4)
			t.keepConnecting(round, t.n(3_000), func(conn *net.TCPConn) {
				_, _ = conn.Write([]byte{0x10, 0xf0, 0xff, 0x3f, 0})
				_, _ = conn.Read(make([]byte, 1)) // ends with the connection
				sleep.For(round, 250*time.Millisecond)
			})
			cancel()
		}
	},
}, {
	// It connects, logs in and hangs up as fast as it can, with 16 connections at a time.
	name: "connection churn",
	run:  func(t *target) { t.again(t.lasting(), 16, "churn-", func(*peer) {}) },
}, {
	// It makes 300 logins that are refused, with client id and user name of 65,000 bytes.
	name:  "refused names of 64 KiB",
	users: true,
	run: func(t *target) {
		concurrently(t.n(300), 4, func(i int) {
			for _, size := range []int{32_000, 1_500} { // too large for a first packet of 8 KiB, and small enough
				name := fmt.Sprint(i, strings.Repeat("\u0080", size)) // a log writes each byte as four
				_, _ = t.login(rawmqtt.Login{ID: name, User: name, Password: "wrong"})
			}
		})
	},
}, {
	// It logs in on 2,000 connections with one client id.
	// Limit: no more than --max-clients stay open.
	name:  "one name on 2,000 connections",
	serve: []string{"--max-clients", "20"},
	run: func(t *target) {
		var open atomic.Int64
		var conns sync.WaitGroup
		for range t.n(2000) {
			p, err := t.connect(rawmqtt.Login{ID: "one"})
			t.need(err)
			conns.Go(func() {
				_ = p.Conn.SetReadDeadline(time.Now().Add(t.duration))
				if _, err := io.Copy(io.Discard, p.Input); errors.Is(err, os.ErrDeadlineExceeded) {
					open.Add(1)
				}
			})
		}
		conns.Wait()
		if open.Load() > 20 {
			t.breach("%d connections are open after %v", open.Load(), t.duration)
		}
	},
}, {
	// It logs in as "p", whose hex is the client id of another user, "70".
	// Limit: refused; "70" is still answered.
	name:  "colliding client ids",
	users: true,
	run: func(t *target) {
		victim := t.as("70")
		t.need(victim.subscribe(1, protocol.ResponseTopic("70")))
		_, err := t.login(rawmqtt.Login{ID: "p"})
		if lost := victim.ask(protocol.VerbGet, "key"); lost != nil || !errors.Is(err, errRefused) {
			t.breach("the login ends with %v; the request of the victim with %v", err, lost)
		}
	},
}, {
	// It logs in 500 clients with a Will of 4 KiB for one topic, which 20 clients read, and cuts them all at once,
	// again and again.
	name: "Wills of 500 clients",
	run: func(t *target) {
		t.each(20, 20, "reader-", func(p *peer) { t.need(p.subscribe(1, "wills")); p.drain() })
		will := &rawmqtt.Message{Topic: "wills", QoS: 1, Payload: make([]byte, 4<<10)}
		for ctx := t.lasting(); ctx.Err() == nil; {
			hangUp(t.eachOf(t.n(500), 1, rawmqtt.Login{ID: "will-", Will: will}, func(*peer) {})...)
		}
	},
}}
