package server_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// Maps and pools keep their size after the first clients. Others, with new client ids, must not add to that.
func TestClientsThatComeAndGoLeaveNothingBehind(t *testing.T) {
	const clients, growth = 300, 2 << 20
	address, s := testsupport.StartServer(t, server.Options{MaxUnauthenticated: 4096})
	load := func(name string) {
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				c, err := testsupport.TryDialPacketClient(address, fmt.Sprint(name, i/2), nil) // half of them are taken over
				for n, words := range [][]string{{"KEYNOTIFY", "hot"}, {"SET", "hot", name}, {"GET", name}} {
					if err == nil {
						_ = c.Do(n, nil, testsupport.Exchange{Words: words})
					}
				}
				switch {
				case err != nil:
				case i%3 == 0:
					_ = c.Disconnect()
				default:
					c.Reset()
				}
			})
		}
		await.Done(group.Wait)
		mustBeEmpty(t, s)
	}
	load("first")
	before, heap := runtime.NumGoroutine(), testsupport.HeapInUse()
	load("second")
	testsupport.MustEndGoroutines(t, before)
	if grown := int64(testsupport.HeapInUse()) - int64(heap); grown > growth {
		t.Errorf("%d KiB are left", grown>>10)
	}
	if left := s.Usage().Store.Watches; left > 0 {
		t.Errorf("%d watches are left", left)
	}
}

// mustBeEmpty waits until the server has no client.
func mustBeEmpty(t *testing.T, s *server.Server) {
	t.Helper()
	testsupport.Eventually(t, "the server knows of no client", func() bool {
		return s.Sockets() == 0 && s.Stats().Connected == 0 && s.Clients() == 0
	})
	if usage := s.Usage(); usage.Subscriptions != 0 || usage.Sessions != 0 || usage.OutgoingBytes != 0 || usage.WaitingBytes != 0 {
		t.Errorf("the server still holds %+v", usage)
	}
}

// The reader of a connection waits when as many replies wait as the client may have requests in
// flight; it reads on after the commit.
func TestManyClientsWhoseRepliesWaitStayWithinTheBounds(t *testing.T) {
	t.Parallel()
	const each, window = 24, 8
	clients := 1000
	if testsupport.UnderRace {
		clients = 200
	}
	d := startDurable(t, server.Options{
		Store:  statestore.Options{DedupWindow: window},
		Limits: server.Limits{AllOutgoingBytes: 64 << 20},
	})
	all := make([]*testsupport.PacketClient, clients)
	for i := range all {
		all[i] = testsupport.DialPacketClient(t, d.address, fmt.Sprintf("c%d", i), nil)
	}
	requests := make([]testsupport.Exchange, each)
	for i := range requests {
		requests[i] = testsupport.Exchange{Words: []string{"SET", fmt.Sprint(i), "v"}, Want: "+OK\r\n"}
	}
	release := d.journal.Hold()
	defer release()
	for _, c := range all {
		if err := c.SendRequests(0, nil, requests...); err != nil {
			t.Fatal(err)
		}
	}
	var most int64
	full := func() bool {
		most = max(most, d.server.Usage().OutgoingBytes)
		return most >= int64(clients*window*512)
	}
	testsupport.Eventually(t, "replies of all connections wait", full)
	for range 20 {
		time.Sleep(10 * time.Millisecond)
		full()
	}
	if most > int64(clients*window*640) { // a reply counts for its topic and 512 bytes
		t.Errorf("%d bytes wait for %d replies of %d clients", most, window, clients)
	}
	release()
	for _, c := range all {
		c.ExtendDeadline()
		if err := c.ReadReplies(0, requests...); err != nil {
			t.Fatal(err)
		}
	}
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
}

// Long values count while they wait for a commit: a client cannot make the server hold 256 of them.
func TestLongRepliesThatWaitAreBounded(t *testing.T) {
	const limit = 1 << 20
	d := startDurable(t, server.Options{Limits: server.Limits{OutgoingBytes: limit}})
	p := testsupport.DialPacketClient(t, d.address, "p", nil)
	value := strings.Repeat("v", 100<<10)
	requests := []testsupport.Exchange{{Words: []string{"SET", "k", value}, Want: "+OK\r\n"}}
	for range 100 {
		requests = append(requests, testsupport.Exchange{Words: []string{"GET", "k"}, Want: fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)})
	}
	release := d.journal.Hold()
	defer release()
	if err := p.SendRequests(0, nil, requests...); err != nil {
		t.Fatal(err)
	}
	var most int64
	testsupport.Eventually(t, "some replies wait", func() bool { most = max(most, d.server.Usage().OutgoingBytes); return most > limit/4 })
	other := testsupport.Connect(t, d.address, "other", nil)
	for range 20 {
		other.MustGet("another key", "")
		most = max(most, d.server.Usage().OutgoingBytes)
	}
	if most > limit/2+int64(len(value)) {
		t.Errorf("%d bytes wait for a client, above half of the limit of %d and a value", most, limit)
	}
	release()
	if err := p.ReadReplies(0, requests...); err != nil {
		t.Fatal(err)
	}
}

