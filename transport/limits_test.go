package transport

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
)

// paho v0.23.0 takes the first of these packets for one with 4 GiB of properties, and
// panics where an int has 32 bits.
func TestInvariant44WhatMQTTDoesNotAllowEndsTheConnectionWithAReason(t *testing.T) {
	for _, test := range []struct {
		name, packet string
		code         byte
		want         string
	}{
		{"the header of 256 MiB", "\x30\xff\xff\xff\x7f", 0x95, "a packet of 268435460 bytes, and at most 2097152"},
		{"the header of a SUBACK of more than 64 KiB", "\x90\xfd\xff\x03", 0x95, "a packet of 65537 bytes, and at most 65536"},
		{"a property length of five bytes in PUBLISH", "\x30\x09\x00\x01a\x80\x80\x80\x80\x0fx", 0x81, "the broker sent what MQTT does not allow: PUBLISH: the length of the properties is malformed"},
		{"a property length of five bytes in DISCONNECT", "\xe0\x06\x00\x80\x80\x80\x80\x0f", 0x81, "the broker sent what MQTT does not allow: DISCONNECT: the length of the properties is malformed"},
		{"another CONNACK", "\x20\x03\x00\x00\x00", 0x82, "the broker sent what MQTT does not allow: CONNACK: there was one already"},
		{"a topic alias", "\x30\x07\x00\x01a\x03\x23\x00\x01", 0x94, "the broker sent what MQTT does not allow: PUBLISH: it has a topic alias"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, options Options) {
				b := &pipeBroker{}
				var mu sync.Mutex
				var told []error
				options.Trace = &Trace{Lost: func(status ConnectionStatus) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, status.Err)
				}}
				client := mustDialTo(t, b, options)
				if _, err := b.present().Write([]byte(test.packet)); err != nil {
					t.Error(err)
				}
				time.Sleep(10 * time.Second)
				if got := client.Connection(); !got.Connected || got.Connections != 2 {
					t.Errorf("it does not connect again: %+v", got)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if !bytes.Equal(b.left, []byte{test.code}) {
					t.Errorf("it leaves with the reason codes %#x", b.left)
				}
				mu.Lock()
				defer mu.Unlock()
				if len(told) != 1 || !strings.Contains(told[0].Error(), test.want) {
					t.Errorf("the reason: %v", told)
				}
			})
		})
	}
}

func TestAPacketOfTheMaximumSizeIsTakenAndALongerOneIsNot(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		var announced atomic.Uint32
		size := 0
		b := &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
			switch content := packet.Content.(type) {
			case *packets.Connect:
				announced.Store(*content.Properties.MaximumPacketSize)
			case *packets.Publish:
				empty := len(mqtt.Encode(value(content, strings.Repeat("v", 7000), 0).Content.(*packets.Publish))) - 7000
				_, _ = value(content, strings.Repeat("v", size-empty), 0).WriteTo(conn)
			}
			return false
		}}
		options.MaxPacketSize = 8000
		client := mustDialTo(t, b, options)
		size = 8000
		if entry, err := client.Get(t.Context(), "k"); err != nil || len(entry.Value) < 7000 || announced.Load() != 8000 {
			t.Errorf("a packet of the maximum size: %d bytes, %v; it announces %d", len(entry.Value), err, announced.Load())
		}
		size++
		if _, err := client.Get(t.Context(), "k"); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrPacketTooLarge) ||
			!strings.Contains(err.Error(), "8001 bytes, and at most 8000") {
			t.Errorf("one byte more: %v", err)
		}
	})
}

