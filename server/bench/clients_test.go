//go:build linux

package bench_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkClients measures clients of ours in one process that have nothing to do, idle ones and ones
// that hold a lease: the memory of this process for each, as BenchmarkConnections measures it of the
// server, which is a process of its own here too.
func BenchmarkClients(b *testing.B) {
	for _, holds := range []bool{false, true} {
		for _, count := range []int{1000, 5000} {
			b.Run(fmt.Sprintf("lease=%t/clients=%d", holds, count), func(b *testing.B) {
				for b.Loop() {
					measureClients(b, count, holds)
				}
				b.ReportMetric(0, "ns/op") // says nothing
			})
		}
	}
}

func measureClients(b *testing.B, count int, hold bool) {
	process := startServerProcess(b)
	newClient := func(id string) (*transport.Client, error) {
		client, err := transport.Dial(b.Context(), "mqtt://"+process.address, transport.Options{ClientID: id, KeepAlive: 10 * time.Second})
		if err != nil || !hold {
			return client, err
		}
		l, err := lease.New(client, "lease/"+id, lease.Options{TTL: time.Hour})
		if err == nil {
			_, err = l.TryAcquire(b.Context())
		}
		return client, err
	}
	clients := make([]*transport.Client, count+1)
	defer func() {
		var closing sync.WaitGroup
		for _, client := range clients {
			if client != nil {
				closing.Go(func() { _ = client.Close() })
			}
		}
		await.Done(closing.Wait)
	}()
	var err error
	if clients[count], err = newClient("the-first"); err != nil { // makes what all have in common
		b.Fatal(err)
	}
	before := usageOfProcess(b)
	connectAll(b, count, func(i int, id string) (err error) {
		clients[i], err = newClient(id)
		return err
	})
	// Watches are registered, and the goroutine that sends waits for two seconds at most before it ends.
	time.Sleep(4 * time.Second)
	after := usageOfProcess(b)
	runtime.KeepAlive(clients)
	after.report(b, before, count, "client")
}
