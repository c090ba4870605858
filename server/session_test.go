package server_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

func TestAnOrdinaryWillIsPublishedWhenItsConnectionEnds(t *testing.T) {
	t.Parallel()
	lost := func(_ *testing.T, _ string, c *testsupport.RawClient) { _ = c.Conn.Close() }
	says := func(packet ...byte) func(*testing.T, string, *testsupport.RawClient) {
		return func(_ *testing.T, _ string, c *testsupport.RawClient) {
			c.Write(packet)
			c.MustBeClosed()
		}
	}
	properties := rawmqtt.Body{packets.PropPayloadFormat, 1}
	properties = append(properties, rawmqtt.Body{packets.PropContentType}.Text("c")...).User("b", "1").User("a", "2").User("b", "3")
	for _, test := range []struct {
		name string
		end  func(*testing.T, string, *testsupport.RawClient)
		want bool
	}{
		{"lost", lost, true},
		{"not after a DISCONNECT", says(0xe0, 0), false},
		{"after a DISCONNECT with the Will", says(0xe0, 1, 4), true},
		{"when the server sends the client away", says(rawmqtt.Message{Topic: "t", Retain: true}.Packet()...), true},
		{"when the client is taken over", func(t *testing.T, address string, _ *testsupport.RawClient) {
			testsupport.ConnectPacket{ID: "p", Resume: true, Expiry: 600}.Connect(t, address)
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := testsupport.Start(t, server.Options{})
			listener := testsupport.ConnectPacket{ID: "listener"}.Connect(t, address)
			listener.Subscribe("#")
			will := testsupport.OrdinaryWill("factory/p", 0, append(properties, rawmqtt.Body{packets.PropMessageExpiry}.Uint32(50)...)...)
			test.end(t, address, testsupport.ConnectPacket{ID: "p", Expiry: 600, Will: will}.Connect(t, address))
			if test.want { // the expiry counts from the time of publication
				if got := listener.MustReceive("gone")[0]; got.Topic != "factory/p" || got.QoS != 1 || got.Expiry != 50 || got.Properties != string(properties) {
					t.Errorf("%+v", got)
				}
			}
			sender := testsupport.ConnectPacket{ID: "sender"}.Connect(t, address)
			sender.MustPublish("z", "the end")
			listener.MustReceive("the end")
		})
	}
}

