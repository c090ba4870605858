package server_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"github.com/tenurelock/tenure/internal/frame"
	"io"
	"log/slog"
	"net"
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
	"github.com/tenurelock/tenure/statestore"
)

// A testament is a CONNECT with a Will, written by hand: paho leaves out the response
// topic and the correlation data of a Will.
type testament struct {
	version   byte
	keepAlive uint16
	session   uint32 // how long it is kept, in seconds
	user      string // none if empty

	topic   string
	qos     byte
	retain  bool
	payload []byte

	response, correlation string // absent if empty
	delay, expiry         uint32 // absent if 0
	ts, ft                string // absent if empty
}

// bequeath returns the testament of a client that lacks nothing.
func bequeath(id string, words ...string) testament {
	return testament{
		version: 5, keepAlive: 600, topic: invokeTopic, qos: 1, payload: command(words...),
		response: "clients/" + id + "/response", correlation: "the will of " + id,
	}
}

func (w testament) packet(id string) string {
	field := func(text string) string {
		return string(binary.BigEndian.AppendUint16(nil, uint16(len(text)))) + text
	}
	number := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	counted := func(text string) string {
		length := binary.AppendUvarint(nil, uint64(len(text))) // which is MQTT's too
		return string(length) + text
	}
	flags := byte(0x04) | w.qos<<3
	if w.session == 0 {
		flags |= 0x02 // begin a new session
	}
	if w.retain {
		flags |= 0x20
	}
	if w.user != "" {
		flags |= 0xc0
	}
	body := field("MQTT") + string([]byte{w.version, flags}) + string(binary.BigEndian.AppendUint16(nil, w.keepAlive))
	if w.version == 5 {
		body += counted("\x11" + number(w.session))
	}
	body += field(id)
	if w.version == 5 {
		var properties string
		if w.response != "" {
			properties += "\x08" + field(w.response)
		}
		if w.correlation != "" {
			properties += "\x09" + field(w.correlation)
		}
		if w.delay != 0 {
			properties += "\x18" + number(w.delay)
		}
		if w.expiry != 0 {
			properties += "\x02" + number(w.expiry)
		}
		if w.ts != "" {
			properties += "\x26" + field("__ts") + field(w.ts)
		}
		if w.ft != "" {
			properties += "\x26" + field("__ft") + field(w.ft)
		}
		body += counted(properties)
	}
	body += field(w.topic) + field(string(w.payload))
	if w.user != "" {
		body += field(w.user) + field("secret")
	}
	return "\x10" + counted(body)
}

