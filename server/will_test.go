package server_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestAWillThatIsARequestIsAppliedOnceHoweverTheConnectionEndsButNotAfterADisconnect(t *testing.T) {
	raw := func(data string) func(*testsupport.RawClient) {
		return func(c *testsupport.RawClient) { c.WriteString(data) }
	}
	request := func(change func(*mqtt.Message)) func(*testsupport.RawClient) {
		return func(c *testsupport.RawClient) {
			_ = c.SendRequests(1, change, testsupport.Exchange{Words: []string{"GET", "k"}})
		}
	}
	for _, test := range []struct {
		name    string
		end     func(*testsupport.RawClient)
		applied bool
	}{
		{"closed", func(c *testsupport.RawClient) { _ = c.Conn.Close() }, true},
		{"reset", (*testsupport.RawClient).Reset, true},
		{"keep-alive timeout", func(*testsupport.RawClient) {}, true},
		{"a second CONNECT", raw(testsupport.RequestWill("p", "VDEL", "lock", "p:1").Packet("p")), true},
		{"a malformed packet", raw("\x30\x02\xff\xff"), true},
		{"a packet that is too large", raw("\x30\xff\xff\xff\x7f"), true},
		{"a publish with QoS 2", request(func(m *mqtt.Message) { m.QoS = 2 }), true},
		{"a forbidden response topic", request(func(m *mqtt.Message) { m.ResponseTopic = testsupport.InvokeTopic }), true},
		{"DISCONNECT with Will", raw("\xe0\x02\x04\x00"), true},
		{"DISCONNECT for an error", raw("\xe0\x02\x82\x00"), true},
		{"DISCONNECT", raw("\xe0\x00"), false},
		{"DISCONNECT with a reason", raw("\xe0\x01\x00"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // one of them takes a second
			address, s := testsupport.StartServer(t, server.Options{})
			watcher := testsupport.WatchKey(t, address, "lock")
			w := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
			if strings.HasPrefix(test.name, "keep-alive") {
				// The Message Expiry of a Will counts from its publication, so here from the time
				// when it is applied.
				w.KeepAlive, w.Properties = 1, rawmqtt.Body{packets.PropMessageExpiry}.Uint32(1)
			}
			c := w.Connect(t, address, "p")
			c.MustDo(t, 0, "+OK\r\n", "SET", "lock", "p:1", "NEX", "PX", "600000")
			watcher.MustBeNotified("SET", "VALUE", "p:1")
			test.end(c)
			wills := uint64(0)
			if test.applied {
				watcher.MustBeNotified("DELETE")
				wills = 1
			}
			testsupport.Eventually(t, "the connection ends", func() bool { return s.Sockets() == 1 })
			watcher.Do("SET", "lock", "p:1") // what a second application would delete
			watcher.MustBeNotified("SET", "VALUE", "p:1")
			next := testsupport.DialRaw(t, address, "p")
			next.MustDo(t, 0, "$3\r\np:1\r\n", "GET", "lock")
			next.Disconnect()
			testsupport.Eventually(t, "the next connection ends", func() bool { return s.Sockets() == 1 })
			watcher.MustGet("lock", "p:1")
			watcher.MustBeSilent()
			if got := s.Stats().AppliedWills; got != wills {
				t.Errorf("%d applied Wills are counted, want %d", got, wills)
			}
		})
	}
}

// A connection that takes over another finds the lease that the Will of the other released.
func TestTheWillOfATakenOverConnectionIsAppliedBeforeTheNewOneActs(t *testing.T) {
	t.Parallel()
	for _, kept := range []uint32{0, 600} {
		t.Run(fmt.Sprint("session of ", kept, " s"), func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{})
			const rounds = 50
			for i := range rounds {
				value := fmt.Sprint("p:", i)
				w := testsupport.RequestWill("p", "VDEL", "lock", value)
				w.Session, w.Correlation = kept, fmt.Sprint("the will of ", i)
				w.Connect(t, address, "p").MustDo(t, i, "+OK\r\n", "SET", "lock", value, "NX")
			}
			if got := s.Stats().AppliedWills; got != rounds-1 {
				t.Errorf("%d Wills were applied in %d take-overs", got, rounds-1)
			}
		})
	}
}

