package lease_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	name = "press-7/active"
	ttl  = 2 * time.Second
)

// node is one process with a lease of its own.
type node struct {
	*lease.Lease
	client *transport.Client
	conn   *transporttest.Conn
}

// newNode returns a node whose tenures run on virtual time. Call it in a bubble.
func newNode(t *testing.T, store *transporttest.Store, id string, options lease.Options) node {
	t.Helper()
	client, conn := store.Client(t, id, transport.ClientOptions{})
	if options.TTL == 0 {
		options.TTL = ttl
	}
	if options.Clock == nil {
		options.Clock = lease.MonotonicClock()
	}
	l, err := lease.New(client, name, options)
	if err != nil {
		t.Fatal(err)
	}
	return node{Lease: l, client: client, conn: conn}
}

func (n node) mustAcquire(t *testing.T) *lease.Tenure {
	t.Helper()
	tenure, err := n.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

// inBubble runs a test in virtual time, with a store.
func inBubble(t *testing.T, test func(t *testing.T, store *transporttest.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, transporttest.Start(t)) })
}

// scripted makes decide, given the number of the request from 1 on, choose the
// fate of each request with the verb from now on. It returns how many there were.
func (n node) scripted(verb string, decide func(number int64) transporttest.Fault) (count func() int64) {
	var number atomic.Int64
	n.conn.SetFault(func(request transport.Request) transporttest.Fault {
		if !strings.Contains(string(request.Payload), "\r\n"+verb+"\r\n") {
			return transporttest.Fault{}
		}
		return decide(number.Add(1))
	})
	return number.Load
}

// always and harmless are fates for scripted.

func always(fault transporttest.Fault) func(int64) transporttest.Fault {
	return func(int64) transporttest.Fault { return fault }
}

var harmless = always(transporttest.Fault{})

// skewed is a clock on virtual time that can jump, as it does when a machine was
// suspended: no timer has fired and no goroutine has run.
type skewed struct{ by atomic.Int64 }

func (s *skewed) jump(by time.Duration) { s.by.Add(int64(by)) }

func (s *skewed) clock() lease.Clock {
	steady := lease.MonotonicClock()
	return func() time.Duration { return steady() + time.Duration(s.by.Load()) }
}

// acquireInBackground starts an Acquire and returns where its tenure arrives.
func acquireInBackground(ctx context.Context, t *testing.T, n node) <-chan *lease.Tenure {
	t.Helper()
	acquired := make(chan *lease.Tenure, 1)
	go func() {
		tenure, err := n.Acquire(ctx)
		if err != nil {
			t.Errorf("%s: %v", n.client.ClientID(), err)
		}
		acquired <- tenure
	}()
	return acquired
}

// allButWatches allows everything but to watch.
func allButWatches(_ string, verb statestore.Verb, _ string) bool {
	return verb != statestore.VerbKeyNotify
}
