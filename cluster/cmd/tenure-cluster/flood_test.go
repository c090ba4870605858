//go:build unix

package main_test

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// Connections without a certificate at the port of the members must not depose the active store.
func TestConnectionsWithoutACertificateDoNotDeposeTheActiveStore(t *testing.T) {
	prerequisite.Long(t, "it takes twenty seconds")
	const connections, duration = 1500, 12 * time.Second
	ours := etcdtest.NewAuthority(t)
	ours.Issue(t, "member")
	tr := startTrioWith(t, "https", peerFlags(ours, "member")...)
	client := tr.dial(t, "client")
	mustSet(t, client, "k", "before")

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var opened atomic.Int64
	var tasks sync.WaitGroup
	hello := clientHello(t)
	for i := range connections {
		tasks.Go(func() {
			for ctx.Err() == nil {
				opened.Add(replay(ctx, tr.peers[i%3], hello))
			}
		})
	}
	written, slowest := 0, time.Duration(0)
	for ctx.Err() == nil {
		began := time.Now()
		mustSet(t, client, "k", "during")
		slowest = max(slowest, time.Since(began))
		written++
		time.Sleep(20 * time.Millisecond)
	}
	await.Done(tasks.Wait)
	t.Logf("%d handshakes were begun; %d writes, the slowest took %v", opened.Load(), written, slowest)
	for i, store := range tr.stores {
		select {
		case line := <-store.lines:
			t.Errorf("store %d said %q meanwhile", i, line)
		default:
		}
	}
	mustHold(t, client, "k", "during")
}

// clientHello returns what a TLS client sends first.
func clientHello(t *testing.T) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	go func() {
		_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}).Handshake()
	}()
	hello := make([]byte, 16<<10)
	_ = server.SetDeadline(time.Now().Add(await.Patience))
	n, err := server.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	return hello[:n]
}

// replay sends a ClientHello, which costs nothing, and waits for the answer, which costs a processor
// some time. It returns 1 if there was one.
func replay(ctx context.Context, address string, hello []byte) int64 {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return 0
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := conn.Write(hello); err != nil {
		return 0
	}
	if _, err := conn.Read(make([]byte, 4<<10)); err != nil {
		return 0
	}
	return 1
}