func TestAWillIsAppliedAfterAllThatItsClientSent(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	observer := testsupport.Connect(t, address, "observer", nil)
	for i := range 20 {
		key, value := fmt.Sprint("lock-", i), fmt.Sprint("p:", i)
		c := testsupport.RequestWill("p", "VDEL", key, value).Connect(t, address, "p")
		demands := make([]testsupport.Exchange, 100)
		for i := range demands {
			demands[i].Words = []string{"SET", fmt.Sprint("k-", i), "v"}
		}
		demands[len(demands)-1].Words = []string{"SET", key, value}
		if err := c.SendRequests(0, nil, demands...); err != nil {
			t.Fatal(err)
		}
		_ = c.Conn.(*net.TCPConn).CloseWrite() // and still reads, so that nothing is reset
		go func() { _, _ = io.Copy(io.Discard, c.Input) }()
		testsupport.Eventually(t, "the connection ends", func() bool { return s.Sockets() == 1 })
		observer.MustGet("k-98", "v")
		observer.MustGet(key, "")
		observer.Do("DEL", "k-98")
	}
	if got := s.Stats().AppliedWills; got != 20 {
		t.Errorf("%d Wills were applied", got)
	}
}

// The store checks a Will when it applies it, and the reply goes to the response topic.
func TestAWillIsJudgedAndAnsweredLikeARequest(t *testing.T) {
	const late = "-ERR the request fencing token is a lower version than the fencing token protecting the resource\r\n"
	now := func(shift time.Duration) string { return fmt.Sprintf("%d:0:p", time.Now().Add(shift).UnixMilli()) }
	token := now(-time.Minute)
	for _, test := range []struct {
		name  string
		will  testsupport.WillConnect
		reply string
		left  string
	}{
		{"a SET", testsupport.WillConnect{Payload: testsupport.Command("SET", "open", "gone"), Ts: now(0)}, "+OK\r\n", "gone"},
		{"a SET from the future", testsupport.WillConnect{Payload: testsupport.Command("SET", "open", "gone"), Ts: now(time.Hour)},
			"-ERR the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n", "here"},
		{"a DEL", testsupport.WillConnect{Payload: testsupport.Command("DEL", "open")}, ":1\r\n", ""},
		{"a VDEL of another value", testsupport.WillConnect{Payload: testsupport.Command("VDEL", "open", "there")}, ":-1\r\n", "here"},
		{"with the key's token", testsupport.WillConnect{Payload: testsupport.Command("VDEL", "fenced", "here"), Ft: token}, ":1\r\n", ""},
		{"with an older token", testsupport.WillConnect{Payload: testsupport.Command("VDEL", "fenced", "here"), Ft: now(-time.Hour)}, late, "here"},
		{"with a token from the future", testsupport.WillConnect{Payload: testsupport.Command("VDEL", "fenced", "here"), Ft: now(time.Hour)},
			"-ERR the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n", "here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{})
			reader := testsupport.Connect(t, address, "reader", nil)
			reader.Do("SET", "open", "here")
			fenced := reader.Request("SET", "fenced", "here")
			fenced.Properties.User.Add("__ft", token)
			if _, err := reader.Publish(fenced); err != nil || string(reader.Next().Payload) != "+OK\r\n" {
				t.Fatal(err)
			}
			reader.Subscribe("factory/answers")
			requests := s.Stats().Requests

			w := testsupport.RequestWill("p")
			w.Payload, w.Ts, w.Ft, w.Response = test.will.Payload, test.will.Ts, test.will.Ft, "factory/answers"
			_ = w.Connect(t, address, "p").Conn.Close()
			reply := reader.Next()
			if got := string(reply.Payload); reply.Topic != "factory/answers" || got != test.reply {
				t.Errorf("answered %q on %s, want %q", got, reply.Topic, test.reply)
			}
			if got := string(reply.Properties.CorrelationData); got != w.Correlation {
				t.Errorf("correlation data %q", got)
			}
			testsupport.Eventually(t, "it is counted", func() bool { return s.Stats().AppliedWills == 1 })
			if got := s.Stats().Requests; got != requests+1 {
				t.Errorf("it is counted as %d requests", got-requests)
			}
			key := "open"
			if strings.Contains(string(w.Payload), "fenced") {
				key = "fenced"
			}
			reader.MustGet(key, test.left)
		})
	}
}

