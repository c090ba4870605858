package transport

import (
	"bytes"
	"errors"
	"math"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
)

// allocated returns how many bytes do and what it sets off allocate.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// longest begins a packet of the length that a header can tell at most, 256 MiB.
func longest(kind byte) []byte { return []byte{kind << 4, 0xff, 0xff, 0xff, 0x7f} }

// enough is more than a few connections need, and far less than the longest packet.
const enough = 16 << 20

func TestInvariant44AHeaderMakesAClientAllocateNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := &pipeBroker{}
		var mu sync.Mutex
		var told []error
		options.OnConnectionChange = func(status ConnectionStatus) {
			mu.Lock()
			defer mu.Unlock()
			if status.State == Connecting && status.Err != nil {
				told = append(told, status.Err)
			}
		}
		client := mustDialTo(t, b, options)
		used := allocated(func() {
			if _, err := b.present().Write(longest(packets.PUBLISH)); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second)
		})
		if used > enough {
			t.Errorf("five bytes made it allocate %d MiB", used>>20)
		}
		if got := client.Connection(); got.State != Connected || got.Connections != 2 {
			t.Errorf("it does not connect again: %+v", got)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if !bytes.Equal(b.left, []byte{codePacketTooLarge}) {
			t.Errorf("it leaves with the reason codes %#x", b.left)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(told) != 1 || !errors.Is(told[0], ErrPacketTooLarge) ||
			!strings.Contains(told[0].Error(), "268435460 bytes") || !strings.Contains(told[0].Error(), "2097152") {
			t.Errorf("the reason: %v", told)
		}
	})
}

// The length of a packet has four bytes at most. paho takes more, allocates what they say,
// and panics where an int has 32 bits.
func TestInvariant44AHeaderThatIsTooLongMakesAClientAllocateNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := &pipeBroker{}
		client := mustDialTo(t, b, options)
		used := allocated(func() {
			if _, err := b.present().Write([]byte{packets.PUBLISH << 4, 0x80, 0x80, 0x80, 0x80, 0x01}); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second)
		})
		if used > enough {
			t.Errorf("six bytes made it allocate %d MiB", used>>20)
		}
		if got := client.Connection(); got.State != Connected || got.Connections != 2 {
			t.Errorf("it does not connect again: %+v", got)
		}
	})
}

func TestInvariant44AHeaderInPlaceOfTheFirstAnswerMakesAClientAllocateNothing(t *testing.T) {
	for name, after := range map[string]byte{"CONNACK": packets.CONNECT, "SUBACK": packets.SUBSCRIBE} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, options Options) {
				var connects atomic.Int32
				b := &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
					if packet.Type == packets.CONNECT {
						connects.Add(1)
					}
					if packet.Type != after {
						return false
					}
					_, _ = conn.Write(longest(packets.CONNACK))
					return true
				}}
				var err error
				used := allocated(func() { _, err = dialTo(t, b, "mqtt://broker", options) }) // for a minute
				attempts := connects.Load()
				if limit := enough * uint64(attempts) / 8; used > max(limit, enough) {
					t.Errorf("%d attempts made it allocate %d MiB", attempts, used>>20)
				}
				if !errors.Is(err, ErrPacketTooLarge) || !strings.Contains(err.Error(), "268435460 bytes") {
					t.Errorf("the reason: %v", err)
				}
				if attempts < 10 || attempts > 60 {
					t.Errorf("%d attempts within a minute", attempts)
				}
			})
		})
	}
}

func TestAPacketOfTheMaximumSizeIsTakenAndALongerOneIsNot(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		var announced atomic.Uint32
		b := newQuietBroker(10)
		quiet := b.answer
		b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
			if connect, ok := packet.Content.(*packets.Connect); ok && connect.Properties.MaximumPacketSize != nil {
				announced.Store(*connect.Properties.MaximumPacketSize)
			}
			return quiet(conn, packet)
		}
		options.MaxPacketSize = 8000
		client := mustDialTo(t, b.pipeBroker, options)
		if announced.Load() != 8000 {
			t.Errorf("it announces a maximum of %d bytes", announced.Load())
		}
		answer := func(size int) outcome {
			outcomes := get(t.Context(), client, "k")
			requests := b.received()
			request := requests[len(requests)-1]
			packet := value(request, strings.Repeat("v", size), 0)
			_, _ = packet.WriteTo(b.present())
			return await.Receive(outcomes["k"])
		}
		base := 7000
		var room countingWriter
		b.mu.Lock()
		b.requests = nil
		b.mu.Unlock()
		outcomes := get(t.Context(), client, "k")
		_, _ = value(b.received()[0], strings.Repeat("v", base), 0).WriteTo(&room)
		_, _ = value(b.received()[0], strings.Repeat("v", base), 0).WriteTo(b.present())
		await.Receive(outcomes["k"])
		fits := base + 8000 - int(room)
		if got := answer(fits); got.err != nil || len(got.entry.Value) != fits {
			t.Errorf("a packet of the maximum size: %d bytes, %v", len(got.entry.Value), got.err)
		}
		if got := answer(fits + 1); !errors.Is(got.err, ErrOutcomeUnknown) || !errors.Is(got.err, ErrPacketTooLarge) ||
			!strings.Contains(got.err.Error(), "8001 bytes") || !strings.Contains(got.err.Error(), "8000") {
			t.Errorf("one byte more: %v", got.err)
		}
	})
}

type countingWriter int

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}

func TestANonsensicalMaximumPacketSizeIsRefused(t *testing.T) {
	for _, size := range []int{-1, 1, minMaxPacketSize - 1, maxMaxPacketSize + 1, math.MaxInt32} {
		if _, err := NewConn("mqtt://broker", Options{MaxPacketSize: size}); err == nil || !strings.Contains(err.Error(), "MaxPacketSize") {
			t.Errorf("%d: %v", size, err)
		}
	}
	for _, size := range []int{0, minMaxPacketSize, maxMaxPacketSize} {
		if _, err := NewConn("mqtt://broker", Options{MaxPacketSize: size}); err != nil {
			t.Errorf("%d: %v", size, err)
		}
	}
}