// leave connects a client with this testament. It must be accepted.
func (w testament) leave(t testing.TB, address, id string) *bare {
	t.Helper()
	c, err := w.tryLeave(t, address, id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w testament) tryLeave(t testing.TB, address, id string) (*bare, error) {
	t.Helper()
	c := &bare{id: id, conn: dialRaw(t, address), replyTo: "clients/" + id + "/response"}
	c.in = bufio.NewReader(c.conn)
	c.patient()
	if _, err := io.WriteString(c.conn, w.packet(id)); err != nil {
		return nil, err
	}
	if err := c.expect(packets.CONNACK); err != nil {
		return nil, err
	}
	return c, c.follow(c.replyTo, 1)
}

// must asks, and fails unless the answer is this one.
func (c *bare) must(t testing.TB, n int, want string, words ...string) {
	t.Helper()
	if err := c.ask(n, nil, demand{words, want}); err != nil {
		t.Fatalf("%s: %v", c.id, err)
	}
}

// say writes what no client library would.
func (c *bare) say(data string) { _, _ = io.WriteString(c.conn, data) }

func watch(t *testing.T, address, key string) *peer {
	t.Helper()
	p := connect(t, address, "watcher", nil)
	if got := p.do("KEYNOTIFY", key); got != "+OK\r\n" {
		t.Fatal(got)
	}
	return p
}

// mustSee fails unless the next notification says this.
func (p *peer) mustSee(event ...string) {
	p.t.Helper()
	if got, want := string(p.nextNotification().Payload), string(command(append([]string{"NOTIFY"}, event...)...)); got != want {
		p.t.Errorf("%s: notified of %q, want %q", p.id, got, want)
	}
}

func TestAWillThatIsARequestIsAppliedOnceHoweverTheConnectionEndsButNotAfterADisconnect(t *testing.T) {
	raw := func(data string) func(*bare) {
		return func(c *bare) { c.say(data) }
	}
	request := func(change func(*packets.Publish)) func(*bare) {
		return func(c *bare) { _ = c.send(c.request(1, change, "GET", "k")) }
	}
	for _, test := range []struct {
		name    string
		end     func(*bare)
		applied bool
	}{
		{"closed", func(c *bare) { _ = c.conn.Close() }, true},
		{"reset", (*bare).drop, true},
		{"keep-alive timeout", func(*bare) {}, true},
		{"a second CONNECT", raw(bequeath("p", "VDEL", "lock", "p:1").packet("p")), true},
		{"a malformed packet", raw("\x30\x02\xff\xff"), true},
		{"a packet that is too large", raw("\x30\xff\xff\xff\x7f"), true},
		{"a publish with QoS 2", request(func(m *packets.Publish) { m.QoS = 2 }), true},
		{"a forbidden response topic", request(func(m *packets.Publish) { m.Properties.ResponseTopic = invokeTopic }), true},
		{"DISCONNECT with Will", raw("\xe0\x02\x04\x00"), true},
		{"DISCONNECT with Will and no properties", raw("\xe0\x01\x04"), true},
		{"DISCONNECT for an error", raw("\xe0\x02\x82\x00"), true},
		{"DISCONNECT for an error and no properties", raw("\xe0\x01\x80"), true},
		{"DISCONNECT", raw("\xe0\x00"), false},
		{"DISCONNECT with a reason", raw("\xe0\x01\x00"), false},
		{"DISCONNECT with a reason and properties", raw("\xe0\x02\x00\x00"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // one of them takes a second
			address, s := startServer(t, server.Options{})
			watcher := watch(t, address, "lock")
			w := bequeath("p", "VDEL", "lock", "p:1")
			if strings.HasPrefix(test.name, "keep-alive") {
				// Its own expiry counts from when it is applied, as that of any Will counts from
				// when it is published.
				w.keepAlive, w.expiry = 1, 1
			}
			c := w.leave(t, address, "p")
			c.must(t, 0, "+OK\r\n", "SET", "lock", "p:1", "NEX", "PX", "600000")
			watcher.mustSee("SET", "VALUE", "p:1")
			test.end(c)
			wills := uint64(0)
			if test.applied {
				watcher.mustSee("DELETE")
				wills = 1
			}
			eventually(t, "the connection ends", func() bool { return s.Sockets() == 1 })
			watcher.do("SET", "lock", "p:1") // what a second application would delete
			watcher.mustSee("SET", "VALUE", "p:1")
			next := join(t, address, "p", nil)
			next.must(t, 0, "$3\r\np:1\r\n", "GET", "lock")
			if err := next.leave(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the next connection ends", func() bool { return s.Sockets() == 1 })
			watcher.mustGet("lock", "p:1")
			watcher.mustBeSilent()
			if got := s.Stats().AppliedWills; got != wills {
				t.Errorf("%d applied Wills are counted, want %d", got, wills)
			}
		})
	}
}

// Whoever takes a connection over finds what its Will released.
func TestTheWillOfATakenOverConnectionIsAppliedBeforeTheNewOneActs(t *testing.T) {
	for _, kept := range []uint32{0, 600} {
		t.Run(fmt.Sprint("session of ", kept, " s"), func(t *testing.T) {
			address, s := startServer(t, server.Options{})
			const rounds = 50
			for i := range rounds {
				value := fmt.Sprint("p:", i)
				w := bequeath("p", "VDEL", "lock", value)
				w.session, w.correlation = kept, fmt.Sprint("the will of ", i)
				w.leave(t, address, "p").must(t, i, "+OK\r\n", "SET", "lock", value, "NX")
			}
			if got := s.Stats().AppliedWills; got != rounds-1 {
				t.Errorf("%d Wills were applied in %d take-overs", got, rounds-1)
			}
		})
	}
}

// Each connection applies its Will while the next of its name waits for it.
func TestSimultaneousTakeOversWithWillsComeToAnEnd(t *testing.T) {
	address, s := startServer(t, server.Options{})
	var group sync.WaitGroup
	const clients = 40
	for i := range clients {
		group.Go(func() {
			w := bequeath("p", "VDEL", "lock", fmt.Sprint("p:", i))
			// One that is taken over may never get so far.
			if c, err := w.tryLeave(t, address, "p"); err == nil {
				_ = c.ask(0, nil, demand{[]string{"SET", "lock", fmt.Sprint("p:", i), "NEX"}, "+OK\r\n"})
				c.drop()
			}
		})
	}
	await.Done(group.Wait)
	eventually(t, "all connections end", func() bool { return s.Sockets() == 0 })
	if got := s.Stats().AppliedWills; got == 0 || got > clients {
		t.Errorf("%d Wills of %d were applied", got, clients)
	}
	connect(t, address, "observer", nil).mustGet("lock", "")
}

func TestAWillIsAppliedAfterAllThatItsClientSent(t *testing.T) {
	address, s := startServer(t, server.Options{})
	observer := connect(t, address, "observer", nil)
	for i := range 20 {
		key, value := fmt.Sprint("lock-", i), fmt.Sprint("p:", i)
		c := bequeath("p", "VDEL", key, value).leave(t, address, "p")
		demands := make([]demand, 100)
		for i := range demands {
			demands[i].words = []string{"SET", fmt.Sprint("k-", i), "v"}
		}
		demands[len(demands)-1].words = []string{"SET", key, value}
		if err := c.post(0, nil, demands...); err != nil {
			t.Fatal(err)
		}
		_ = c.conn.(*net.TCPConn).CloseWrite() // and still reads, so that nothing is reset
		go func() { _, _ = io.Copy(io.Discard, c.in) }()
		eventually(t, "the connection ends", func() bool { return s.Sockets() == 1 })
		observer.mustGet("k-98", "v")
		observer.mustGet(key, "")
		observer.do("DEL", "k-98")
	}
	if got := s.Stats().AppliedWills; got != 20 {
		t.Errorf("%d Wills were applied", got)
	}
}

// The store judges a Will when it is applied, and its reply goes where a reply goes.
func TestAWillIsJudgedAndAnsweredLikeARequest(t *testing.T) {
	const late = "-ERR the request fencing token is a lower version than the fencing token protecting the resource\r\n"
	now := func(shift time.Duration) string { return fmt.Sprintf("%d:0:p", time.Now().Add(shift).UnixMilli()) }
	token := now(-time.Minute)
	for _, test := range []struct {
		name  string
		will  testament
		reply string
		left  string
	}{
		{"a SET", testament{payload: command("SET", "open", "gone"), ts: now(0)}, "+OK\r\n", "gone"},
		{"a SET from before the connection", testament{payload: command("SET", "open", "gone"), ts: now(-24 * time.Hour)}, "+OK\r\n", "gone"},
		{"a SET from the future", testament{payload: command("SET", "open", "gone"), ts: now(time.Hour)},
			"-ERR the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n", "here"},
		{"a DEL", testament{payload: command("DEL", "open")}, ":1\r\n", ""},
		{"a VDEL of another value", testament{payload: command("VDEL", "open", "there")}, ":-1\r\n", "here"},
		{"a GET", testament{payload: command("GET", "open")}, "$4\r\nhere\r\n", "here"},
		{"without a token", testament{payload: command("DEL", "fenced")}, "-ERR a fencing token is required for this request\r\n", "here"},
		{"with the key's token", testament{payload: command("VDEL", "fenced", "here"), ft: token}, ":1\r\n", ""},
		{"with an older token", testament{payload: command("VDEL", "fenced", "here"), ft: now(-time.Hour)}, late, "here"},
		{"with a token from the future", testament{payload: command("VDEL", "fenced", "here"), ft: now(time.Hour)},
			"-ERR the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n", "here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := startServer(t, server.Options{})
			reader := connect(t, address, "reader", nil)
			reader.do("SET", "open", "here")
			fenced := reader.request("SET", "fenced", "here")
			fenced.Properties.User.Add("__ft", token)
			if _, err := reader.publish(fenced); err != nil || string(reader.next().Payload) != "+OK\r\n" {
				t.Fatal(err)
			}
			reader.subscribe("factory/answers")
			requests := s.Stats().Requests

			w := bequeath("p")
			w.payload, w.ts, w.ft, w.response = test.will.payload, test.will.ts, test.will.ft, "factory/answers"
			_ = w.leave(t, address, "p").conn.Close()
			reply := reader.next()
			if got := string(reply.Payload); reply.Topic != "factory/answers" || got != test.reply {
				t.Errorf("answered %q on %s, want %q", got, reply.Topic, test.reply)
			}
			if got := string(reply.Properties.CorrelationData); got != w.correlation {
				t.Errorf("correlation data %q", got)
			}
			eventually(t, "it is counted", func() bool { return s.Stats().AppliedWills == 1 })
			if got := s.Stats().Requests; got != requests+1 {
				t.Errorf("it is counted as %d requests", got-requests)
			}
			key := "open"
			if strings.Contains(string(w.payload), "fenced") {
				key = "fenced"
			}
			reader.mustGet(key, test.left)
		})
	}
}

// Invariant 23: at most once for each client and correlation. A Will that repeats a
// request of its session is a redelivery of it.
func TestInvariant23AWillThatRepeatsARequestIsNotAppliedAgain(t *testing.T) {
	for _, test := range []struct {
		name        string
		correlation string
		left        string
	}{
		{"the same correlation data", "p/00000001", "p:1"},
		{"correlation data of its own", "p/00000002", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := startServer(t, server.Options{})
			w := bequeath("p", "VDEL", "lock", "p:1")
			w.correlation = test.correlation
			c := w.leave(t, address, "p")
			c.must(t, 0, "+OK\r\n", "SET", "lock", "p:1")
			bareOfProperties := func(m *packets.Publish) { m.Properties.User = nil }
			if err := c.ask(1, bareOfProperties, demand{[]string{"VDEL", "lock", "p:1"}, ":1\r\n"}); err != nil {
				t.Fatal(err)
			}
			c.must(t, 3, "+OK\r\n", "SET", "lock", "p:1")
			_ = c.conn.Close()
			eventually(t, "the Will is applied", func() bool { return s.Stats().AppliedWills == 1 })
			connect(t, address, "observer", nil).mustGet("lock", test.left)
		})
	}
}