// A client that lost rights since CONNECT lost them for its Will too.
func TestAWillIsAppliedWithTheRightsThatItsClientHasThen(t *testing.T) {
	for _, test := range []struct {
		name             string
		keys, topics     bool // what is lost
		applied, dropped uint64
		left             string
	}{
		{"nothing is lost", false, false, 1, 0, ""},
		{"the key is lost", true, false, 1, 0, "p:1"},
		{"the response topic is lost", false, true, 0, 1, "p:1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var lostKeys, lostTopics atomic.Bool
			asked := make(chan string, 100)
			authorizer := testsupport.Rules{
				Key: func(identity access.Identity, verb statestore.Verb, key string) bool {
					if identity.Client != "p" {
						return true
					}
					asked <- fmt.Sprint(identity.User, " ", verb, " ", key)
					return !lostKeys.Load()
				},
				Topic: func(identity access.Identity, topic string, _ bool) bool {
					return identity.Client != "p" || !lostTopics.Load()
				},
			}
			address, s := testsupport.StartServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
			w := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
			w.User, w.Response = "alice", "factory/answers"
			c := w.Connect(t, address, "p")
			if len(asked) > 0 {
				t.Errorf("at CONNECT the authorizer was asked for %q", await.Receive(asked))
			}
			c.MustDo(t, 0, "+OK\r\n", "SET", "lock", "p:1")
			if got := await.Receive(asked); got != "alice SET lock" {
				t.Errorf("asked for %q", got)
			}
			lostKeys.Store(test.keys)
			lostTopics.Store(test.topics)
			_ = c.Conn.Close()
			testsupport.Eventually(t, "the connection ends", func() bool { return s.Sockets() == 0 })
			if test.dropped == 0 {
				if got := await.Receive(asked); got != "alice VDEL lock" {
					t.Errorf("asked for %q", got)
				}
			}
			stats := s.Stats()
			if got := stats.Dropped[server.DroppedForeignTopic]; stats.AppliedWills != test.applied || got != test.dropped {
				t.Errorf("%d Wills are counted as applied and %d as dropped", stats.AppliedWills, got)
			}
			testsupport.Connect(t, address, "observer", testsupport.As("observer")).MustGet("lock", test.left)
		})
	}
}

