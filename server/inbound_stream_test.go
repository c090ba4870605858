package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/statestore"
)

func TestRequestsThatComeTogetherAreAnsweredInTheirOrder(t *testing.T) {
	const requests = 1000
	address := start(t, server.Options{})
	c := rawTo(t, address, "p")
	var segment []byte
	for i := range requests {
		if i == requests/2 {
			segment = append(segment, 0xc0, 0) // PINGREQ
		}
		segment = append(segment, packetOf(t, c.request("SET", "k", fmt.Sprint(i)))...)
	}
	go func() { _, _ = c.conn.Write(segment) }()
	for i := range requests {
		if i == requests/2 {
			if pong := c.read(); pong[0] != 0xd0 {
				t.Fatalf("read %x, want PINGRESP", pong)
			}
		}
		reply, _ := frame.ParsePublish(c.read())
		if got, want := string(reply.CorrelationData), fmt.Sprintf("%016d", i+1); got != want {
			t.Fatalf("the reply to %q came, want %q", got, want)
		}
		if ack, ok := frame.ParsePuback(c.read()); !ok || int(ack.PacketID) != i+1 {
			t.Fatalf("the PUBACK for %d came, want %d", ack.PacketID, i+1)
		}
	}
	if got, want := c.do("GET", "k"), "$3\r\n999\r\n"; got != want {
		t.Errorf("k holds %q", got)
	}

}

// [MQTT-4.6.0-2]: how many requests must be remembered rests on it.
func TestAcknowledgementsLeaveInTheOrderOfWhatTheyAcknowledge(t *testing.T) {
	const messages, size = 600, 32 << 10 // more than the sockets hold
	address := start(t, server.Options{Limits: server.Limits{OutgoingBytes: 2 * messages * size}})
	c, other := rawTo(t, address, "p"), rawTo(t, address, "other")
	c.subscribe("news")
	for range messages {
		other.write(packet(0x30, text("news"), []byte{0}, make([]byte, size)))
	}
	other.do("GET", "k") // all of them were handled
	ordinary := c.request("GET", "k")
	ordinary.Topic = "factory"
	c.write(packetOf(t, ordinary), packetOf(t, c.request("GET", "k")))
	received, acknowledged := 0, uint16(0)
	for received < messages || acknowledged < 2 {
		switch packet := c.read(); packet[0] {
		case 0x30:
			if len(packet) > size {
				received++
			}
		case 0x40:
			ack, _ := frame.ParsePuback(packet)
			if acknowledged++; ack.PacketID != acknowledged {
				t.Errorf("the PUBACK for %d came, want %d", ack.PacketID, acknowledged)
			}
		}
	}
}

func TestARequestMayComeInPieces(t *testing.T) {
	c := rawTo(t, start(t, server.Options{}), "p")
	var stream []byte
	for i := range 3 {
		stream = append(stream, packetOf(t, c.request("SET", "k", fmt.Sprint(i)))...)
		stream = append(stream, 0xc0, 0)
	}
	for i := range stream {
		c.write(stream[i : i+1])
	}
	for range 3 {
		if got := string(c.readReply().Payload); got != "+OK\r\n" {
			t.Errorf("reply %q", got)
		}
		if pong := c.read(); pong[0] != 0xd0 {
			t.Errorf("read %x, want PINGRESP", pong)
		}
	}
}

func TestWhatIsNotMQTTEndsTheConnectionAfterTheRequestsBeforeIt(t *testing.T) {
	for _, garbage := range []string{
		"\x00\x00",                 // no type
		"\x30\xff\xff\xff\xff\xff", // no length
		"\x3f\x00GET / HTTP/1.1\r\n\r\n",
	} {
		address := start(t, server.Options{})
		c := rawTo(t, address, "p")
		c.write(packetOf(t, c.request("SET", "k", "v")), packetOf(t, c.request("GET", "k")), []byte(garbage), packetOf(t, c.request("SET", "k", "w")))
		c.readReply()
		if got := string(c.readReply().Payload); got != "$1\r\nv\r\n" {
			t.Errorf("%q: reply %q", garbage, got)
		}
		for {
			packet, err := c.tryRead()
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%q: the connection goes on", garbage)
				}
				break
			}
			if packet[0] != 0xe0 {
				t.Errorf("%q: read %q", garbage, packet)
			}
		}
		if got := rawTo(t, address, "other").do("GET", "k"); got != "$1\r\nv\r\n" {
			t.Errorf("%q: k holds %q", garbage, got)
		}
	}
}

