package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	mochi "github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// scripted is a broker for one client that does with each CONNECT what a test wants. It serves one
// connection after the other, so that its record is in order.
type scripted struct {
	t       *testing.T
	address string
	tasks   sync.WaitGroup
	decide  func(connect *packets.Connect) (code byte)

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
	b := &scripted{t: t, address: listener.Addr().String(), decide: decide}
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
	reader := bufio.NewReader(conn)
	for {
		raw, err := testsupport.ReadPacket(reader)
		if err != nil {
			return
		}
		packet, err := packets.ReadPacket(bytes.NewReader(raw))
		if err != nil {
			b.t.Errorf("%q cannot be read: %v", raw, err)
			return
		}
		var reply *packets.ControlPacket
		switch content := packet.Content.(type) {
		case *packets.Connect:
			b.sawConnect(content, raw)
			code := b.decide(content)
			if code == hangUp {
				return
			}
			reply = packets.NewControlPacket(packets.CONNACK)
			reply.Content.(*packets.Connack).ReasonCode = code
		case *packets.Subscribe:
			reply = packets.NewControlPacket(packets.SUBACK)
			suback := reply.Content.(*packets.Suback)
			suback.PacketID, suback.Reasons = content.PacketID, make([]byte, len(content.Subscriptions))
		case *packets.Disconnect:
			b.saw(fmt.Sprintf("DISCONNECT %#x", content.ReasonCode))
			return
		}
		if reply != nil {
			if _, err := reply.WriteTo(conn); err != nil {
				return
			}
		}
	}
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

// latestWill returns the latest CONNECT packet that had a Will.
func (b *scripted) latestWill() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.will
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

// willIn returns the Will of a CONNECT packet, as another implementation reads it.
func willIn(t *testing.T, raw []byte) mochi.ConnectParams {
	t.Helper()
	_, header, _ := mqtt.Size(raw)
	packet := mochi.Packet{FixedHeader: mochi.FixedHeader{Type: mochi.Connect, Remaining: len(raw) - header}}
	if err := packet.ConnectDecode(slices.Clone(raw[header:])); err != nil {
		t.Fatal(err)
	}
	if code := packet.ConnectValidate(); code != mochi.CodeSuccess {
		t.Errorf("not a valid CONNECT: %v", code)
	}
	return packet.Connect
}

func TestProtocol1OurWillHasAllThatARequestHas(t *testing.T) {
	b := newScripted(t, acceptAll)
	client := testsupport.Dial(t, b.address, transport.Options{ClientID: "node-a", Username: "user", Password: []byte("secret")})
	correlations := make(map[string]bool)
	for range 2 {
		set, err := client.SetWill(t.Context(), "k", []byte("mine"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.SetWill(t.Context(), "other", nil); !errors.Is(err, transport.ErrWillInUse) {
			t.Errorf("a second: %v, want ErrWillInUse", err)
		}
		will := willIn(t, b.latestWill())
		properties := will.WillProperties
		for _, field := range []struct{ name, got, want string }{
			{"topic", will.WillTopic, testsupport.InvokeTopic},
			{"QoS", fmt.Sprint(will.WillQos), "1"},
			{"retain", fmt.Sprint(will.WillRetain), "false"},
			{"payload", string(will.WillPayload), string(testsupport.Command("VDEL", "k", "mine"))},
			{"content type", properties.ContentType, "application/octet-stream"},
			{"response topic", properties.ResponseTopic, "clients/node-a/services/statestore/_any_/command/invoke/response"},
			{"length of the correlation data", fmt.Sprint(len(properties.CorrelationData)), "16"},
			{"delay", fmt.Sprint(properties.WillDelayInterval), "0"},
			{"user properties", fmt.Sprint(properties.User), "[{__srcId node-a} {__protVer 1.0} {$partition node-a}]"},
			{"credentials", string(will.Username) + ":" + string(will.Password), "user:secret"},
		} {
			if field.got != field.want {
				t.Errorf("%s: %q, want %q", field.name, field.got, field.want)
			}
		}
		correlations[string(properties.CorrelationData)] = true
		set.Close()
	}
	if len(correlations) != 2 {
		t.Error("two Wills have the same correlation data")
	}
	b.mustSee("CONNECT", "DISCONNECT 0x0", "CONNECT+Will", "DISCONNECT 0x0", "CONNECT+Will")
}

func TestAClientWithARefusedWillGoesOnWithoutIt(t *testing.T) {
	const with, without, farewell = "CONNECT+Will", "CONNECT", "DISCONNECT 0x0"
	for _, test := range []struct {
		name    string
		codes   []byte // for one CONNECT after the other
		refused byte   // in the ConnectionError; 0: there is no error
		seen    []string
	}{
		{"not authorized", []byte{0x87}, 0x87, []string{with, without}},
		{"for reasons of the server", []byte{0x83}, 0x83, []string{with, without}},
		{"for its QoS", []byte{0x9B}, 0x9B, []string{with, without}},
		{"after the network was down", []byte{hangUp, hangUp, 0x87}, 0x87, []string{with, with, with, without}},
		{"not: the server was busy", []byte{0x89, 0x88, 0x9F}, 0, []string{with, with, with, with}},
		{"not: the network was down", []byte{hangUp, hangUp, hangUp, hangUp}, 0, []string{with, with, with, with, with}},
	} {
		t.Run(test.name, func(t *testing.T) {
			codes := append([]byte{0}, test.codes...) // the first is for Dial
			b := newScripted(t, func(*packets.Connect) (code byte) {
				if len(codes) > 0 {
					code, codes = codes[0], codes[1:]
				}
				return code
			})
			client := testsupport.Dial(t, b.address, transport.Options{ReconnectMin: time.Millisecond})
			will, err := client.SetWill(t.Context(), "k", []byte("mine"))
			var refused *transport.ConnectionError
			switch {
			case test.refused != 0:
				if !errors.As(err, &refused) || refused.Code != test.refused {
					t.Errorf("SetWill: %v, want the code %#x", err, test.refused)
				}
			case err != nil:
				t.Errorf("SetWill: %v", err)
			}
			b.mustSee(append([]string{without, farewell}, test.seen...)...)
			if (will == nil) != (err != nil) {
				t.Errorf("a will %v and an error %v", will, err)
			}
		})
	}
}

// No code has a reference to such a Will, so it must not stay behind.
func TestAWillThatIsCancelledLeavesNoWill(t *testing.T) {
	arrived, answer := make(chan bool, 1), make(chan bool)
	b := newScripted(t, func(connect *packets.Connect) byte {
		if connect.WillFlag {
			arrived <- true
			await.Receive(answer)
		}
		return 0
	})
	client := testsupport.Dial(t, b.address, transport.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		await.Receive(arrived)
		cancel()
	}()
	if _, err := client.SetWill(ctx, "k", []byte("mine")); !errors.Is(err, context.Canceled) {
		t.Errorf("SetWill: %v, want Canceled", err)
	}
	close(answer)
	b.mustSee("CONNECT", "DISCONNECT 0x0", "CONNECT+Will", "DISCONNECT 0x0", "CONNECT")
	if _, err := client.SetWill(t.Context(), "k", []byte("mine")); err != nil {
		t.Errorf("another: %v", err)
	}
}

func TestTheClientRefusesAWillThatIsTooLargeForAPacket(t *testing.T) {
	const most = 1<<16 - 1 // bytes [MQTT-1.5.6]
	overhead := len(testsupport.Command("VDEL", "k", strings.Repeat("v", most-100))) - (most - 100)
	b := newScripted(t, acceptAll)
	client := testsupport.Dial(t, b.address, transport.Options{})
	tooLarge := strings.Repeat("v", most-overhead+1)
	if _, err := client.SetWill(t.Context(), "k", []byte(tooLarge)); !errors.Is(err, transport.ErrNoWill) || !strings.Contains(err.Error(), "65536 bytes") {
		t.Errorf("one byte too much: %.200v", err)
	}
	b.mustSee("CONNECT") // the connection was not given up for it
	largest := tooLarge[1:]
	if _, err := client.SetWill(t.Context(), "k", []byte(largest)); err != nil {
		t.Fatal(err)
	}
	if got := willIn(t, b.latestWill()).WillPayload; !bytes.Equal(got, testsupport.Command("VDEL", "k", largest)) {
		t.Errorf("of the largest, %d bytes arrive", len(got))
	}
}

// A program that sets a Will again after each loss of the connection must not make the client
// connect in a fast loop.
func TestAWillDoesNotShortenThePauseBetweenConnections(t *testing.T) {
	b := newScripted(t, acceptAll)
	client := testsupport.Dial(t, b.address, transport.Options{ReconnectMin: time.Hour})
	lost := client.Lost()
	b.cut()
	testsupport.MustBeLost(t, lost)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if _, err := client.SetWill(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("SetWill: %v, want DeadlineExceeded", err)
		}
		cancel()
	}
	b.mustSee("CONNECT")
}