// Rights that were lost since CONNECT are lost for the Will.
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
			authorizer := rules{
				key: func(who access.Identity, verb statestore.Verb, key string) bool {
					if who.Client != "p" {
						return true
					}
					asked <- fmt.Sprint(who.User, " ", verb, " ", key)
					return !lostKeys.Load()
				},
				topic: func(who access.Identity, topic string, _ bool) bool {
					return who.Client != "p" || !lostTopics.Load()
				},
			}
			var log syncBuffer
			address, s := startServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer,
				Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
			w := bequeath("p", "VDEL", "lock", "p:1")
			w.user, w.response = "alice", "factory/answers"
			c := w.leave(t, address, "p")
			if len(asked) > 0 {
				t.Errorf("at CONNECT the authorizer was asked for %q", await.Receive(asked))
			}
			c.must(t, 0, "+OK\r\n", "SET", "lock", "p:1")
			if got := await.Receive(asked); got != "alice SET lock" {
				t.Errorf("asked for %q", got)
			}
			lostKeys.Store(test.keys)
			lostTopics.Store(test.topics)
			_ = c.conn.Close()
			eventually(t, "the connection ends", func() bool { return s.Sockets() == 0 })
			if test.dropped == 0 {
				if got := await.Receive(asked); got != "alice VDEL lock" {
					t.Errorf("asked for %q", got)
				}
			}
			stats := s.Stats()
			if got := stats.Dropped[server.DroppedForeignTopic]; stats.AppliedWills != test.applied || got != test.dropped {
				t.Errorf("%d Wills are counted as applied and %d as dropped", stats.AppliedWills, got)
			}
			if text := log.String(); strings.Contains(text, `msg="applied a Will" client=p`) != (test.applied == 1) {
				t.Errorf("the log says\n%s", text)
			}
			connect(t, address, "observer", as("observer")).mustGet("lock", test.left)
		})
	}
}

