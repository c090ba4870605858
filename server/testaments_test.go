package server_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// willOf returns an ordinary Will with a delay in seconds.
func willOf(topic string, delay uint32, properties ...byte) *rawmqtt.Message {
	list := append(rawmqtt.Body{wire.WillDelay}.Uint32(delay), properties...)
	return &rawmqtt.Message{Topic: topic, QoS: 1, Payload: []byte("gone"), Properties: list}
}

// isAway waits until only so many clients are connected.
func isAway(t *testing.T, s *server.Server, left int) {
	t.Helper()
	eventually(t, "the connection is forgotten", func() bool { return s.Stats().Connected == left })
}

// pass lets the delay of a Will be over.
func pass(s *server.Server, seconds uint32) {
	s.PublishTestaments(time.Now().Add(time.Duration(seconds) * time.Second))
}

func TestAnOrdinaryWillIsPublishedWhenItShould(t *testing.T) {
	const long = 600
	type ending = func(*testing.T, string, *server.Server, *messenger)
	back := func(h hello) ending {
		return func(t *testing.T, address string, s *server.Server, c *messenger) {
			_ = c.conn.Close()
			isAway(t, s, 1)
			h.id = "p"
			h.join(t, address)
		}
	}
	lost := func(t *testing.T, _ string, s *server.Server, c *messenger) {
		_ = c.conn.Close()
		isAway(t, s, 1)
	}
	says := func(packet ...byte) ending {
		return func(t *testing.T, _ string, s *server.Server, c *messenger) {
			c.write(packet)
			c.mustEnd()
			isAway(t, s, 1)
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
		{"not when the client is back", long, long, back(hello{resume: true, expiry: long}), false},
		{"when the client begins anew", 2 * long, long, back(hello{expiry: long}), true},
		{"when the session ends with the connection", 2 * long, 0, lost, true},
		{"when the session ends before the delay", 2 * long, 1, lost, true},
		{"not after a DISCONNECT", 0, long, says(0xe0, 0), false},
		{"not after a DISCONNECT with a delay", long, long, says(0xe0, 0), false},
		{"after a DISCONNECT with Will", 0, long, says(0xe0, 1, 4), true},
		{"after a DISCONNECT with Will and a delay", long, long, says(0xe0, 1, 4), true},
		{"after a DISCONNECT that ends the session", 2 * long, long, says(0xe0, 7, 4, 5, wire.SessionExpiry, 0, 0, 0, 0), true},
		{"when the server sends the client away", 0, long, says(rawmqtt.Message{Topic: "t", Retain: true}.Packet()...), true},
		{"when the client is taken over", 0, long, func(t *testing.T, address string, _ *server.Server, _ *messenger) {
			hello{id: "p", resume: true, expiry: long}.join(t, address)
		}, true},
		{"not when it is taken over and has a delay", long, long, func(t *testing.T, address string, _ *server.Server, _ *messenger) {
			hello{id: "p", resume: true, expiry: long}.join(t, address)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := startServer(t, server.Options{})
			listener := hello{id: "listener"}.join(t, address)
			listener.hears("#")
			c := hello{id: "p", expiry: test.expiry, will: willOf("factory/p", test.delay)}.join(t, address)
			test.end(t, address, s, c)
			pass(s, long)
			if test.want {
				listener.mustHear("gone")
			}
			sender := hello{id: "sender"}.join(t, address)
			sender.tells("z", "the end")
			listener.mustHear("the end")
		})
	}
}

func TestAWillBringsItsPropertiesAndExpiry(t *testing.T) {
	properties := rawmqtt.Body{wire.PayloadFormat, 1}
	properties = append(properties, rawmqtt.Body{wire.ContentType}.Text("c")...)
	properties = append(properties, rawmqtt.Body{wire.ResponseTopic}.Text("answers")...)
	properties = append(properties, rawmqtt.Body{wire.CorrelationData}.Text("n")...)
	properties = properties.User("b", "1").User("a", "2").User("b", "3")
	for _, delay := range []uint32{0, 1} {
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			address := start(t, server.Options{Retain: true})
			listener := hello{id: "listener"}.join(t, address)
			listener.follow(1|retainAsPublished, 5, "#")
			will := willOf("factory/p", delay, append(properties, rawmqtt.Body{wire.MessageExpiry}.Uint32(50)...)...)
			will.Retain = true
			c := hello{id: "p", expiry: 600, will: will}.join(t, address)
			_ = c.conn.Close()
			got := listener.mustHear("gone")[0]
			// The expiry counts from when it is published.
			if got.topic != "factory/p" || got.qos != 1 || !got.retain || got.expiry != 50 || got.properties != string(properties) || len(got.identifiers) != 1 {
				t.Errorf("%+v", got)
			}
			late := hello{id: "late", old: true}.join(t, address)
			late.hears("factory/+")
			if got := late.mustHear("gone")[0]; !got.retain || got.properties != "" {
				t.Errorf("retained: %+v", got)
			}
		})
	}
}

