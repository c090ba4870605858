package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Attacks on the buffers of sockets.
var socketAttacks = []attack{{
	name:   "deaf sockets",
	what:   "has 90 clients subscribe and not read, and publishes 4 MiB in messages of 64 KiB to each.",
	limit:  "the kernel holds less than 300 KiB for a client",
	serve:  []string{"--max-memory", "64MiB"},
	memory: 96,
	run: func(ctx context.Context, t *target) {
		peers := t.logins(ctx, t.n(90, 20), named("deaf-"))
		concurrently(len(peers), 8, func(i int) {
			_ = peers[i].Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
			_, _ = peers[i].subscribe(0, "deaf")
		})
		publisher := t.as(ctx, "publisher")
		publisher.drain()
		for range 64 {
			if publisher.send(rawmqtt.Message{Topic: "deaf", Payload: make([]byte, 64<<10)}.Packet()) != nil {
				break
			}
			sleep.For(ctx, 10*time.Millisecond) // the server writes it meanwhile
		}
		held, clients := unsent(t.address)
		sleep.For(ctx, t.duration)
		if clients > 0 && held/clients > 300<<10 {
			t.breach("the kernel held %d KiB for %d clients that did not read", held>>10, clients)
		}
	},
}}

// unsent returns how many bytes the kernel holds for peers of an IPv4 address that do not read, and for
// how many. Other systems than Linux do not say: there it returns zeros.
func unsent(address string) (held, peers int64) {
	_, port, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port)
	table, _ := os.ReadFile("/proc/net/tcp") // empty elsewhere
	for line := range bytes.Lines(table) {
		fields := strings.Fields(string(line)) // of proc(5): the number, the local and the remote address, the state, the queues
		if len(fields) < 5 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", number)) {
			continue
		}
		queue, _, _ := strings.Cut(fields[4], ":")
		if n, err := strconv.ParseInt(queue, 16, 64); err == nil && n > 0 {
			held += n
			peers++
		}
	}
	return held, peers
}