// The rules at the time when the Will is due decide.
func TestAWillIsAuthorizedAgain(t *testing.T) {
	for topic, change := range map[string]func(c *testsupport.RawClient, closed *atomic.Bool){
		"factory/p":          func(_ *testsupport.RawClient, closed *atomic.Bool) { closed.Store(true) },
		"clients/p/response": func(c *testsupport.RawClient, _ *atomic.Bool) { c.Do("GET", "k") }, // where the store answers by now
	} {
		var closed atomic.Bool
		authorizer := testsupport.Rules{Topic: func(_ access.Identity, _ string, write bool) bool { return !write || !closed.Load() }}
		address, s := testsupport.StartServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
		login := testsupport.ConnectPacket{ID: "p", User: "u", Resume: true, Expiry: 3600, Will: testsupport.OrdinaryWill(topic, 0)}
		c := login.Connect(t, address)
		c.Subscribe("z", topic)
		change(c, &closed)
		_ = c.Conn.Close()
		testsupport.MustHaveClients(t, s, 0)
		closed.Store(false)
		testsupport.ConnectPacket{ID: "sender", User: "u"}.Connect(t, address).MustPublish("z", "the end")
		login.Will = nil
		login.Connect(t, address).MustReceive("the end")
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
				c.Subscribe(c.ReplyTo)
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
	var first []byte
	for i := range window { // all of them unacknowledged, as far as the client knows
		request := testsupport.PacketOf(t, p.RequestNumber(i, "SET", fmt.Sprint("k", i), "v", "NX"))
		if i == 0 {
			first = request
		}
		p.Write(request)
	}
	testsupport.Eventually(t, "all are applied", func() bool { return s.Stats().Requests == window })
	_ = p.Conn.Close()
	testsupport.Eventually(t, "the Will is applied", func() bool { return s.Stats().AppliedWills == 1 })
	other := testsupport.Connect(t, address, "other", nil)
	other.Do("DEL", "k0")
	p = will.Connect(t, address, "p")
	p.Write(testsupport.Again(first))
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
	release := d.server.LockClientID("gone") // it is about to come back
	d.server.Sweep(time.Now().Add(11 * time.Minute))
	mustBe("back", "gone")
	release()
	d.server.Sweep(time.Now().Add(9 * time.Minute))
	mustBe("back", "gone")
	d.server.Sweep(time.Now().Add(11 * time.Minute))
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

// A packet is decoded in place, so a part of it that is kept without a copy keeps all of it.
func TestAStoredValueDoesNotRetainItsPacket(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	c := testsupport.DialRaw(t, address, "p")
	const requests, padding = 200, 60 << 10
	ask := func(i int, want string, words ...string) {
		t.Helper()
		err := c.Exchange(i, func(message *mqtt.Message) {
			message.ContentType = strings.Repeat("x", padding)
			message.User = append(message.User, mqtt.UserProperty{Name: "__ft", Value: fmt.Sprintf("%d:0:node-%03d", time.Now().UnixMilli(), i)})
		}, testsupport.Exchange{Words: words, Want: want})
		if err != nil {
			t.Fatal(err)
		}
	}
	ask(0, "$-1\r\n", "GET", "k")
	before := testsupport.HeapInUse()
	for i := range requests {
		switch i % 4 {
		case 0, 1:
			ask(i, "+OK\r\n", "SET", fmt.Sprint("key-", i), "v", "PX", "600000")
		case 2:
			ask(i, "+OK\r\n", "KEYNOTIFY", fmt.Sprint("watched-", i))
		case 3:
			ask(i, ":1\r\n", "DEL", fmt.Sprint("key-", i-2))
		}
	}
	after := testsupport.HeapInUse()
	if grown, all := int64(after)-int64(before), int64(requests*padding); grown > all/8 {
		t.Errorf("%d bytes are kept of %d bytes of requests with next to nothing in them", grown, all)
	}
	if err := c.TryDisconnect(); err != nil { // only now: all of it was in use
		t.Fatal(err)
	}
}

// Clients that could not be sent a CONNACK must not count against MaxClients until no other can connect.
func TestAClientLostBeforeItsCONNACKIsForgotten(t *testing.T) {
	turnstile := testsupport.Turnstile{Reached: make(chan struct{}), Open: make(chan struct{})}
	address, s := testsupport.StartServer(t, server.Options{MaxClients: 3, Authenticator: turnstile})
	for i := range 5 {
		conn := testsupport.DialTCP(t, address)
		testsupport.Send(t, conn, string(testsupport.ConnectPacket{ID: fmt.Sprint("p-", i)}.Packet()))
		await.Receive(turnstile.Reached)
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
		time.Sleep(10 * time.Millisecond) // where the reset comes too late nothing is tested, and nothing fails
		turnstile.Open <- struct{}{}
		testsupport.Eventually(t, "the connection is over", func() bool { return s.Sockets() == 0 })
		if left := s.Clients(); left > 0 {
			t.Fatalf("%d clients are left of %d that connected and went", left, i+1)
		}
	}
}

// Nor does it take anything from a client that has its id: a connection or a session.
func TestAClientThatTakesNoConnackTakesNothingOver(t *testing.T) {
	for _, resume := range []bool{false, true} {
		t.Run(fmt.Sprint("resume ", resume), func(t *testing.T) {
			var log logbuffer.Buffer
			address, s := testsupport.StartServer(t, server.Options{Logger: log.Logger()})
			asked := testsupport.ConnectPacket{ID: "p", Resume: resume, Expiry: 600}
			tooSmall := asked
			tooSmall.Properties = rawmqtt.Body{packets.PropMaximumPacketSize}.Uint32(5)
			mustBeRefused := func(times uint64) {
				t.Helper()
				if _, connack := tooSmall.TryConnect(t, address); connack != nil {
					t.Errorf("CONNACK %x", connack)
				}
				if got := s.Stats().Refused[server.RefusedRules]; got != times {
					t.Errorf("%d refusals are counted, want %d", got, times)
				}
			}
			p := asked.Connect(t, address)
			mustBeRefused(1)
			p.Write(testsupport.Packet(packets.PINGREQ << 4))
			if answer := p.Read(); answer[0] != packets.PINGRESP<<4 {
				t.Errorf("the client that was connected gets %x", answer)
			}
			_ = p.Conn.Close()
			testsupport.MustHaveClients(t, s, 0)
			mustBeRefused(2)
			if !s.HasSession("p") {
				t.Error("its session has ended")
			}
			testsupport.Eventually(t, "no client id is taken", func() bool { return s.LockedClientIDs() == 0 })
			if line := "no packet of the size of a CONNACK"; !strings.Contains(log.String(), line) {
				t.Errorf("%q is not in the log:\n%s", line, &log)
			}
		})
	}
}

// A connection that ends while a message for it is taken from the session must not take the message with it.
func TestAMessageThatIsTakenForAConnectionThatEndsIsSentOverTheNextOne(t *testing.T) {
	t.Parallel()
	asked, goOn := make(chan struct{}, 1), make(chan struct{})
	var slow atomic.Bool
	rules := testsupport.Rules{Topic: func(_ access.Identity, _ string, write bool) bool {
		if !write && slow.CompareAndSwap(true, false) {
			asked <- struct{}{}
			await.Receive(goOn)
		}
		return true
	}}
	address, s := testsupport.StartServer(t, server.Options{Authenticator: rules, Authorizer: rules})
	login := testsupport.ConnectPacket{ID: "p", Resume: true, Expiry: 600}
	p := login.Connect(t, address)
	p.Subscribe("t")
	sender := testsupport.ConnectPacket{ID: "sender"}.Connect(t, address)
	slow.Store(true)
	sender.MustPublish("t", "a message")
	await.Receive(asked)
	_ = p.Conn.Close()
	_ = sender.TryDisconnect()
	time.Sleep(50 * time.Millisecond) // until the server has seen the end of the connection
	close(goOn)
	testsupport.MustHaveClients(t, s, 0)
	login.Connect(t, address).MustReceive("a message")
}
