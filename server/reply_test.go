package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// The reader of a connection waits when as many replies wait as the client may have requests in
// flight; it reads on after the commit.
func TestManyClientsWhoseRepliesWaitStayWithinTheBounds(t *testing.T) {
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

// Long values count before they are queued: a client cannot make the server hold 256 of them.
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
	if most > limit/2 {
		t.Errorf("%d bytes wait for a client, above half of the limit of %d", most, limit)
	}
	release()
	if err := p.ReadReplies(0, requests...); err != nil {
		t.Fatal(err)
	}
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
