package transport

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
)

// Conn.RoundTrip promises it: who asked may use the memory for another request.
func TestWhatIsSentIsWhatWasAskedThoughTheCallerHasLeft(t *testing.T) {
	bothWays(t, func(t *testing.T, options Options) {
		reads := make(chan struct{})
		var payloads [][]byte
		b := &pipeBroker{answer: func(_ net.Conn, packet *packets.ControlPacket) bool {
			if request, ok := packet.Content.(*packets.Publish); ok {
				payloads = append(payloads, request.Payload)
				await.Receive(reads)
			}
			return false
		}}
		client := mustDialTo(t, b, options)
		synctest.Wait() // for paho's first ping, which would wait behind a write
		for range 2 {   // the second cannot leave before the broker reads on
			payload := bytes.Repeat([]byte("a"), 10_000)
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error)
			go func() {
				_, err := client.conn.RoundTrip(ctx, Request{Payload: payload})
				left <- err
			}()
			synctest.Wait()
			cancel()
			if err := await.Receive(left); !errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("%v, want ErrOutcomeUnknown", err)
			}
			clear(payload)
		}
		close(reads)
		synctest.Wait()
		for i, payload := range payloads {
			if bytes.IndexByte(payload, 0) >= 0 {
				t.Errorf("request %d was changed", i)
			}
		}
		if len(payloads) != 2 {
			t.Errorf("%d requests came in, want 2", len(payloads))
		}
	})
}
