package integration_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// notifyTopic is the topic on which client p is notified about key k.
const notifyTopic = testsupport.ReservedPrefix + "/70/command/notify/6B"

// scripted is a broker for one client that does with each CONNECT what a test wants. It serves one
// connection after the other, so that its record is in order.
type scripted struct {
	t        *testing.T
	address  string
	tasks    sync.WaitGroup
	decide   func(connect *packets.Connect) (code byte)
	requests chan *packets.Publish

	mu   sync.Mutex
	conn net.Conn // the latest; nil before
	seen []string // what came in: CONNECT, CONNECT+Will, DISCONNECT with its code
	will []byte   // the latest CONNECT with a Will, as it came in
}

// hangUp is not a reason code: it closes the connection without a packet.
const hangUp = 0xFF

func newScripted(t *testing.T, decide func(connect *packets.Connect) (code byte)) *scripted {
	t.Helper()
	listener := testsupport.Listen(t)
	b := &scripted{t: t, address: listener.Addr().String(), decide: decide, requests: make(chan *packets.Publish, 100)}
	b.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conn = conn
			b.mu.Unlock()
			b.serve(conn)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		b.cut()
		await.Done(b.tasks.Wait)
	})
	return b
}

func (b *scripted) serve(conn net.Conn) {
	for reader := bufio.NewReader(conn); ; {
		raw, err := rawmqtt.Read(reader)
		if err != nil {
			return
		}
		packet, err := packets.ReadPacket(bytes.NewReader(raw))
		if err != nil {
			b.t.Errorf("%q cannot be read: %v", raw, err)
			return
		}
		switch content := packet.Content.(type) {
		case *packets.Connect:
			b.sawConnect(content, raw)
			code := b.decide(content)
			if code == hangUp {
				return
			}
			b.write(packets.CONNACK, func(p packets.Packet) { p.(*packets.Connack).ReasonCode = code })
		case *packets.Subscribe:
			b.write(packets.SUBACK, func(p packets.Packet) {
				suback := p.(*packets.Suback)
				suback.PacketID, suback.Reasons = content.PacketID, make([]byte, len(content.Subscriptions))
			})
		case *packets.Publish:
			b.write(packets.PUBACK, func(p packets.Packet) { p.(*packets.Puback).PacketID = content.PacketID })
			b.requests <- content
		case *packets.Disconnect:
			b.saw(fmt.Sprintf("DISCONNECT %#x", content.ReasonCode))
			return
		}
	}
}

// write sends a packet to the client, if that is still there.
func (b *scripted) write(kind byte, fill func(packets.Packet)) {
	packet := packets.NewControlPacket(kind)
	fill(packet.Content)
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = packet.WriteTo(b.conn)
}

func (b *scripted) sawConnect(connect *packets.Connect, raw []byte) {
	if !connect.WillFlag {
		b.saw("CONNECT")
		return
	}
	b.saw("CONNECT+Will")
	b.mu.Lock()
	defer b.mu.Unlock()
	b.will = raw
}

func (b *scripted) saw(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, what)
}

// cut ends the connection.
func (b *scripted) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		_ = b.conn.Close()
	}
}

// mustSee waits for as many events, and fails unless they are these.
func (b *scripted) mustSee(want ...string) {
	b.t.Helper()
	var seen []string
	testsupport.Eventually(b.t, "the client goes on", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		seen = slices.Clone(b.seen)
		return len(seen) >= len(want)
	})
	if !slices.Equal(seen, want) {
		b.t.Errorf("the broker saw %q\nwant %q", seen, want)
	}
}

func acceptAll(*packets.Connect) byte { return 0 }

// say sends a message that no subscription has to ask for.
func (b *scripted) say(topic, payload string, correlation []byte) {
	b.write(packets.PUBLISH, func(p packets.Packet) {
		message := p.(*packets.Publish)
		message.Topic, message.Payload, message.Properties.CorrelationData = topic, []byte(payload), correlation
	})
}

// Invariants 5 and 26: an unexpected message changes nothing.
func TestTheClientIgnoresUnexpectedMessages(t *testing.T) {
	var log logbuffer.Buffer
	b := newScripted(t, acceptAll)
	options := transport.Options{ClientID: "p", ClientOptions: transport.ClientOptions{Logger: debugLogger(&log)}}
	client := testsupport.Dial(t, b.address, options)
	answer := func(payload string) *packets.Publish {
		request := await.Receive(b.requests)
		b.say(request.Properties.ResponseTopic, payload, request.Properties.CorrelationData)
		return request
	}
	watch, err := client.Watch("k")
	if err != nil {
		t.Fatal(err)
	}
	answer("+OK\r\n")                // KEYNOTIFY
	first := answer("$3\r\nold\r\n") // GET
	if change := await.Receive(watch.Changes()); string(change.Value) != "old" {
		t.Fatalf("the watch begins with %q", change.Value)
	}
	type result struct {
		entry transport.Entry
		err   error
	}
	read := make(chan result, 1)
	go func() {
		entry, err := client.Get(t.Context(), "k")
		read <- result{entry, err}
	}()
	request := await.Receive(b.requests)
	reply, own := request.Properties.ResponseTopic, request.Properties.CorrelationData
	malformed := func(event ...string) string {
		return string(testsupport.Command(append([]string{"NOTIFY"}, event...)...))
	}
	b.say(reply, "$5\r\nwrong\r\n", []byte("0123456789abcdef"))                         // an unknown correlation
	b.say(reply, "$5\r\nwrong\r\n", nil)                                                // none
	b.say(reply, "$3\r\nold\r\n", first.Properties.CorrelationData)                     // a reply that comes twice
	b.say(testsupport.ReservedPrefix+"/70/command/notify/zz", "*", nil)                 // a key that is not hex
	b.say(notifyTopic, malformed(), nil)                                                // a payload without an event
	b.say(notifyTopic, malformed("SET", "VALUE"), nil)                                  // and without a value
	b.say(notifyTopic, malformed("EXPIRE"), nil)                                        // an unknown event
	b.say(notifyTopic, malformed("DEL", "k"), nil)                                      // and one with too much
	b.say(testsupport.ReservedPrefix+"/70/command/notify/6C", malformed("DELETE"), nil) // a key that is not watched
	b.say(testsupport.ReservedPrefix+"/71/command/notify/6B", malformed("DELETE"), nil) // for another client
	b.say("clients/q/services/statestore/_any_/command/invoke/response", "$5\r\nwrong\r\n", own)
	b.say("factory/news", "x", own)
	b.say(reply, "$5\r\nright\r\n", own)
	b.say(reply, "$5\r\nwrong\r\n", own) // the same once more
	if got := await.Receive(read); got.err != nil || string(got.entry.Value) != "right" {
		t.Errorf("%q, %v", got.entry.Value, got.err)
	}
	// When the client has seen a later message, it has seen all those.
	b.say(notifyTopic, malformed("SET", "VALUE", "new"), nil)
	if change := await.Receive(watch.Changes()); string(change.Value) != "new" || change.Missed {
		t.Errorf("the watch shows %q, missed %v", change.Value, change.Missed)
	}
	_ = client.Close() // it writes its log to the end
	if got := strings.Count(log.String(), `msg="ignored a message"`); got != 12 {
		t.Errorf("%d messages are ignored, want 12", got)
	}
}