// A value is a part of the memory of its key, so a reply that waits keeps both, though the key is gone.
func TestAReplyThatWaitsCountsForItsKey(t *testing.T) {
	const gets = 4
	d := startDurable(t, server.Options{})
	p := testsupport.DialPacketClient(t, d.address, "p", nil)
	key := strings.Repeat("k", 100<<10)
	requests := []testsupport.Exchange{{Words: []string{"SET", key, ""}, Want: "+OK\r\n"}}
	for range gets {
		requests = append(requests, testsupport.Exchange{Words: []string{"GET", key}, Want: "$0\r\n\r\n"})
	}
	requests = append(requests, testsupport.Exchange{Words: []string{"DEL", key}, Want: ":1\r\n"})
	release := d.journal.Hold()
	defer release()
	if err := p.SendRequests(0, nil, requests...); err != nil {
		t.Fatal(err)
	}
	testsupport.Eventually(t, "the values that wait count with their keys", func() bool {
		return d.server.Usage().OutgoingBytes >= gets*int64(len(key))
	})
	release()
	if err := p.ReadReplies(0, requests...); err != nil {
		t.Fatal(err)
	}
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
}

func TestAReplyLargerThanTheLimitsLeavesAfterItsCommit(t *testing.T) {
	d := startDurable(t, server.Options{Limits: server.Limits{OutgoingBytes: 16 << 10, AllOutgoingBytes: 16 << 10}})
	p := testsupport.Connect(t, d.address, "p", nil)
	value := strings.Repeat("v", 100<<10)
	release := d.journal.Hold()
	defer release()
	set := p.SendRequest("SET", "k", value)
	d.journal.MustBeCommitting(t)
	get := p.Request("GET", "k")
	acknowledged := make(chan error, 1)
	go func() { _, err := p.Publish(get); acknowledged <- err }() // PUBACK waits for room
	await.Done(func() { time.Sleep(20 * time.Millisecond) })
	release()
	if err := await.Receive(acknowledged); err != nil {
		t.Fatal(err)
	}
	p.MustBeAnswered(set, "+OK\r\n")
	p.MustBeAnswered(get, fmt.Sprintf("$%d\r\n%s\r\n", len(value), value))
}

func TestAClientThatDoesNotReadItsRepliesIsDisconnectedAfterTheCommit(t *testing.T) {
	t.Parallel()
	d := startDurable(t, server.Options{})
	stuck := testsupport.DialRaw(t, d.address, "stuck").ShrinkReadBuffer()
	release := d.journal.Hold()
	defer release()
	value := strings.Repeat("v", 64<<10)
	go func() { // the server stops reading
		stuck.Write(testsupport.PacketOf(t, stuck.Request("SET", "k", value)))
		for range 10_000 {
			if _, err := stuck.Conn.Write(testsupport.PacketOf(t, stuck.Request("GET", "k"))); err != nil {
				return
			}
		}
	}()
	d.journal.MustBeCommitting(t)
	release()
	testsupport.Eventually(t, "the client is disconnected", func() bool { return d.server.Stats().SlowReaders == 1 })
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
	testsupport.Connect(t, d.address, "p", nil).MustGet("k", value)
}

func TestAClientThatLeavesWhileItsRepliesWaitLeavesNothingBehind(t *testing.T) {
	d := startDurable(t, server.Options{})
	release := d.journal.Hold()
	defer release()
	for range 50 {
		p := testsupport.DialPacketClient(t, d.address, "p", nil)
		if err := p.SendRequests(0, nil, testsupport.Exchange{Words: []string{"SET", "k", "v"}}, testsupport.Exchange{Words: []string{"GET", "k"}}); err != nil {
			t.Fatal(err)
		}
		if packet, err := p.Receive(); err != nil || packet.Type != packets.PUBACK {
			t.Fatalf("%v, %v; want PUBACK", packet, err)
		}
		p.Reset()
	}
	next := testsupport.Connect(t, d.address, "p", nil) // does not wait for the commit
	if d.server.Usage().OutgoingBytes == 0 {
		t.Error("replies that wait for a commit count for nothing")
	}
	release()
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
	next.MustGet("k", "v")
	if len(next.Received) > 0 {
		t.Error("a connection got a reply to its predecessor")
	}
}
