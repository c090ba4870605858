package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// pass publishes the Wills that are due after some seconds.
func pass(s *server.Server, seconds uint32) {
	s.PublishDueWills(time.Now().Add(time.Duration(seconds) * time.Second))
}

func TestAnOrdinaryWillIsPublishedAfterItsDelay(t *testing.T) {
	t.Parallel()
	const long = 600
	type ending = func(*testing.T, string, *server.Server, *testsupport.RawClient)
	back := func(h testsupport.ConnectPacket) ending {
		return func(t *testing.T, address string, s *server.Server, c *testsupport.RawClient) {
			_ = c.Conn.Close()
			testsupport.MustHaveClients(t, s, 1)
			h.ID = "p"
			h.Connect(t, address)
		}
	}
	lost := func(t *testing.T, _ string, s *server.Server, c *testsupport.RawClient) {
		_ = c.Conn.Close()
		testsupport.MustHaveClients(t, s, 1)
	}
	says := func(packet ...byte) ending {
		return func(t *testing.T, _ string, s *server.Server, c *testsupport.RawClient) {
			c.Write(packet)
			c.MustBeClosed()
			testsupport.MustHaveClients(t, s, 1)
		}
	}
	for _, test := range []struct {
		name   string
		delay  uint32
		expiry uint32
		end    ending // returns when p is forgotten, or is back
		want   bool
	}{
		{"without a delay", 0, long, lost, true},
		{"after its delay", 1, long, lost, true},
		{"not before its delay", long + 1, long, lost, false},
		{"not when the client is back", long, long, back(testsupport.ConnectPacket{Resume: true, Expiry: long}), false},
		{"when the client begins a new session", 2 * long, long, back(testsupport.ConnectPacket{Expiry: long}), true},
		{"when the session ends with the connection", 2 * long, 0, lost, true},
		{"when the session ends before the delay", 2 * long, 1, lost, true},
		{"not after a DISCONNECT", 0, long, says(0xe0, 0), false},
		{"not after a DISCONNECT with a delay", long, long, says(0xe0, 0), false},
		{"after a DISCONNECT with Will", 0, long, says(0xe0, 1, 4), true},
		{"after a DISCONNECT with Will and a delay", long, long, says(0xe0, 1, 4), true},
		{"after a DISCONNECT that ends the session", 2 * long, long, says(0xe0, 7, 4, 5, packets.PropSessionExpiryInterval, 0, 0, 0, 0), true},
		{"when the server sends the client away", 0, long, says(rawmqtt.Message{Topic: "t", Retain: true}.Packet()...), true},
		{"when the client is taken over", 0, long, func(t *testing.T, address string, _ *server.Server, _ *testsupport.RawClient) {
			testsupport.ConnectPacket{ID: "p", Resume: true, Expiry: long}.Connect(t, address)
		}, true},
		{"not when it is taken over and has a delay", long, long, func(t *testing.T, address string, _ *server.Server, _ *testsupport.RawClient) {
			testsupport.ConnectPacket{ID: "p", Resume: true, Expiry: long}.Connect(t, address)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{})
			listener := testsupport.ConnectPacket{ID: "listener"}.Connect(t, address)
			listener.Subscribe("#")
			c := testsupport.ConnectPacket{ID: "p", Expiry: test.expiry, Will: testsupport.OrdinaryWill("factory/p", test.delay)}.Connect(t, address)
			test.end(t, address, s, c)
			pass(s, long)
			if test.want {
				listener.MustReceive("gone")
			}
			sender := testsupport.ConnectPacket{ID: "sender"}.Connect(t, address)
			sender.MustPublish("z", "the end")
			listener.MustReceive("the end")
		})
	}
}

