package integration_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// The keep-alive would notice the dead connections when their leases are over. They die at
// different times. In a long run the lease is long enough for a very busy machine.
func TestInvariant52ATenureOutlivesAHalfOpenTCPConnection(t *testing.T) {
	t.Parallel() // it waits nearly all the time
	ttl := 3 * time.Second
	if prerequisite.LongRun() {
		ttl = 10 * time.Second
	}
	address := testsupport.Start(t, server.Options{})
	var runs sync.WaitGroup
	for run := range 6 {
		through := testsupport.NewProxy(t, address)
		client := testsupport.Dial(t, through.Address(), transport.Options{ClientID: fmt.Sprint("node-", run), KeepAlive: 3 * ttl})
		l, err := lease.New(client, fmt.Sprint("lease-", run), lease.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		tenure, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		token, err := tenure.Token()
		if err != nil {
			t.Fatal(err)
		}
		runs.Go(func() {
			time.Sleep(time.Duration(run) * ttl / 10)
			through.Swallow()
			select {
			case <-tenure.Context().Done():
				t.Errorf("%d: it ended: %v", run, context.Cause(tenure.Context()))
				return
			case <-time.After(2 * ttl):
			}
			if got, err := tenure.Token(); err != nil || got != token {
				t.Errorf("%d: its token: %v, %v; want %v", run, got, err, token)
			}
			if status := client.Connection(); status.Connections < 2 {
				t.Errorf("%d: the dead connection is still the present one: %+v", run, status)
			}
		})
	}
	await.Done(runs.Wait)
}