func TestAClientThatIsSentAwayGetsTheAnswersToWhatItSentBefore(t *testing.T) {
	c := rawTo(t, start(t, server.Options{}), "p")
	c.write(packetOf(t, c.request("SET", "k", "v")), packet(0x34, text("factory"), []byte{0, 9, 0}))
	if got := string(c.readReply().Payload); got != "+OK\r\n" {
		t.Errorf("reply %q", got)
	}
	if farewell := c.read(); farewell[0] != 0xe0 || farewell[2] != 0x9b {
		t.Errorf("read %x, want DISCONNECT: QoS not supported", farewell)
	}
}

func TestARequestMayComeWithItsCONNECTButNotBeforeIt(t *testing.T) {
	address := start(t, server.Options{})
	c := &raw{t: t, id: "p", conn: socketTo(t, address), stamp: inAMinute()}
	c.input = bufio.NewReader(c.conn)
	connect := packet(0x10, text("MQTT"), []byte{5, 2, 0, 60, 0}, text("p"))
	subscribe := packet(0x82, []byte{0, 9, 0}, text(c.topic()), []byte{1})
	c.write(connect, subscribe, packetOf(t, c.request("SET", "k", "v")))
	if connack, suback := c.read(), c.read(); connack[0] != 0x20 || suback[0] != 0x90 {
		t.Fatalf("read %x and %x", connack, suback)
	}
	if got := string(c.readReply().Payload); got != "+OK\r\n" {
		t.Errorf("reply %q", got)
	}
	early := &raw{t: t, id: "early", conn: socketTo(t, address), stamp: inAMinute()}
	early.input = bufio.NewReader(early.conn)
	early.write(packetOf(t, early.request("SET", "k", "w")), connect)
	if packet, err := early.tryRead(); err == nil {
		t.Errorf("read %q", packet)
	}
	if got := c.do("GET", "k"); got != "$1\r\nv\r\n" {
		t.Errorf("k holds %q", got)
	}
}

// gate is an Authorizer that lets nobody through for one key until it is opened.
type gate struct{ entered, opened chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}), make(chan struct{})} }

func (g *gate) Authorize(_ access.Identity, _ statestore.Verb, key string) bool {
	if key == "gate" {
		close(g.entered)
		await.Receive(g.opened)
	}
	return true
}

func TestANotificationDoesNotWaitForTheEndOfABurstOfRequests(t *testing.T) {
	g := newGate()
	address := start(t, server.Options{Authorizer: g})
	c, other := rawTo(t, address, "p"), rawTo(t, address, "other")
	c.do("KEYNOTIFY", "k")
	c.write(packetOf(t, c.request("GET", "a")), packetOf(t, c.request("GET", "gate")))
	await.Receive(g.entered)
	other.do("SET", "k", "v")
	// What was held back leaves before it.
	if got := c.readReply().CorrelationData; string(got) != fmt.Sprintf("%016d", c.sent-1) {
		t.Errorf("the reply to %q came", got)
	}
	notification, _ := frame.ParsePublish(c.read())
	if !strings.HasPrefix(string(notification.Topic), reservedPrefix) {
		t.Errorf("a message came on %q", notification.Topic)
	}
	close(g.opened)
	c.readReply()
}