func TestAWillBringsItsPropertiesAndExpiry(t *testing.T) {
	t.Parallel()
	properties := rawmqtt.Body{packets.PropPayloadFormat, 1}
	properties = append(properties, rawmqtt.Body{packets.PropContentType}.Text("c")...)
	properties = append(properties, rawmqtt.Body{packets.PropResponseTopic}.Text("answers")...)
	properties = append(properties, rawmqtt.Body{packets.PropCorrelationData}.Text("n")...)
	properties = properties.User("b", "1").User("a", "2").User("b", "3")
	for _, delay := range []uint32{0, 1} {
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			address := testsupport.Start(t, server.Options{})
			listener := testsupport.ConnectPacket{ID: "listener"}.Connect(t, address)
			listener.Filter(1, 5, "#")
			will := testsupport.OrdinaryWill("factory/p", delay, append(properties, rawmqtt.Body{packets.PropMessageExpiry}.Uint32(50)...)...)
			c := testsupport.ConnectPacket{ID: "p", Expiry: 600, Will: will}.Connect(t, address)
			_ = c.Conn.Close()
			got := listener.MustReceive("gone")[0]
			// The expiry counts from the time of publication.
			if got.Topic != "factory/p" || got.QoS != 1 || got.Expiry != 50 || got.Properties != string(properties) || len(got.Identifiers) != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// The rules at the time when the Will is due decide.
func TestAWillThatWaitsIsAuthorizedAgain(t *testing.T) {
	for _, test := range []struct {
		name, topic string
		change      func(c *testsupport.RawClient, closed *atomic.Bool)
		want        bool
	}{
		{"by the same rules", "factory/p", func(*testsupport.RawClient, *atomic.Bool) {}, true},
		{"by other rules", "factory/p", func(_ *testsupport.RawClient, closed *atomic.Bool) { closed.Store(true) }, false},
		{"on a topic of its own", "clients/p/response", func(*testsupport.RawClient, *atomic.Bool) {}, true},
		{"where the store answers by now", "clients/p/response", func(c *testsupport.RawClient, _ *atomic.Bool) { c.Do("GET", "k") }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var closed atomic.Bool
			authorizer := testsupport.Rules{Topic: func(identity access.Identity, topic string, write bool) bool {
				return !write || !closed.Load()
			}}
			address, s := testsupport.StartServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
			c := testsupport.ConnectPacket{ID: "p", User: "u", Resume: true, Expiry: 600, Will: testsupport.OrdinaryWill(test.topic, 600)}.Connect(t, address)
			c.Subscribe("z", "factory/p", "clients/p/response")
			test.change(c, &closed)
			_ = c.Conn.Close()
			testsupport.MustHaveClients(t, s, 0)
			pass(s, 600)
			closed.Store(false)
			testsupport.ConnectPacket{ID: "sender", User: "u"}.Connect(t, address).MustPublish("z", "the end")
			c = testsupport.ConnectPacket{ID: "p", User: "u", Resume: true}.Connect(t, address)
			if test.want {
				c.MustReceive("gone")
			}
			c.MustReceive("the end")
		})
	}
}

// Wills of other clients may take long. A client that came back meanwhile must not get its Will
// published.
func TestADueWillIsNotPublishedIfItsClientCameBack(t *testing.T) {
	var armed atomic.Bool
	blocked, goOn := make(chan string, 1), make(chan struct{})
	authorizer := testsupport.Rules{Topic: func(_ access.Identity, topic string, write bool) bool {
		if write && armed.CompareAndSwap(true, false) {
			blocked <- topic
			await.Receive(goOn)
		}
		return true
	}}
	address, s := testsupport.StartServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	listener := testsupport.ConnectPacket{ID: "listener", User: "u"}.Connect(t, address)
	listener.Subscribe("#")
	for _, id := range []string{"a", "b"} {
		_ = testsupport.ConnectPacket{ID: id, User: "u", Expiry: 600, Will: testsupport.OrdinaryWill(id, 600)}.Connect(t, address).Conn.Close()
	}
	testsupport.MustHaveClients(t, s, 1)
	armed.Store(true)
	var publishing sync.WaitGroup
	publishing.Go(func() { pass(s, 600) })
	other := map[string]string{"a": "b", "b": "a"}[await.Receive(blocked)]
	testsupport.ConnectPacket{ID: other, User: "u", Resume: true, Expiry: 600}.Connect(t, address)
	close(goOn)
	await.Done(publishing.Wait)
	listener.MustReceive("gone")
	testsupport.ConnectPacket{ID: "sender", User: "u"}.Connect(t, address).MustPublish("z", "the end")
	listener.MustReceive("the end")
}

func TestADueWillWaitsWhileItsClientConnects(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	listener := testsupport.ConnectPacket{ID: "listener"}.Connect(t, address)
	listener.Subscribe("#")
	_ = testsupport.ConnectPacket{ID: "p", Expiry: 600, Will: testsupport.OrdinaryWill("factory/p", 600)}.Connect(t, address).Conn.Close()
	testsupport.MustHaveClients(t, s, 1)
	arrived := s.LockClientID("p", "")
	pass(s, 600)
	arrived()
	p := testsupport.ConnectPacket{ID: "p", Expiry: 600, Resume: true, Will: testsupport.OrdinaryWill("factory/p", 600)}.Connect(t, address)
	sender := testsupport.ConnectPacket{ID: "sender"}.Connect(t, address)
	sender.MustPublish("z", "the end")
	listener.MustReceive("the end")

	// Connections that fail one after another do not delay it for long.
	_ = p.Conn.Close()
	testsupport.MustHaveClients(t, s, 2)
	defer s.LockClientID("p", "")()
	pass(s, 660)
	listener.MustReceive("gone")
}

// When a server stops, it publishes neither delayed Wills nor the Wills of connected clients.
func TestAServerThatStopsPublishesNoOrdinaryWill(t *testing.T) {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	address := s.Addr().String()
	listener := testsupport.ConnectPacket{ID: "listener"}.Connect(t, address)
	listener.Subscribe("#")
	waits := testsupport.ConnectPacket{ID: "waits", Expiry: 600, Will: testsupport.OrdinaryWill("a", 600)}.Connect(t, address)
	_ = waits.Conn.Close()
	testsupport.MustHaveClients(t, s, 1)
	for i := range 10 {
		testsupport.ConnectPacket{ID: fmt.Sprint("c", i), Expiry: 600, Will: testsupport.OrdinaryWill("b", 0)}.Connect(t, address)
	}
	stop()
	testsupport.MustReturn(t, served, nil)
	for {
		packet, err := listener.TryRead()
		if err != nil {
			break
		}
		if packet[0]>>4 == packets.PUBLISH {
			t.Errorf("got %q", packet)
		}
	}
}

// A client that takes over its own connection was never disconnected.
func TestATakeOverKeepsTheSessionOfAUserThatHasAsManyAsItMay(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, Limits: server.Limits{SessionsPerUser: 1}})
	away := testsupport.Connect(t, address, "away", testsupport.KeepSession(true))
	_ = away.Conn.Close()
	testsupport.Eventually(t, "the connection is over", func() bool { return s.Sockets() == 0 })
	before := testsupport.Connect(t, address, "p", testsupport.KeepSession(true))
	before.Subscribe("factory/x")
	chat := testsupport.Connect(t, address, "chat", nil)
	p, err := testsupport.TryConnect(t, address, "p", testsupport.KeepSession(false)) // and before is still open
	if err != nil {
		t.Fatal(err)
	}
	if !p.Connack.SessionPresent {
		t.Error("the session is gone")
	}
	if _, err := chat.Publish(&paho.Publish{Topic: "factory/x", QoS: 1, Payload: []byte("x")}); err != nil {
		t.Errorf("the subscription is gone: %v", err)
	}
}