func TestNoMoreRequestsAreUnderWayThanTheBrokerTakes(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(2)
		client := mustDialTo(t, b.pipeBroker, options)
		outcomes := get(t.Context(), client, "k1", "k2", "k3", "k4")
		first := b.received()
		if len(first) != 2 {
			t.Fatalf("%d requests came in; the Receive Maximum is 2", len(first))
		}
		if first[0].PacketID == first[1].PacketID {
			t.Errorf("two requests have the packet id %d", first[0].PacketID)
		}
		// An answer does not count, an acknowledgement does.
		_, _ = value(first[0], "v", 0).WriteTo(b.present())
		if got := await.Receive(outcomes[keyOf(first[0])]); got.err != nil {
			t.Errorf("the answered one: %v", got.err)
		}
		if got := b.received(); len(got) != 2 {
			t.Errorf("after an answer %d requests came in", len(got))
		}
		b.acknowledge(first[0].PacketID, 0)
		if got := b.received(); len(got) != 3 {
			t.Errorf("after an acknowledgement %d requests came in", len(got))
		}
		b.acknowledge(first[1].PacketID, 0x97) // a bad one counts as well
		if got := await.Receive(outcomes[keyOf(first[1])]); !errors.Is(got.err, ErrQuotaExceeded) || errors.Is(got.err, ErrOutcomeUnknown) {
			t.Errorf("the refused one: %v", got.err)
		}
		if got := b.received(); len(got) != 4 {
			t.Errorf("after both %d requests came in", len(got))
		}
		client.Close()
		delete(outcomes, keyOf(first[0]))
		delete(outcomes, keyOf(first[1]))
		for key, c := range outcomes {
			if got := await.Receive(c); !errors.Is(got.err, ErrOutcomeUnknown) {
				t.Errorf("%s, which was sent: %v", key, got.err)
			}
		}
	})
}

// After a reconnect a client registers all of its watches again. Over a slow link that must leave space for the
// requests of the program.
func TestManyWatchesAreRegisteredTogetherAndLeaveRoomForRequests(t *testing.T) {
	const roundTrip, keys = 100 * time.Millisecond, 1000
	inBubble(t, func(t *testing.T, options Options) {
		var mu sync.Mutex
		underWay, most, requests := 0, 0, 0
		b := &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
			request, ok := packet.Content.(*packets.Publish)
			if !ok {
				return false
			}
			mu.Lock()
			defer mu.Unlock()
			underWay, requests = underWay+1, requests+1
			most = max(most, underWay)
			time.AfterFunc(roundTrip, func() {
				mu.Lock()
				defer mu.Unlock()
				underWay--
				reply(conn, request)
				send(conn, packets.PUBACK, func(p *packets.Puback) { p.PacketID = request.PacketID })
			})
			return true
		}}
		client := mustDialTo(t, b, options)
		for i := range keys {
			if _, err := client.Watch(fmt.Sprint("k", i)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			time.Sleep(3 * roundTrip)
			asked := time.Now()
			if _, err := client.Get(t.Context(), "another"); err != nil || time.Since(asked) > roundTrip {
				t.Errorf("a GET meanwhile took %v: %v", time.Since(asked), err)
			}
			time.Sleep(2 * roundTrip * (keys/mostRegistering + 2))
			synctest.Wait()
			mu.Lock()
			if most > mostRegistering+1 || requests < 2*keys {
				t.Errorf("%d requests were under way at once, and %d in all", most, requests)
			}
			requests = 0
			mu.Unlock()
			b.cut()
		}
	})
}

func TestARequestThatMakesTooLargeAPacketIsRefusedHere(t *testing.T) {
	const limit = 1000
	synctest.Test(t, func(t *testing.T) {
		largest := 0
		b := &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
			switch content := packet.Content.(type) {
			case *packets.Connect:
				send(conn, packets.CONNACK, func(p *packets.Connack) {
					size := uint32(limit)
					p.Properties.MaximumPacketSize = &size
				})
				return true
			case *packets.Publish:
				largest = max(largest, len(mqtt.Encode(content)))
				reply(conn, content)
			}
			return false
		}}
		client := mustDialTo(t, b, Options{ClientID: "node-a"})
		for size := range limit {
			_, err := client.Get(t.Context(), strings.Repeat("k", size+1))
			var rejected *RejectedError
			if fits := largest <= limit && err == nil; !fits && (largest != limit || !errors.Is(err, ErrPacketTooLarge) || !errors.As(err, &rejected) || errors.Is(err, ErrOutcomeUnknown)) {
				t.Fatalf("a key of %d bytes: %v; the largest packet has %d", size+1, err, largest)
			}
		}
		if got := client.Connection(); got.Connections != 1 || largest != limit {
			t.Errorf("%+v; the largest packet has %d bytes", got, largest)
		}
	})
}
