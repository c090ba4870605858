package transport

import (
	"bytes"
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fickleConn is a connection to a store that has a new identity in each reply while it is fickle.
type fickleConn struct {
	fickle     atomic.Bool
	identity   atomic.Int64
	registered atomic.Int64 // requests to watch a key
	latest     atomic.Int64 // the identity of the latest answer to one
}

func (c *fickleConn) ClientID() string    { return "fickle" }
func (c *fickleConn) Start(events Events) { events.Up() }
func (c *fickleConn) Close() error        { return nil }

func (c *fickleConn) RoundTrip(_ context.Context, request Request) (Reply, error) {
	identity := c.identity.Load()
	if c.fickle.Load() {
		identity = c.identity.Add(1)
	}
	reply := Reply{Payload: []byte("$-1\r\n"), Store: strconv.FormatInt(identity, 10)}
	if bytes.Contains(request.Payload, []byte("KEYNOTIFY")) {
		c.registered.Add(1)
		c.latest.Store(identity)
		reply.Payload = []byte("+OK\r\n")
	}
	return reply, nil
}

// awake returns how many registrations do something, or are about to.
func awake(client *Client) (count int) {
	client.mu.Lock()
	defer client.mu.Unlock()
	for _, r := range client.watched {
		if r.state != waiting {
			count++
		}
	}
	return count
}

func TestAStoreThatChangesWithEachReplyCostsNoLookAtEachWatchEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &fickleConn{}
		client, err := NewClient(conn, ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		const watches, seconds = 100, 20
		for i := range watches {
			if _, err := client.Watch(strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * leastRepeat)
		conn.registered.Store(0)
		conn.fickle.Store(true)
		woken := 0
		for range seconds * 50 {
			if _, err := client.Get(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
			woken += awake(client)
			time.Sleep(leastRepeat / 50)
		}
		conn.fickle.Store(false)
		if limit := watches * (seconds + 2); woken > limit || conn.registered.Load() > int64(limit) {
			t.Errorf("%d looks at watches and %d registrations within %d s; want %d at most", woken, conn.registered.Load(), seconds, limit)
		}
		conn.registered.Store(0)
		time.Sleep(3 * leastRepeat)
		if got := conn.registered.Load(); got < watches || conn.latest.Load() != conn.identity.Load() {
			t.Errorf("after the last change %d of %d watches are registered again, at the store %d; the present one is %d",
				got, watches, conn.latest.Load(), conn.identity.Load())
		}
	})
}