func TestInvariant23ARequestThatIsDeliveredAgainIsAppliedOnce(t *testing.T) {
	dup, kept := testsupport.Again, testsupport.ConnectPacket{ID: "p", Resume: true, Expiry: 3600}
	for _, test := range []struct {
		name         string
		first, again testsupport.ConnectPacket // the zero value: over the same connection
		packet       func([]byte) []byte
		once         bool
	}{
		{"over the same connection", kept, testsupport.ConnectPacket{}, dup, true},
		{"after a reconnect to the same session", kept, kept, dup, true},
		{"after a reconnect without a session", testsupport.ConnectPacket{ID: "p"}, testsupport.ConnectPacket{ID: "p"}, dup, false},
		{"after a reconnect that began a new session", kept, testsupport.ConnectPacket{ID: "p", Expiry: 3600}, dup, false},
		{"a new request with the same bytes", kept, testsupport.ConnectPacket{}, slices.Clone[[]byte], false},
		{"after a reconnect, by a client that leaves out DUP", kept, kept, slices.Clone[[]byte], true},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := testsupport.Start(t, server.Options{})
			connect := func(packet testsupport.ConnectPacket) *testsupport.RawClient {
				c := packet.Connect(t, address)
				c.Subscribe(c.Topic())
				return c
			}
			p := connect(test.first)
			request := testsupport.PacketOf(t, p.Request("SET", "k", "v", "NX"))
			deliver := func(packet []byte) string {
				t.Helper()
				p.Write(packet)
				reply := p.ReadReply()
				version, _ := reply.User("__ts")
				return string(reply.Payload) + string(version)
			}
			first := deliver(request)
			p.Do("DEL", "k")
			if test.again.ID != "" {
				p.Disconnect()
				p = connect(test.again)
				p.Sent = 100 // other packet ids than that of the request
			}
			if second := deliver(test.packet(request)); (second == first) != test.once {
				t.Errorf("the first reply was %q, the second %q", first, second)
			}
			want := "$1\r\nv\r\n"
			if test.once {
				want = "$-1\r\n"
			}
			if got := p.Do("GET", "k"); got != want {
				t.Errorf("k holds %q, want %q", got, want)
			}
		})
	}
}

// slowly is an Authorizer that takes long for one key.
type slowly struct{ took chan time.Duration }

