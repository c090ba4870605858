package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

func TestANegativeLimitIsRefusedByItsName(t *testing.T) {
	limits := reflect.TypeFor[Limits]()
	for field := range limits.NumField() {
		var o Options
		reflect.ValueOf(&o.Limits).Elem().Field(field).SetInt(-1)
		name := "Options.Limits." + limits.Field(field).Name + " "
		if err := o.complete(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s-1: %v", name, err)
		}
	}
	for name, o := range map[string]Options{
		"Options.MaxMemory ":  {MaxMemory: -1},
		"Options.MaxClients ": {MaxClients: -1},
	} {
		if err := o.complete(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s-1: %v", name, err)
		}
	}
}

func TestTooLittleMemoryIsRefused(t *testing.T) {
	for memory, ok := range map[int64]bool{1: false, 32<<20 - 1: false, 32 << 20: true} {
		o := Options{MaxMemory: memory}
		if err := o.complete(); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "Options.MaxMemory") {
			t.Errorf("MaxMemory %d: %v", memory, err)
		}
	}
}

func TestLimitsFollowFromMaxMemory(t *testing.T) {
	const mebibyte = 1 << 20
	for name, test := range map[string]struct {
		memory int64
		clients,
		keys int
		keyBytes, outgoing, allOutgoing, session, allSessions, watches, subscriptions int64
	}{
		"no limit": {0, 10_000, 0, 0, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte, 256 * mebibyte, 256 * mebibyte},
		"32 MiB": {32 * mebibyte, 51, 8 << 10, 8 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte,
			2 * mebibyte},
		"64 MiB": {64 * mebibyte, 102, 16 << 10, 16 * mebibyte, 8 * mebibyte, 8 * mebibyte, 4 * mebibyte, 8 * mebibyte, 8 * mebibyte,
			4 * mebibyte},
		"512 MiB": {512 * mebibyte, 819, 128 << 10, 128 * mebibyte, 8 * mebibyte, 64 * mebibyte, 4 * mebibyte, 64 * mebibyte, 64 * mebibyte,
			32 * mebibyte},
		"8 GiB": {8 << 30, 10_000, 2 << 20, 2 << 30, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte, 256 * mebibyte,
			256 * mebibyte},
		"all that can be said": {math.MaxInt64, 10_000, math.MaxInt32, math.MaxInt64 / 4, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte,
			256 * mebibyte, 256 * mebibyte},
	} {
		o := Options{MaxMemory: test.memory}
		if err := o.complete(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for what, got := range map[string][2]int64{
			"MaxClients":              {int64(o.MaxClients), int64(test.clients)},
			"Store.MaxKeys":           {int64(o.Store.MaxKeys), int64(test.keys)},
			"Store.MaxBytes":          {o.Store.MaxBytes, test.keyBytes},
			"OutgoingBytes":           {o.Limits.OutgoingBytes, test.outgoing},
			"AllOutgoingBytes":        {o.Limits.AllOutgoingBytes, test.allOutgoing},
			"SessionBytes":            {o.Limits.SessionBytes, test.session},
			"AllSessionBytes":         {o.Limits.AllSessionBytes, test.allSessions},
			"SessionMessages":         {int64(o.Limits.SessionMessages), 10_000},
			"Subscriptions":           {int64(o.Limits.Subscriptions), 1000},
			"AllSubscriptionBytes":    {o.Limits.AllSubscriptionBytes, test.subscriptions},
			"SessionsPerUser":         {int64(o.Limits.SessionsPerUser), 100},
			"Store.MaxAllWatchBytes":  {o.Store.MaxAllWatchBytes, test.watches},
			"Store.MaxWatchBytes":     {o.Store.MaxWatchBytes, min(4*mebibyte, test.watches)},
			"Store.MaxWatches":        {int64(o.Store.MaxWatches), 10_000},
			"Store.DedupWindow":       {int64(o.Store.DedupWindow), statestore.DefaultDedupWindow},
			"MaxPacketSize unchanged": {int64(o.MaxPacketSize), mebibyte},
		} {
			if got[0] != got[1] {
				t.Errorf("%s: %s is %d, want %d", name, what, got[0], got[1])
			}
		}
	}
}

func TestAnExplicitLimitIsNotChanged(t *testing.T) {
	set := Options{
		MaxMemory:  64 << 20,
		MaxClients: 7,
		Store: statestore.Options{
			MaxKeys: 8, MaxBytes: 1 << 40, MaxWatches: 9, MaxWatchBytes: 10, MaxAllWatchBytes: 11, DedupWindow: 12,
		},
	}
	limits := reflect.ValueOf(&set.Limits).Elem()
	for field := range limits.NumField() {
		limits.Field(field).SetInt(int64(100 + field))
	}
	got := set
	if err := got.complete(); err != nil {
		t.Fatal(err)
	}
	if got.Limits != set.Limits || got.MaxClients != set.MaxClients || !reflect.DeepEqual(got.Store, set.Store) {
		t.Errorf("of\n%+v\nthis was made:\n%+v", set, got)
	}
}

func TestALargeDedupWindowLeavesRoomForAClient(t *testing.T) {
	o := Options{MaxMemory: 32 << 20, Store: statestore.Options{DedupWindow: 1<<16 - 1}}
	if err := o.complete(); err != nil || o.MaxClients != 1 {
		t.Errorf("%d clients, %v", o.MaxClients, err)
	}
}

func TestAnInvalidDedupWindowIsRefused(t *testing.T) {
	for _, window := range []int{-1, -384, math.MinInt, 1 << 16, math.MaxInt} {
		s, err := New(Options{Addr: "127.0.0.1:0", MaxMemory: 64 << 20, Store: statestore.Options{DedupWindow: window}})
		if err == nil {
			_ = s.Close()
			t.Errorf("%d was accepted", window)
		}
	}
}

func noSession(string) bool { return false }

// The next connection may not be admitted, so it has no claim until it has made one.
func TestAClaimDoesNotPassToTheConnectionThatWaits(t *testing.T) {
	n := newClientIDs()
	release, err := n.lock(t.Context(), "p", "alice")
	if err != nil || !n.claim("p", noSession) {
		t.Fatalf("the client id is not free: %v", err)
	}
	if !n.collides("70", noSession) {
		t.Error("the claim is not seen")
	}
	turn, err := n.queue("p", "alice")
	if err != nil || turn == nil {
		t.Fatalf("the next connection does not wait: %v", err)
	}
	release()
	if !await.Receive(turn) {
		t.Fatal("the turn of the next connection does not come")
	}
	if n.collides("70", noSession) {
		t.Error("the claim of a connection outlives it")
	}
	n.unlock("p")
	if len(n.locked) != 0 {
		t.Error("the client id is taken by no connection")
	}
}

func TestOneConnectionAtATimeHasAClientID(t *testing.T) {
	n := newClientIDs()
	var inside, got, gaveUp atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 500 {
				// Some give up when their turn is about to come.
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration((i+j)%5)*10*time.Microsecond)
				release, err := n.lock(ctx, "p", "alice")
				cancel()
				if err != nil {
					gaveUp.Add(1)
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two connections have taken one client id")
				}
				got.Add(1)
				time.Sleep(time.Microsecond)
				inside.Add(-1)
				release()
			}
		})
	}
	await.Done(all.Wait)
	if got.Load() == 0 || gaveUp.Load() == 0 {
		t.Errorf("%d took it, %d gave up: nothing is tested", got.Load(), gaveUp.Load())
	}
	if len(n.locked) != 0 {
		t.Error("the client id is taken by no connection")
	}
}