func TestAWillThatIsNotAValidRequestIsRefusedAtConnectAndNeverApplied(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*testament)
		code   byte
		reason string
	}{
		{"no response topic", func(w *testament) { w.response = "" }, 0x83, "a request needs a response topic"},
		{"no correlation data", func(w *testament) { w.correlation = "" }, 0x83, "a request needs correlation data"},
		{"retained", func(w *testament) { w.retain = true }, 0x83, "a request may not be retained"},
		{"QoS 0", func(w *testament) { w.qos = 0 }, 0x83, "a request needs QoS 1"},
		{"QoS 2", func(w *testament) { w.qos = 2 }, 0x9b, "qos not supported"},
		{"a delay", func(w *testament) { w.delay = 120 }, 0x83, "its Will Delay Interval must be 0, not 120"},
		{"a delay beyond its session", func(w *testament) { w.delay, w.session = 120, 60 }, 0x83, "its Will Delay Interval must be 0, not 120"},
		{"the system topic as response topic", func(w *testament) { w.response = invokeTopic }, 0x87, "the response topic belongs to the state store"},
		{"the store's topic as response topic", func(w *testament) { w.response = reservedPrefix + "/70/command/notify/6B" }, 0x87, "the response topic belongs to the state store"},
		{"a wildcard in the response topic", func(w *testament) { w.response = "clients/+/response" }, 0x90, "in the properties of its Will, a topic name has a wildcard"},
		{"a system response topic", func(w *testament) { w.response = "$SYS/broker" }, 0x90, "nothing can be published to this response topic"},
		{"another client's response topic", func(w *testament) { w.response = "clients/q/response" }, 0x87, "this client may not be answered on this response topic"},
		{"no payload", func(w *testament) { w.payload = nil }, 0x82, ""},
		{"no command", func(w *testament) { w.payload = []byte("nonsense") }, 0x83, "syntax error"},
		{"half a command", func(w *testament) { w.payload = w.payload[:len(w.payload)-1] }, 0x83, "syntax error"},
		{"an unknown command", func(w *testament) { w.payload = command("FROB", "k") }, 0x83, "unknown command"},
		{"too few arguments", func(w *testament) { w.payload = command("VDEL", "k") }, 0x83, "wrong number of arguments"},
		{"an empty key", func(w *testament) { w.payload = command("DEL", "") }, 0x83, "the key length is zero"},
		{"an option that does not exist", func(w *testament) { w.payload = command("SET", "k", "w", "EX", "1") }, 0x83, "syntax error"},
		{"a SET without a timestamp", func(w *testament) { w.payload = command("SET", "k", "w") }, 0x83, "missing timestamp"},
		{"a malformed timestamp", func(w *testament) { w.ts = "now" }, 0x83, "malformed timestamp"},
		{"a malformed fencing token", func(w *testament) { w.ft = "mine" }, 0x83, "malformed timestamp"},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := startServer(t, server.Options{})
			observer := connect(t, address, "observer", nil)
			observer.do("SET", "k", "v")
			w := bequeath("p", "DEL", "k")
			test.change(&w)
			conn := dialRaw(t, address)
			send(t, conn, w.packet("p"))
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
			eventually(t, "the connection ends", func() bool { return s.Sockets() == 1 })
			observer.mustGet("k", "v")
			if got := s.Stats().AppliedWills; got != 0 {
				t.Errorf("%d Wills are counted as applied", got)
			}
		})
	}
}

