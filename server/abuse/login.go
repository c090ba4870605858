package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks by clients that have not logged in, or cannot.
var loginAttacks = []attack{{
	name:   "password flood",
	what:   "tries wrong passwords for the healthy user on eight connections at a time, as fast as it gets answers.",
	costly: true,
	run: func(ctx context.Context, t *target) {
		ctx = t.lasting(ctx)
		var tries atomic.Int64
		concurrently(8, 8, func(worker int) {
			for ctx.Err() == nil {
				p, err := t.login(ctx, rawmqtt.Login{ClientID: "guess-" + strconv.FormatInt(tries.Add(1), 10), User: healthyUser, Password: "wrong"})
				if err == nil {
					hangUp(p)
				} else if !errors.Is(err, errRefused) {
					sleep.For(ctx, 5*time.Millisecond)
				}
			}
		})
	},
}, {
	name:   "half-open logins",
	what:   "sends 500 logins with a victim's client id and a wrong password, and leaves; the victim then logs in.",
	limit:  "victim is in within 2 s",
	costly: true,
	run: func(ctx context.Context, t *target) {
		for range t.n(500, 50) {
			p, err := t.connect(ctx, rawmqtt.Login{ClientID: "victim", User: malloryUser, Password: "wrong"})
			if err != nil {
				continue
			}
			// Closing at once with a reset would take back what has not been read.
			_ = p.Conn.(*net.TCPConn).SetLinger(-1)
			hangUp(p)
		}
		t.admits(ctx, rawmqtt.Login{ClientID: "victim", User: healthyUser, Password: healthyPassword}, 2*time.Second)
	},
}, {
	name: "five bytes",
	what: "opens 3,000 connections, sends on each the five bytes that announce a CONNECT of 1 MiB, and begins again after a while.",
	run: func(ctx context.Context, t *target) {
		// A runtime that gets fresh memory from the system need not touch it. What it uses
		// again it has to clear.
		for range 4 {
			round, cancel := context.WithTimeout(ctx, t.duration/4)
			t.holdSilent(round, t.n(3_000, 300), []byte{0x10, 0xf0, 0xff, 0x3f, 0})
			cancel()
		}
	},
}, {
	name:  "slow CONNECT",
	what:  "sends CONNECT on 100 connections, one byte a second.",
	limit: "connections end within 5 s (+ 2)",
	run: func(ctx context.Context, t *target) {
		packet := rawmqtt.Login{ClientID: strings.Repeat("slow", 100)}.Packet()
		within := min(7*time.Second, t.duration)
		var open atomic.Int64
		concurrently(t.n(100, 20), 100, func(int) {
			conn, err := t.dial(ctx)
			if err != nil {
				return
			}
			defer conn.Close()
			begin := time.Now()
			for i := 0; time.Since(begin) < within; i++ {
				_ = conn.SetWriteDeadline(time.Now().Add(writeWithin))
				if _, err := conn.Write(packet[i : i+1]); err != nil {
					return
				}
				if sleep.For(ctx, time.Second); ctx.Err() != nil {
					return
				}
			}
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				open.Add(1)
			}
		})
		if n := open.Load(); n > 0 && within == 7*time.Second {
			t.breach("%d connections are open after %v", n, within)
		}
	},
}, {
	name:  "refused names of 64 KiB",
	what:  "makes 300 logins that are refused, with client id and user name of 65,000 bytes.",
	users: true,
	run: func(ctx context.Context, t *target) {
		long := strings.Repeat("\x01", 65_000) // a log writes each byte as four
		concurrently(t.n(300, 100), 4, func(i int) {
			name := strconv.Itoa(i)
			_, _ = t.login(ctx, rawmqtt.Login{ClientID: name + strings.Repeat("\u0080", 32_000), User: long[len(name):] + name, Password: "wrong"})
			// Small enough for a first packet of 8 KiB:
			_, _ = t.login(ctx, rawmqtt.Login{ClientID: name + strings.Repeat("\u0080", 1_500), User: strings.Repeat("\u0080", 1_500) + name, Password: "wrong"})
		})
	},
}, {
	name: "connection churn",
	what: "connects, logs in and hangs up as fast as it can, with 16 connections at a time.",
	run: func(ctx context.Context, t *target) {
		ctx = t.lasting(ctx)
		concurrently(16, 16, func(worker int) {
			for i := 0; ctx.Err() == nil; i++ {
				if p, err := t.login(ctx, rawmqtt.Login{ClientID: fmt.Sprintf("churn-%d-%d", worker, i)}); err == nil {
					hangUp(p)
				} else {
					sleep.For(ctx, 5*time.Millisecond)
				}
			}
		})
	},
}, {
	name:  "file descriptors",
	what:  "opens more connections than the server may have file descriptors (256), and holds them.",
	limit: "a client can log in within 6 s of the end",
	files: 256,
	run: func(ctx context.Context, t *target) {
		t.holdSilent(t.lasting(ctx), 400, nil)
		t.admits(ctx, rawmqtt.Login{ClientID: "after"}, 6*time.Second)
	},
}, {
	name:  "keep-alive 65535",
	what:  "asks for a keep-alive of 18 hours.",
	limit: "Server Keep Alive of 300 s at most",
	run: func(ctx context.Context, t *target) {
		p, err := t.login(ctx, rawmqtt.Login{ClientID: "patient", KeepAlive: 65535})
		if errors.Is(err, errRefused) {
			return
		}
		t.need(err)
		keepAlive := uint32(0)
		var properties mqtt.Properties
		in := mqtt.Reader(p.connack[2:])
		const all = ^mqtt.PropertySet(0)
		refusal := properties.Each(&in, all, &mqtt.Limits{}, func(property mqtt.Property) *mqtt.Refusal {
			if property.Identifier == packets.PropServerKeepAlive {
				keepAlive = property.Number
			}
			return nil
		})
		if refusal != nil {
			t.need(refusal)
		}
		if keepAlive == 0 || keepAlive > 300 {
			t.breach("Server Keep Alive is %d", keepAlive)
		}
	},
}}

// holdSilent opens connections, sends a few bytes on each, and holds them until ctx ends.
// It replaces each connection that the server closes.
func (t *target) holdSilent(ctx context.Context, n int, opening []byte) {
	concurrently(n, n, func(int) {
		for ctx.Err() == nil {
			conn, err := t.dial(ctx)
			if err != nil {
				sleep.For(ctx, 100*time.Millisecond)
				continue
			}
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			_ = conn.SetWriteDeadline(time.Now().Add(writeWithin))
			_, _ = conn.Write(opening)
			_, _ = conn.Read(make([]byte, 1)) // ends with the connection
			stop()
			_ = conn.Close()
			sleep.For(ctx, 250*time.Millisecond)
		}
	})
}

// admits returns a breach if a login does not succeed in time.
func (t *target) admits(ctx context.Context, login rawmqtt.Login, within time.Duration) {
	begin := time.Now()
	var err error
	for ctx.Err() == nil {
		var p *peer
		if p, err = t.login(ctx, login); err == nil {
			hangUp(p)
			break
		}
		sleep.For(ctx, 50*time.Millisecond)
	}
	if took := time.Since(begin); err != nil || took > t.within(within) {
		t.breach("the login of %s took %.1f s (%v)", login.ClientID, took.Seconds(), err)
	}
}