// The goroutine that applies requests may have the processor for longer than it takes to
// fill an outbox.
func TestAWatcherThatReadsIsNotTakenForSlowDuringABurstOfRequests(t *testing.T) {
	const requests = 20_000
	processors := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(processors)
	address := start(t, server.Options{Limits: server.Limits{OutgoingBytes: 256 << 10}})
	watcher, c := rawTo(t, address, "watcher"), rawTo(t, address, "p")
	watcher.do("KEYNOTIFY", "k")
	var burst []byte
	for range requests {
		burst = append(burst, packetOf(t, c.request("SET", "k", "v"))...)
	}
	go func() { _, _ = c.conn.Write(burst) }()
	go func() { _, _ = io.Copy(io.Discard, c.conn) }()
	for range requests {
		if notification, ok := frame.ParsePublish(watcher.read()); !ok || !bytes.Contains(notification.Payload, []byte("NOTIFY")) {
			t.Fatalf("read %q", notification.Payload)
		}
	}
}

func TestALargeReplyDoesNotWaitForTheEndOfABurstOfRequests(t *testing.T) {
	g := newGate()
	c := rawTo(t, start(t, server.Options{Authorizer: g}), "p")
	c.do("SET", "k", strings.Repeat("v", 20<<10))
	c.write(packetOf(t, c.request("GET", "nothing")), packetOf(t, c.request("GET", "k")), packetOf(t, c.request("GET", "gate")))
	await.Receive(g.entered)
	c.readReply()
	if got := len(c.readReply().Payload); got < 20<<10 {
		t.Errorf("a reply of %d bytes came", got)
	}
	close(g.opened)
	c.readReply()
}

// The new connection of a client waits for the old one to be over; what that had read
// by then and not applied is lost, as if it had not been sent.
func TestNothingIsAppliedForAConnectionThatWasClosed(t *testing.T) {
	g := newGate()
	address := start(t, server.Options{Authorizer: g})
	old := rawTo(t, address, "p")
	old.write(packetOf(t, old.request("SET", "gate", "v")), packetOf(t, old.request("SET", "k", "v")))
	await.Receive(g.entered)
	established := make(chan *raw)
	go func() { established <- rawTo(t, address, "p") }()
	for { // the old one is told to go
		packet, err := old.tryRead()
		if err != nil {
			break
		}
		if packet[0] != 0xe0 {
			t.Errorf("read %q", packet)
		}
	}
	close(g.opened)
	if got := (await.Receive(established)).do("GET", "k"); got != "$-1\r\n" {
		t.Errorf("k holds %q", got)
	}

}

func TestAClientThatDoesNotReadItsRepliesIsGivenUpAndHarmsNobody(t *testing.T) {
	t.Parallel() // it is given up after seconds
	address, s := startServer(t, server.Options{})
	other, slow := rawTo(t, address, "other"), rawTo(t, address, "slow")
	const size = 64 << 10
	slow.do("SET", "k", strings.Repeat("v", size))
	before := s.Stats().Requests
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := slow.conn.Write(packetOf(t, slow.request("GET", "k"))); err != nil {
				return
			}
		}
	}()
	asked := uint64(0)
	for s.Stats().SlowReaders == 0 {
		other.do("GET", "nothing")
		asked++
	}
	await.Receive(ended)
	// The sockets hold a few megabytes, and the server hardly more.
	if served := s.Stats().Requests - before - asked; served > 64<<20/size {
		t.Errorf("%d replies of %d bytes each were made for a client that did not read", served, size)
	}
}

func TestOnlyPacketsOfItsOwnKeepAClientConnected(t *testing.T) {
	const keepAlive, patience = 10, 15 * time.Second
	synctest.Test(t, func(t *testing.T) {
		dial, stop := startInMemory(t)
		c := connectRaw(t, dial(), "p", keepAlive, "")
		_ = c.conn.SetDeadline(time.Time{})
		for range 10 {
			time.Sleep(patience - time.Second)
			c.do("SET", "k", "v")
		}
		last := time.Now()
		time.Sleep(patience / 3)
		c.write(packetOf(t, c.request("SET", "k", "w"))[:20])
		if _, err := c.tryRead(); err == nil {
			t.Error("something came")
		}
		if silent := time.Since(last); silent != patience {
			t.Errorf("the client was given up after %v, want %v", silent, patience)
		}
		stop()
	})
}