func (s slowly) Authorize(_ access.Identity, _ statestore.Verb, key string) bool {
	if key == "slow" {
		began := time.Now()
		time.Sleep(1100 * time.Millisecond)
		s.took <- time.Since(began)
	}
	return true
}

func TestARequestWhoseMessageExpiryPassedIsNotApplied(t *testing.T) {
	t.Parallel()
	authorizer := slowly{make(chan time.Duration, 2)}
	address, s := testsupport.StartServer(t, server.Options{Authorizer: authorizer})
	p := testsupport.Connect(t, address, "p", nil)
	short, long := uint32(1), uint32(600)
	request := p.Request("SET", "slow", "v")
	request.Properties.MessageExpiry = &short
	ack, err := p.Publish(request)
	if err == nil || ack == nil || ack.Properties == nil || ack.Properties.ReasonString != "the request had expired" {
		t.Errorf("PUBACK %+v, %v", ack, err)
	}
	await.Receive(authorizer.took)
	if got := s.Stats().Dropped[server.DroppedExpired]; got != 1 {
		t.Errorf("%d expired requests are counted", got)
	}
	p.Do("SET", "quick", "v") // and no reply to the first comes before this one
	request = p.Request("SET", "slow", "w")
	request.Properties.MessageExpiry = &long
	if _, err := p.Publish(request); err != nil {
		t.Fatal(err)
	}
	if reply := p.Next(); string(reply.Payload) != "+OK\r\n" {
		t.Errorf("a request in time: %q", reply.Payload)
	}
}

// As many requests are remembered as a client may have unacknowledged. Its Will, which is
// never delivered again, must not take the place of one of them.
func TestInvariant23ARequestThatIsDeliveredAgainAfterAWillIsAppliedOnce(t *testing.T) {
	const window = 4
	address, s := testsupport.StartServer(t, server.Options{Store: statestore.Options{DedupWindow: window}})
	will := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
	will.Session = 600
	p := will.Connect(t, address, "p")
	var first *packets.Publish
	for i := range window { // all of them unacknowledged, as far as the client knows
		request := p.Request(i, nil, "SET", fmt.Sprint("k", i), "v", "NX")
		if i == 0 {
			first = request
		}
		if err := p.Send(request); err != nil {
			t.Fatal(err)
		}
	}
	testsupport.Eventually(t, "all are applied", func() bool { return s.Stats().Requests == window })
	_ = p.Conn.Close()
	testsupport.Eventually(t, "the Will is applied", func() bool { return s.Stats().AppliedWills == 1 })
	other := testsupport.Connect(t, address, "other", nil)
	other.Do("DEL", "k0")
	p = will.Connect(t, address, "p")
	first.Duplicate = true
	if err := p.Send(first); err != nil {
		t.Fatal(err)
	}
	if err := p.ReadReplies(0, testsupport.Exchange{Want: "+OK\r\n"}); err != nil {
		t.Error(err)
	}
	other.MustGet("k0", "")
}

func TestATakeOverEndsTheOldConnectionBeforeTheNewOneIsUsable(t *testing.T) {
	t.Parallel()
	address := testsupport.Start(t, server.Options{})
	for range 50 {
		old := testsupport.Connect(t, address, "p", nil)
		old.Do("KEYNOTIFY", "k")
		present := testsupport.Connect(t, address, "p", nil)
		old.MustBeDisconnected(testsupport.ReasonTakenOver)
		if got := present.Do("KEYNOTIFY", "k"); got != "+OK\r\n" {
			t.Fatalf("the new connection: %q", got)
		}
		present.Do("SET", "k", "v")
		present.NextNotification() // its watch was not ended by the end of the old one
		if len(old.Notified) > 0 {
			t.Error("the old connection was notified")
		}
		_ = present.Paho.Disconnect(&paho.Disconnect{})
	}
}

func TestAStuckConnectionCanBeTakenOver(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	testsupport.ConnectStuck(t, address)
	writer := testsupport.Connect(t, address, "writer", nil)
	value := strings.Repeat("x", 256<<10)
	for range 100 { // more than sockets hold
		writer.Do("SET", "k", value)
	}
	present := testsupport.Connect(t, address, "p", nil)
	present.MustBeSilent()
}