// What the rules allow counts when the Will is due. The client finds out when it is back.
func TestAWillThatWaitsIsAuthorizedAgain(t *testing.T) {
	for _, test := range []struct {
		name, topic string
		change      func(c *messenger, closed *atomic.Bool)
		want        bool
	}{
		{"by the same rules", "factory/p", func(*messenger, *atomic.Bool) {}, true},
		{"by other rules", "factory/p", func(_ *messenger, closed *atomic.Bool) { closed.Store(true) }, false},
		{"on a topic of its own", "clients/p/response", func(*messenger, *atomic.Bool) {}, true},
		{"where the store answers by now", "clients/p/response", func(c *messenger, _ *atomic.Bool) { c.do("GET", "k") }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var closed atomic.Bool
			authorizer := rules{topic: func(who access.Identity, topic string, write bool) bool {
				return !write || !closed.Load()
			}}
			address, s := startServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
			c := hello{id: "p", user: "u", resume: true, expiry: 600, will: willOf(test.topic, 600)}.join(t, address)
			c.hears("z", "factory/p", "clients/p/response")
			test.change(c, &closed)
			_ = c.conn.Close()
			isAway(t, s, 0)
			pass(s, 600)
			closed.Store(false)
			hello{id: "sender", user: "u"}.join(t, address).tells("z", "the end")
			c = hello{id: "p", user: "u", resume: true}.join(t, address)
			if test.want {
				c.mustHear("gone")
			}
			c.mustHear("the end")
		})
	}
}

// A client that is back is not to be called gone because the Wills of others took long.
func TestAWillThatIsDueIsNotPublishedWhenItsClientCameBackMeanwhile(t *testing.T) {
	var armed atomic.Bool
	blocked, goOn := make(chan string, 1), make(chan struct{})
	authorizer := rules{topic: func(_ access.Identity, topic string, write bool) bool {
		if write && armed.CompareAndSwap(true, false) {
			blocked <- topic
			await.Receive(goOn)
		}
		return true
	}}
	address, s := startServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	listener := hello{id: "listener", user: "u"}.join(t, address)
	listener.hears("#")
	for _, id := range []string{"a", "b"} {
		_ = hello{id: id, user: "u", expiry: 600, will: willOf(id, 600)}.join(t, address).conn.Close()
	}
	isAway(t, s, 1)
	armed.Store(true)
	var publishing sync.WaitGroup
	publishing.Go(func() { pass(s, 600) })
	other := map[string]string{"a": "b", "b": "a"}[await.Receive(blocked)]
	hello{id: other, user: "u", resume: true, expiry: 600}.join(t, address)
	close(goOn)
	await.Done(publishing.Wait)
	listener.mustHear("gone")
	hello{id: "sender", user: "u"}.join(t, address).tells("z", "the end")
	listener.mustHear("the end")
}

// The end of a session may take long: what its client did not acknowledge is offered to others.
func TestAWillThatIsDueDoesNotWaitForTheEndsOfSessions(t *testing.T) {
	var armed atomic.Bool
	blocked, goOn := make(chan string, 1), make(chan struct{})
	authorizer := rules{topic: func(who access.Identity, topic string, write bool) bool {
		if !write && topic == "t" && who.Client == "stays" && armed.CompareAndSwap(true, false) {
			blocked <- topic
			await.Receive(goOn)
		}
		return true
	}}
	address, s := startServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	defer close(goOn)
	listener := hello{id: "listener", user: "u"}.join(t, address)
	listener.hears("will")
	leaves := hello{id: "leaves", user: "u", expiry: 1}.join(t, address)
	leaves.hears("$share/g/t")
	_ = leaves.conn.Close()
	isAway(t, s, 1)
	listener.tells("t", "left over")
	stays := hello{id: "stays", user: "u"}.join(t, address)
	stays.hears("$share/g/t")
	armed.Store(true)
	_ = await.Receive(blocked) // the session ends
	_ = hello{id: "p", user: "u", expiry: 600, will: willOf("will", 1)}.join(t, address).conn.Close()
	listener.mustHear("gone")
}

func TestAWillThatIsDueWaitsForAConnectionThatIsBeingEstablished(t *testing.T) {
	address, s := startServer(t, server.Options{})
	listener := hello{id: "listener"}.join(t, address)
	listener.hears("#")
	_ = hello{id: "p", expiry: 600, will: willOf("factory/p", 600)}.join(t, address).conn.Close()
	isAway(t, s, 1)
	arrived := s.TakeName("p", "")
	pass(s, 600)
	arrived()
	p := hello{id: "p", expiry: 600, resume: true, will: willOf("factory/p", 600)}.join(t, address)
	sender := hello{id: "sender"}.join(t, address)
	sender.tells("z", "the end")
	listener.mustHear("the end")

	// Connections that fail one after the other do not put it off for long.
	_ = p.conn.Close()
	isAway(t, s, 2)
	defer s.TakeName("p", "")()
	pass(s, 660)
	listener.mustHear("gone")
}

// When a server stops, no Will comes, whether it waits or its client is connected.
func TestAServerThatStopsPublishesNoOrdinaryWill(t *testing.T) {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	address := s.Addr().String()
	listener := hello{id: "listener"}.join(t, address)
	listener.hears("#")
	waits := hello{id: "waits", expiry: 600, will: willOf("a", 600)}.join(t, address)
	_ = waits.conn.Close()
	isAway(t, s, 1)
	for i := range 10 {
		hello{id: fmt.Sprint("c", i), expiry: 600, will: willOf("b", 0)}.join(t, address)
	}
	stop()
	mustServe(t, served, nil)
	for {
		packet, err := listener.tryRead()
		if err != nil {
			break
		}
		if packet[0]>>4 == wire.Publish {
			t.Errorf("got %q", packet)
		}
	}
}