func TestAWillThatIsNotAValidRequestIsRefusedAtConnectAndNeverApplied(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*testsupport.WillConnect)
		code   byte
		reason string
	}{
		{"no response topic", func(w *testsupport.WillConnect) { w.Response = "" }, 0x83, "a request needs a response topic"},
		{"no correlation data", func(w *testsupport.WillConnect) { w.Correlation = "" }, 0x83, "a request needs correlation data"},
		{"retained", func(w *testsupport.WillConnect) { w.Retain = true }, 0x83, "a request may not be retained"},
		{"QoS 0", func(w *testsupport.WillConnect) { w.QoS = 0 }, 0x83, "a request needs QoS 1"},
		{"QoS 2", func(w *testsupport.WillConnect) { w.QoS = 2 }, 0x9b, "this server has no QoS 2"},
		{"a delay", func(w *testsupport.WillConnect) {
			w.Properties = rawmqtt.Body{packets.PropWillDelayInterval}.Uint32(120)
		}, 0x83, "its Will Delay Interval must be 0, not 120"},
		{"the system topic as response topic", func(w *testsupport.WillConnect) { w.Response = testsupport.InvokeTopic }, 0x87, "the response topic belongs to the state store"},
		{"a wildcard in the response topic", func(w *testsupport.WillConnect) { w.Response = "clients/+/response" }, 0x90, "in its Will, as its response topic, a topic name has a wildcard"},
		{"a system response topic", func(w *testsupport.WillConnect) { w.Response = "$SYS/broker" }, 0x90, "nothing can be published to this response topic"},
		{"another client's response topic", func(w *testsupport.WillConnect) { w.Response = "clients/q/response" }, 0x87, "this client may not be answered on this response topic"},
		{"no command", func(w *testsupport.WillConnect) { w.Payload = []byte("nonsense") }, 0x83, "syntax error"},
		{"an unknown command", func(w *testsupport.WillConnect) { w.Payload = testsupport.Command("FROB", "k") }, 0x83, "unknown command"},
		{"a SET without a timestamp", func(w *testsupport.WillConnect) { w.Payload = testsupport.Command("SET", "k", "w") }, 0x83, "missing timestamp"},
		{"a malformed timestamp", func(w *testsupport.WillConnect) { w.Ts = "now" }, 0x83, "malformed timestamp"},
		{"a malformed fencing token", func(w *testsupport.WillConnect) { w.Ft = "mine" }, 0x83, "malformed timestamp"},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{})
			observer := testsupport.Connect(t, address, "observer", nil)
			observer.Do("SET", "k", "v")
			w := testsupport.RequestWill("p", "DEL", "k")
			test.change(&w)
			conn := testsupport.DialTCP(t, address)
			testsupport.Send(t, conn, w.Packet("p"))
			packet, err := packets.ReadPacket(conn)
			if err != nil {
				t.Fatal(err)
			}
			connack, ok := packet.Content.(*packets.Connack)
			if !ok || connack.ReasonCode != test.code || !strings.Contains(connack.Properties.ReasonString, test.reason) {
				t.Errorf("got %v\nwant %#x with %q", packet, test.code, test.reason)
			}
			if ours := strings.Contains(connack.Properties.ReasonString, "Will"); !ours && test.code != 0x9b && test.code != 0x82 {
				t.Errorf("the reason does not say that it is about the Will: %q", connack.Properties.ReasonString)
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("the connection goes on")
			}
			testsupport.Eventually(t, "the connection ends", func() bool { return s.Sockets() == 1 })
			observer.MustGet("k", "v")
			if got := s.Stats().AppliedWills; got != 0 {
				t.Errorf("%d Wills are counted as applied", got)
			}
		})
	}
}

// The clients of a server that stops are alive. A lease that their Wills released could go to a client
// that is still connected, in a store that is about to end.
func TestNoWillIsAppliedWhenTheServerStops(t *testing.T) {
	for range 20 {
		s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx) }()
		address := s.Addr().String()
		watcher := testsupport.WatchKey(t, address, "lock")
		testsupport.RequestWill("p", "VDEL", "lock", "p:1").Connect(t, address, "p").MustDo(t, 0, "+OK\r\n", "SET", "lock", "p:1")
		watcher.MustBeNotified("SET", "VALUE", "p:1")
		stop()
		testsupport.MustReturn(t, served, nil)
		watcher.MustBeDisconnected(testsupport.ReasonShuttingDown)
		if len(watcher.Notified) > 0 {
			t.Errorf("the watcher was notified of %q", watcher.NextNotification().Payload)
		}
		if got := s.Stats().AppliedWills; got != 0 {
			t.Errorf("%d Wills were applied", got)
		}
	}
}

func TestAWillIsAppliedBeforeTheNextConnectionAndDoesNotWaitForACommit(t *testing.T) {
	d := startDurable(t, server.Options{})
	listener := testsupport.Connect(t, d.address, "listener", nil)
	listener.Subscribe("replies/of/wills")
	watcher := testsupport.WatchKey(t, d.address, "lock")
	w := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
	w.Response = "replies/of/wills"
	c := w.Connect(t, d.address, "p")
	c.MustDo(t, 0, "+OK\r\n", "SET", "lock", "p:1", "NEX", "PX", "600000")
	watcher.MustBeNotified("SET", "VALUE", "p:1")
	release := d.journal.Hold()
	defer release()
	c.Reset()
	testsupport.Eventually(t, "the Will is applied", func() bool { return d.server.Stats().AppliedWills == 1 })
	next := testsupport.Connect(t, d.address, "p", nil)
	get := next.SendRequest("GET", "lock")
	listener.MustBeSilent()
	watcher.MustBeSilent()
	release()
	next.MustBeAnswered(get, "$-1\r\n")
	if got := string(listener.Next().Payload); got != ":1\r\n" {
		t.Errorf("the reply to the Will is %q", got)
	}
	watcher.MustBeNotified("DELETE")
}