func TestSimultaneousConnectionsOfOneNameLeaveExactlyOne(t *testing.T) {
	t.Parallel()
	address := testsupport.Start(t, server.Options{})
	for range 5 {
		const attempts = 50
		peers := make([]*testsupport.PahoClient, attempts)
		var group sync.WaitGroup
		for i := range attempts {
			group.Go(func() {
				// A connection that loses may be closed before or after its CONNACK.
				if p, err := testsupport.TryConnect(t, address, "p", nil); err == nil {
					peers[i] = p
				}
			})
		}
		await.Done(group.Wait)
		var alive []*testsupport.PahoClient
		for _, p := range peers {
			if p != nil && !testsupport.IsDone(p.Paho.Done()) {
				if _, err := p.TrySubscribe(p.ReplyTo); err == nil {
					alive = append(alive, p)
				}
			}
		}
		if len(alive) != 1 {
			t.Fatalf("%d connections of one name are alive", len(alive))
		}
		alive[0].MustGet("k", "")
		last := testsupport.Connect(t, address, "p", nil)
		alive[0].MustBeDisconnected(testsupport.ReasonTakenOver)
		last.MustGet("k", "")
	}
}

func TestAReceiveMaximumDoesNotStallReplies(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, maximum := range []uint16{1, 10} {
		p := testsupport.Connect(t, address, fmt.Sprintf("p%d", maximum), func(c *paho.Connect) { c.Properties.ReceiveMaximum = &maximum })
		p.Subscribe("chatter/#")
		chatterer := testsupport.Connect(t, address, "chatterer", nil)
		var group sync.WaitGroup
		group.Go(func() {
			for i := range 200 {
				message := &paho.Publish{QoS: 1, Topic: fmt.Sprintf("chatter/%d", i), Payload: []byte("x")}
				if _, err := chatterer.Publish(message); err != nil {
					t.Error(err)
				}
			}
		})
		for i := range 200 {
			if _, err := p.Publish(p.Request("SET", fmt.Sprint(i), "v")); err != nil {
				t.Fatal(err)
			}
		}
		await.Done(group.Wait)
		replies, chatter := 0, 0
		for replies+chatter < 400 {
			if p.Next().Topic == p.ReplyTo {
				replies++
			} else {
				chatter++
			}
		}
		if replies != 200 {
			t.Errorf("receive maximum %d: %d replies, %d other messages", maximum, replies, chatter)
		}
	}
}

// The replies of clients that never come back must not stay in the journal for ever.
func TestSessionsOfTheJournalEndTenMinutesAfterTheStartUnlessTheirClientsComeBack(t *testing.T) {
	d := startDurable(t, server.Options{})
	for _, id := range []string{"back", "gone"} {
		p := testsupport.Connect(t, d.address, id, testsupport.KeepSession(true))
		p.Do("SET", id, "v")
	}
	replies := func() (clients []string) {
		for record := range d.journal.Records() {
			item, err := record.Decode()
			if err != nil {
				t.Fatal(err)
			}
			if item.Kind == statestore.KindReply {
				clients = append(clients, item.Client)
			}
		}
		slices.Sort(clients)
		return clients
	}
	mustBe := func(want ...string) {
		t.Helper()
		if got := replies(); !slices.Equal(got, want) {
			t.Errorf("the journal has replies to %q, want %q", got, want)
		}
	}
	d.crash()
	testsupport.Connect(t, d.address, "back", testsupport.KeepSession(false))
	release := d.server.LockClientID("gone", "") // it is about to come back
	d.server.EndSessions(time.Now().Add(11 * time.Minute))
	mustBe("back", "gone")
	release()
	d.server.EndSessions(time.Now().Add(9 * time.Minute))
	mustBe("back", "gone")
	d.server.EndSessions(time.Now().Add(11 * time.Minute))
	testsupport.Eventually(t, "the session is gone", func() bool { return len(replies()) == 1 })
	mustBe("back")
	testsupport.Connect(t, d.address, "back", testsupport.KeepSession(true)) // a new session
	testsupport.Eventually(t, "the other session is gone", func() bool { return len(replies()) == 0 })
}

// A sweep may take long: a session that it has listed may have been resumed and left again since.
func TestASweepEndsNoSessionThatHasBegunToBeKeptAgain(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	login := testsupport.ConnectPacket{ID: "p", Expiry: 600, Resume: true}
	_ = login.Connect(t, address).Conn.Close()
	testsupport.MustHaveClients(t, s, 0)
	lost := s.Lost("p")
	_ = login.Connect(t, address).Conn.Close()
	testsupport.Eventually(t, "it is away again", func() bool { return s.Lost("p").After(lost) && s.Stats().Connected == 0 })
	if s.Expire("p", lost.Add(600*time.Second+1)); !s.HasSession("p") {
		t.Fatal("the session was ended")
	}
	if s.Expire("p", s.Lost("p").Add(601*time.Second)); s.HasSession("p") {
		t.Error("the session was not ended when its time was over")
	}
}