// docs/protocol.md §1.1: MQTT 5 only.
func TestProtocol1AWillOfAnMQTT311ClientIsNoRequest(t *testing.T) {
	address, s := startServer(t, server.Options{})
	w := bequeath("p", "DEL", "k")
	w.version = 4
	conn := dialRaw(t, address)
	send(t, conn, w.packet("p"))
	connack := make([]byte, 4)
	if _, err := io.ReadFull(conn, connack); err != nil || connack[0] != 0x20 || connack[3] == 0 {
		t.Errorf("CONNACK %x, %v", connack, err)
	}
	if got := s.Stats().RefusedConnections; got != 1 {
		t.Errorf("%d refused connections are counted", got)
	}
}

// The broker publishes Wills without asking who may read them; this one is not its own.
func TestAWillThatIsARequestIsPublishedToNobody(t *testing.T) {
	address, s := startServer(t, server.Options{Retain: true})
	heard := overhear(t, s)
	spy := connect(t, address, "spy", nil)
	for _, filter := range []string{"#", "statestore/#", "+/+/+/+/+"} {
		spy.subscribe(filter)
	}
	_ = bequeath("p", "SET", "k", "v").stamped().leave(t, address, "p").conn.Close()
	eventually(t, "the connection ends", func() bool { return s.Sockets() == 1 })
	connect(t, address, "reader", nil).mustGet("k", "v") // not the spy, who hears more than replies
	spy.say("last", "last")
	heard.until(t, "last", func(message frame.Publish) {
		if string(message.Topic) == invokeTopic {
			t.Errorf("the Will was published: %q", message.Payload)
		}
	})
	for message := spy.next(); string(message.Payload) != "last"; message = spy.next() {
		if message.Topic == invokeTopic {
			t.Errorf("the spy received %v", message)
		}
	}
	mustRetainNothing(t, s)
}