// A Will must not make the next connection of its client wait for ever. The lease runs out by itself.
func TestAWillIsDroppedIfTheJournalTakesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := new(transporttest.Journal)
		var log logbuffer.Buffer
		s := servertest.NewWithOptions(t, servertest.Options{InMemory: true, Journal: journal, Server: server.Options{Logger: log.Logger()}})
		holder := s.Client(t, "holder")
		l, err := lease.New(holder, "lock", lease.Options{TTL: 5 * time.Second, InstantFailover: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		journal.SetLatency(20 * time.Second)
		writer := s.Client(t, "writer")
		ctx, cancel := context.WithCancel(t.Context())
		var writes sync.WaitGroup
		for i := range 12 { // more than may wait for a commit
			writes.Go(func() {
				_, _ = writer.Set(ctx, fmt.Sprint(i), make([]byte, 1_000_000), transport.SetOptions{})
			})
		}
		time.Sleep(time.Second)
		s.Cut()
		time.Sleep(4 * time.Second)
		if got := s.Server().Stats().Dropped[server.DroppedJournalSlow]; got != 0 {
			t.Errorf("%d Wills are dropped after four seconds", got)
		}
		time.Sleep(2 * time.Second)
		if got := s.Server().Stats(); got.Dropped[server.DroppedJournalSlow] != 1 || got.Connected != 2 {
			t.Errorf("%d Wills are dropped, want 1; %d clients are connected again, want 2", got.Dropped[server.DroppedJournalSlow], got.Connected)
		}
		if !strings.Contains(log.String(), "the journal did not go on in time for a Will") {
			t.Errorf("the log does not say so:\n%s", &log)
		}
		cancel()
		await.Done(writes.Wait)
		journal.SetLatency(0)
		time.Sleep(time.Minute) // the commit under way ends
	})
}

// The Will of a connection ends with its server, and so does the connection. So the next server releases
// what the Will would have released, as soon as it serves, and nothing else.
func TestInvariant62WhatAWillWouldReleaseIsReleasedByTheNextServer(t *testing.T) {
	for _, test := range []struct {
		name  string
		will  []string
		set   []string
		rules access.Authorizer
		gone  bool
	}{
		{"the lease of the Will", []string{"VDEL", "lock", "p:1"}, []string{"SET", "lock", "p:1", "NEX", "PX", "600000"}, nil, true},
		{"another value", []string{"VDEL", "lock", "p:1"}, []string{"SET", "lock", "p:2", "NEX", "PX", "600000"}, nil, false},
		{"another key", []string{"VDEL", "other", "p:1"}, []string{"SET", "lock", "p:1", "NEX", "PX", "600000"}, nil, false},
		{"a Will that the client has no right to", []string{"VDEL", "lock", "p:1"}, []string{"SET", "lock", "p:1", "NEX", "PX", "600000"},
			mayNot(statestore.VerbVDel), false},
	} {
		for _, end := range []struct {
			name    string
			restart func(*durable)
		}{{"stopped", (*durable).restart}, {"crashed", (*durable).crash}} {
			t.Run(test.name+", "+end.name, func(t *testing.T) {
				d := startDurable(t, server.Options{Authorizer: test.rules})
				c := testsupport.RequestWill("p", test.will...).Connect(t, d.address, "p")
				c.MustDo(t, 0, "+OK\r\n", test.set...)
				commits := d.journal.Commits()
				c.MustDo(t, 1, "+OK\r\n", test.set...)
				if got := d.journal.Commits(); got != commits {
					t.Errorf("the renewal caused %d commits", got-commits)
				}
				testsupport.Connect(t, d.address, "reader", nil).MustGet("lock", test.set[2])
				end.restart(d)
				left := test.set[2]
				if test.gone {
					left = ""
				}
				testsupport.Connect(t, d.address, "reader", nil).MustGet("lock", left)
			})
		}
	}
}

// mayNot is an access rule: everything is allowed but one verb.
type mayNot statestore.Verb

func (m mayNot) Authorize(_ access.Identity, verb statestore.Verb, _ string) bool {
	return verb != statestore.Verb(m)
}