// startInMemory runs a server that clients reach without sockets.
func startInMemory(t *testing.T) (dial func() net.Conn, stop func()) {
	t.Helper()
	pipes := newPipes()
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	s.WrapListener(func(socket net.Listener) net.Listener {
		_ = socket.Close()
		return pipes
	})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- s.Serve(ctx) }()
	return pipes.dial, func() {
		cancel()
		if err := await.Receive(served); err != nil {
			t.Error(err)
		}
	}
}

// What mochi never sees counts too: messages, acknowledgements and subscriptions.
func TestEveryPacketOfAClientKeepsItConnected(t *testing.T) {
	const keepAlive, patience = 10, 15 * time.Second
	for name, say := range map[string]func(*messenger){
		"messages of QoS 0": func(c *messenger) { c.send(rawmqtt.Message{Topic: "t"}) },
		"messages of QoS 1": func(c *messenger) { c.publish(rawmqtt.Message{Topic: "t"}) },
		"acknowledgements":  func(c *messenger) { c.ack(heard{id: 77}) },
		"subscriptions":     func(c *messenger) { c.hears("t") },
		"unsubscriptions":   func(c *messenger) { c.write(packet(0xa2, []byte{0, 9, 0}, text("u"))); c.read() },
		"nothing":           nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial, stop := startInMemory(t)
				conn := dial()
				_ = conn.SetDeadline(time.Now().Add(patience))
				c := &messenger{raw: &raw{t: t, id: "p", conn: conn, input: bufio.NewReader(conn)}}
				c.write(hello{id: "p", keepAlive: keepAlive}.packet())
				c.read()
				_ = conn.SetDeadline(time.Time{})
				last := time.Now()
				c.hears("news")
				for range 5 {
					if say != nil {
						time.Sleep(patience - time.Second)
						last = time.Now()
						say(c)
					}
				}
				if _, err := c.tryRead(); err == nil {
					t.Error("something came")
				}
				if silent := time.Since(last); silent != patience {
					t.Errorf("the client was given up after %v, want %v", silent, patience)
				}
				stop()
			})
		})
	}
}

// pipes is a listener in memory.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.accepted <- there
	return here
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Requests lie where the ones before them lay.
func TestInvariant44NothingIsKeptOfWhereARequestLay(t *testing.T) {
	c := rawTo(t, start(t, server.Options{}), "p")
	const token = "5:0:nodeAAAA"
	set := func(key, value, token string) frame.Message {
		request := c.request("SET", key, value)
		request.User = append(request.User, frame.UserProperty{Name: "__ft", Value: token})
		return request
	}
	overwrite := func() {
		for range 3 {
			request := set("zzzz", "yyyy", "9:9:xxxxxxxx")
			request.CorrelationData = bytes.Repeat([]byte("w"), 16)
			c.write(packetOf(t, request))
			c.readReply()
		}
	}
	first := set("keyA", "valA", token)
	c.write(packetOf(t, first))
	reply := c.readReply()
	overwrite()
	c.do("KEYNOTIFY", "keyA")
	overwrite()
	c.write(packetOf(t, first)) // once more
	if again := c.readReply(); !bytes.Equal(again.Payload, reply.Payload) {
		t.Errorf("a redelivery is answered with %q, the first was with %q", again.Payload, reply.Payload)
	}
	if got := c.do("GET", "keyA"); got != "$4\r\nvalA\r\n" {
		t.Errorf("keyA holds %q", got)
	}
	c.write(packetOf(t, set("keyA", "valB", "5:0:nodeAAA@"))) // older by its last letter
	if got := string(c.readReply().Payload); !strings.Contains(got, "lower version") {
		t.Errorf("an older token: %q", got)
	}
	c.write(packetOf(t, set("keyA", "valB", token)))
	var seen [2]bool // in any order
	for range 3 {
		packet, _ := frame.ParsePublish(c.read())
		switch string(packet.Topic) {
		case c.topic():
			seen[0] = string(packet.Payload) == "+OK\r\n"
		case reservedPrefix + "/70/command/notify/6B657941":
			seen[1] = string(packet.Payload) == string(command("NOTIFY", "SET", "VALUE", "valB"))
		}
	}
	if !seen[0] || !seen[1] {
		t.Errorf("the same token, reply and notification: %v", seen)
	}
}