func (w testament) stamped() testament {
	w.ts = fmt.Sprintf("%d:0:p", time.Now().UnixMilli())
	return w
}

// The clients of a server that stops are alive. What their Wills released would go to one
// of those that are still connected, for the moment that this store still exists.
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
		watcher := watch(t, address, "lock")
		bequeath("p", "VDEL", "lock", "p:1").leave(t, address, "p").must(t, 0, "+OK\r\n", "SET", "lock", "p:1")
		watcher.mustSee("SET", "VALUE", "p:1")
		stop()
		mustServe(t, served, nil)
		watcher.mustBeDisconnected(reasonShuttingDown)
		if len(watcher.notified) > 0 {
			t.Errorf("the watcher was notified of %q", watcher.nextNotification().Payload)
		}
		if got := s.Stats().AppliedWills; got != 0 {
			t.Errorf("%d Wills were applied", got)
		}
	}
}

// The server closes such a connection without a word.
func TestTheWillOfAClientThatDoesNotReadIsAppliedWhenItIsGivenUp(t *testing.T) {
	address, s := startServer(t, server.Options{})
	c := bequeath("p", "DEL", "lock").leave(t, address, "p")
	c.must(t, 0, "+OK\r\n", "SET", "lock", "p:1")
	c.must(t, 1, "+OK\r\n", "KEYNOTIFY", "k")
	writer := connect(t, address, "writer", nil)
	value := strings.Repeat("x", 64<<10)
	for s.Stats().SlowReaders == 0 { // it does not read
		writer.do("SET", "k", value)
	}
	eventually(t, "the Will is applied", func() bool { return s.Stats().AppliedWills == 1 })
	writer.mustGet("lock", "")
	_ = writer.paho.Disconnect(&paho.Disconnect{})
}
