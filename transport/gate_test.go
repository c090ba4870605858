package transport

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// paho v0.23.0 takes the first of these packets for one with 4 GiB of properties, and
// panics where an int has 32 bits.
func TestABrokerThatSendsWhatIsNotMQTTIsLeftAndToldWhy(t *testing.T) {
	for _, test := range []struct {
		name, packet string
		code         byte
		want         string
	}{
		{"a property length of five bytes in PUBLISH", "\x30\x09\x00\x01a\x80\x80\x80\x80\x0fx", 0x81, "PUBLISH: the length of the properties is malformed"},
		{"a property length of five bytes in DISCONNECT", "\xe0\x06\x00\x80\x80\x80\x80\x0f", 0x81, "DISCONNECT: the length of the properties is malformed"},
		{"another CONNACK", "\x20\x03\x00\x00\x00", 0x82, "CONNACK: there was one"},
		{"a topic alias", "\x30\x07\x00\x01a\x03\x23\x00\x01", 0x94, "PUBLISH: it has a topic alias"},
	} {
		t.Run(test.name, func(t *testing.T) {
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
				if _, err := b.present().Write([]byte(test.packet)); err != nil {
					t.Error(err)
				}
				time.Sleep(10 * time.Second)
				if got := client.Connection(); got.State != Connected || got.Connections != 2 {
					t.Errorf("it does not connect again: %+v", got)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if !bytes.Equal(b.left, []byte{test.code}) {
					t.Errorf("it leaves with the reason codes %#x", b.left)
				}
				mu.Lock()
				defer mu.Unlock()
				if len(told) != 1 || !strings.Contains(told[0].Error(), "the broker sent what MQTT does not allow: "+test.want) {
					t.Errorf("the reason: %v", told)
				}
			})
		})
	}
}