// [MQTT-3.3.4-3]
func TestAReplyHasTheIdentifierOfItsSubscription(t *testing.T) {
	c := rawTo(t, start(t, server.Options{}), "p")
	c.change(packet(0x82, []byte{0, 9, 2, 0x0b, 5}, text("clients/p/identified"), []byte{1}))
	request := c.request("GET", "k")
	request.ResponseTopic = "clients/p/identified"
	c.write(packetOf(t, request))
	if reply := c.read(); reply[0] != 0x30 || !bytes.Contains(reply, []byte{0x0b, 5}) {
		t.Errorf("got %q, want a reply with the identifier 5", reply)
	}
}

func TestARepliesReadersAreThoseOfTheMoment(t *testing.T) {
	address := start(t, server.Options{})
	c, reader := rawTo(t, address, "p"), rawTo(t, address, "reader")
	const topic = "elsewhere/answers"
	check := func(what string, readers ...*raw) {
		t.Helper()
		request := c.request("GET", "k")
		request.ResponseTopic = topic
		c.write(packetOf(t, request))
		packets := 1
		for _, r := range readers {
			if r == c {
				packets++
			} else if reply, _ := frame.ParsePublish(r.read()); string(reply.Topic) != topic {
				t.Errorf("%s: the reader got a message on %q", what, reply.Topic)
			}
		}
		c.readAll(packets, false)
	}
	check("nobody")
	c.subscribe(topic)
	check("the requester", c)
	check("the requester, once more", c)
	reader.subscribe("elsewhere/#")
	check("both", c, reader)
	reader.unsubscribe("elsewhere/#")
	check("the requester again", c)
	reader.subscribe("+/answers")
	check("both again", c, reader)
	_ = reader.conn.Close()
	check("the requester, the reader being gone", c)
	c.unsubscribe(topic)
	check("nobody again")
}

func TestADISCONNECTAfterRequestsIsUnderstood(t *testing.T) {
	for _, test := range []struct {
		name       string
		disconnect string
		will       bool
	}{
		{"normal", "\xe0\x00", false},
		{"normal, with a reason", "\xe0\x01\x00", false},
		{"normal, with all", "\xe0\x02\x00\x00", false},
		{"with the Will", "\xe0\x01\x04", true},
		{"with the Will and all", "\xe0\x02\x04\x00", true},
		{"for another reason", "\xe0\x01\x80", true},
		{"none", "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := startServer(t, server.Options{})
			observer, other := rawTo(t, address, "observer"), rawTo(t, address, "other")
			observer.subscribe("gone")
			conn := socketTo(t, address)
			c := &raw{t: t, id: "p", conn: conn, stamp: inAMinute()}
			c.write(packet(0x10, text("MQTT"), []byte{5, 2 | 4 | 8, 0, 60, 0}, text("p"), []byte{0}, text("gone"), text("will")))
			c.write(packetOf(t, c.request("SET", "k", "v")), packetOf(t, c.request("SET", "k", "w")), []byte(test.disconnect))
			if test.disconnect == "" {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			_, _ = io.Copy(io.Discard, conn) // until the server has closed it
			_ = conn.Close()
			for s.Stats().Connected > 2 {
				time.Sleep(time.Millisecond)
			}
			if got := other.do("GET", "k"); got != "$1\r\nw\r\n" {
				t.Errorf("k holds %q", got)
			}
			other.write(packet(0x30, text("gone"), []byte{0}, []byte("last")))
			if got, _ := frame.ParsePublish(observer.read()); (string(got.Payload) == "will") != test.will {
				t.Errorf("the observer got %q", got.Payload)
			}
		})
	}
}