// A thousand connections that end at once have a thousand Wills, and each may match very many subscriptions.
func TestInvariant57WillsArePublishedInTurns(t *testing.T) {
	lost := errors.New("the connection was lost")
	ends := func(conn *connection) {
		conn.ended = lost
		_ = conn.settleWill()
	}
	// away returns what is done to the client when it has left, with its Will delayed.
	away := func(do func(s *Server, now time.Time)) func(*connection) {
		return func(conn *connection) {
			conn.gate.SessionExpiry, conn.ordinaryWill.delay = 60, time.Second
			ends(conn)
			conn.server.endConnection(conn)
			do(conn.server, time.Now().Add(time.Hour))
		}
	}
	for _, test := range []struct {
		name    string
		publish func(conn *connection)
	}{
		{"when the connection ends", ends},
		{"when its delay is over", away((*Server).publishDueWills)},
		{"when its session expires", away((*Server).endSessions)},
		{"when its client begins a new session", away(func(s *Server, _ time.Time) {
			next := s.newConnection(new(sink))
			next.identity.Client = "p"
			s.enter(next, true)
		})},
		{"when its session is not kept", func(conn *connection) {
			conn.gate.SessionExpiry, conn.ordinaryWill.delay = 60, time.Second
			conn.server.options.Limits.SessionsPerUser = 0
			ends(conn)
			conn.server.endConnection(conn)
		}},
		{"the reply to a request", func(conn *connection) {
			conn.ordinaryWill = nil
			refused := conn.server.setWillRequest(conn, &mqtt.Publish{
				Topic: []byte(protocol.InvokeTopic), QoS: 1, ResponseTopic: []byte("t"), CorrelationData: []byte("c"),
				Payload: []byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
			})
			if refused != nil {
				t.Error(refused)
			}
			ends(conn)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Options{Listener: deafListener{}})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				s.processors = fairqueue.New(1)
				s.willReplies.turn = s.processors.NewPlace()
				const subscriptions, step = 200, fairqueue.Budget / 10
				offered := 0
				for i := range subscriptions {
					session := s.messages.Session(fmt.Sprint(i))
					if err := session.Subscribe(pubsub.Subscription{Filter: "t", QoS: 1}); err != nil {
						t.Fatal(err)
					}
					session.Attach(pubsub.Receiver{Link: freeLink{}, MQTT5: true, ReceiveMaximum: 1, MayRead: func(string) bool {
						offered++
						time.Sleep(step)
						return true
					}})
				}
				conn := s.newConnection(new(sink))
				conn.identity = access.Identity{Client: "p"}
				conn.gate.Version = mqtt.Version5
				setOrdinaryWill(conn, &mqtt.Publish{Topic: []byte("t"), QoS: 1, Payload: []byte("gone")})
				s.enter(conn, true)

				other := s.processors.NewPlace()
				other.Begin()
				over := make(chan struct{})
				go func() {
					defer close(over)
					test.publish(conn)
				}()
				synctest.Wait()
				if offered > 0 {
					t.Error("it does not wait for a turn")
				}
				other.End()
				synctest.Wait()
				other.Begin()
				if offered == 0 || offered == subscriptions {
					t.Errorf("another has its turn when %d of %d clients were offered the Will", offered, subscriptions)
				}
				other.End()
				await.Receive(over)
				time.Sleep(time.Second) // a goroutine publishes the reply
				synctest.Wait()
				if offered != subscriptions {
					t.Errorf("%d of %d clients were offered the Will", offered, subscriptions)
				}
				began := time.Now()
				if other.Begin(); time.Since(began) > 0 {
					t.Error("its turn does not end")
				}
				other.End()
			})
		})
	}
}

// deafListener accepts nothing.
type deafListener struct{}

func (deafListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (deafListener) Close() error              { return nil }
func (deafListener) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// freeLink is a link with room for everything, which sends nothing.
type freeLink struct{}

func (freeLink) Wake()            {}
func (freeLink) Reserve(int) bool { return true }
func (freeLink) Release(int)      {}
