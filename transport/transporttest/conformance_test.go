package transporttest_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestTheStoreInThisProcessFollowsTheProtocol(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { conform(t, func() *transporttest.Journal { return nil }) })
	t.Run("durable", func(t *testing.T) { conform(t, func() *transporttest.Journal { return new(transporttest.Journal) }) })
}

func conform(t *testing.T, journal func() *transporttest.Journal) {
	statestoretest.Run(t, func(t *testing.T, options statestore.Options, check func(*testing.T, statestoretest.Store)) {
		synctest.Test(t, func(t *testing.T) {
			store, err := transporttest.NewDurableStore(options, journal())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(store.Close)
			check(t, inProcess{store})
		})
	})
}

// inProcess is a store that is reached as the library's clients reach it.
type inProcess struct{ *transporttest.Store }

func (s inProcess) WallMillis() int64 { return time.Now().UnixMilli() }

func (s inProcess) Pass(d time.Duration) { time.Sleep(d) }

func (s inProcess) Connect(t testing.TB, clientID string) statestoretest.Client {
	c := &inProcessClient{t: t, store: s.Store, conn: s.Store.Connect(clientID)}
	c.conn.Start(storeconn.Events{Up: func() {}, Down: func(error) {}, Ended: func(error) {}, Notify: func(n transporttest.Notification) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.received = append(c.received, statestoretest.Notification{Key: n.Key, Payload: n.Payload, Version: n.Timestamp})
	}})
	t.Cleanup(func() { _ = c.conn.Close() })
	return c
}

type inProcessClient struct {
	t     testing.TB
	store *transporttest.Store
	conn  *transporttest.Conn

	mu       sync.Mutex
	received []statestoretest.Notification
}

func (c *inProcessClient) Do(request statestoretest.Request) (statestoretest.Reply, error) {
	timestamp, token, err := request.Texts()
	if err != nil {
		return statestoretest.Reply{}, err
	}
	c.store.Authorize(func(string, statestore.Verb, string) bool { return !request.Denied })
	reply, err := c.conn.RoundTrip(c.t.Context(), transporttest.Request{
		Payload:      request.Payload,
		Timestamp:    timestamp,
		FencingToken: token,
		Binding:      storeconn.Binding{Store: request.Store},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return statestoretest.Reply{Payload: reply.Payload, Version: reply.Timestamp}, nil
}

func (c *inProcessClient) Notifications(int) []statestoretest.Notification {
	synctest.Wait() // until all have arrived
	c.mu.Lock()
	defer c.mu.Unlock()
	received := c.received
	c.received = nil
	return received
}

func (c *inProcessClient) Drop() { _ = c.conn.Close() }