// What a SET costs is in the way of every renewal.
func TestTheServersSideOfASETAllocatesLittle(t *testing.T) {
	if underRace {
		t.Skip("the race detector allocates")
	}
	c := rawTo(t, start(t, server.Options{}), "p")
	request := packetOf(t, c.request("SET", "lock", "p:0001", "NEX", "PX", "10000"))
	at := bytes.Index(request, fmt.Appendf(nil, "%016d", c.sent))
	answer := make([]byte, 4096)
	answered := func() {
		binary.BigEndian.PutUint32(request[at:], binary.BigEndian.Uint32(request[at:])+1)
		if _, err := c.conn.Write(request); err != nil {
			t.Fatal(err)
		}
		if n, err := io.ReadAtLeast(c.conn, answer, 100); err != nil || answer[n-4] != 0x40 {
			t.Fatalf("read %q, %v", answer[:n], err)
		}
	}
	for range 1000 {
		answered()
	}
	if got := testing.AllocsPerRun(1000, answered); got > 5 {
		t.Errorf("a SET allocates %v times; want 5 at most", got)
	}
}

// An acknowledgement that goes through the broker, as of a request whose reply its client
// does not take, comes after what is held back of the requests before it.
func TestAcknowledgementsThroughTheBrokerOvertakeNothing(t *testing.T) {
	const limit = 300
	address := start(t, server.Options{})
	rawTo(t, address, "other").do("SET", "large", strings.Repeat("v", limit))
	c := connectRaw(t, socketTo(t, address), "p", 60, string(binary.BigEndian.AppendUint32([]byte{0x27}, limit)))
	c.write(packetOf(t, c.request("GET", "a")), packetOf(t, c.request("GET", "large")), packetOf(t, c.request("GET", "b")))
	for acknowledged := uint16(0); acknowledged < 3; {
		packet := c.read()
		if len(packet) > limit {
			t.Errorf("a packet of %d bytes came", len(packet))
		}
		if ack, ok := frame.ParsePuback(packet); ok {
			if acknowledged++; ack.PacketID != acknowledged {
				t.Fatalf("the PUBACK for %d came, want %d", ack.PacketID, acknowledged)
			}
		}
	}
}

func TestANotificationLargerThanItsClientTakesIsLeftOut(t *testing.T) {
	const limit = 300
	address, s := startServer(t, server.Options{})
	watcher, other := connectRaw(t, socketTo(t, address), "p", 60, string(binary.BigEndian.AppendUint32([]byte{0x27}, limit))), rawTo(t, address, "other")
	watcher.do("KEYNOTIFY", "k")
	for _, value := range []string{"first", strings.Repeat("v", limit), "last"} {
		other.do("SET", "k", value)
	}
	for _, want := range []string{"first", "last"} {
		if got, ok := frame.ParsePublish(watcher.read()); !ok || !bytes.Contains(got.Payload, []byte(want)) {
			t.Errorf("read %q, want the notification of %q", got.Payload, want)
		}
	}
	eventually(t, "no room is taken any more", func() bool { return s.Usage().OutgoingBytes == 0 })
}

// It will connect again then, and read again. What it would believe after a gap is not
// true any more.
func TestAWatcherThatFallsBehindIsSentAwayBeforeItMissesANotification(t *testing.T) {
	address, s := startServer(t, server.Options{MaxPacketSize: 1 << 20})
	watcher, other := rawTo(t, address, "watcher"), rawTo(t, address, "other")
	watcher.do("KEYNOTIFY", "k")
	padding := strings.Repeat("v", 16<<10)
	written := 0
	for ; s.Stats().SlowReaders == 0; written++ {
		if written > 5000 { // the sockets hold a few megabytes, and the server 2,000 notifications
			t.Error("it is not sent away")
			break
		}
		other.do("SET", "k", fmt.Sprintf("%d %s", written, padding))
	}
	for number := 0; number < written; number++ {
		packet, err := watcher.tryRead()
		if err != nil {
			break // and what is to come is lost with the connection
		}
		if notification, ok := frame.ParsePublish(packet); packet[0] == 0x30 && (!ok || !bytes.Contains(notification.Payload, fmt.Appendf(nil, "\n%d v", number))) {
			t.Fatalf("read %.50q, want notification %d", notification.Payload, number)
		}
	}
}
