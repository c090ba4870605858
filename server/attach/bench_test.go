package attach_test

import (
	"testing"

	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkAttached measures a Set, one after the other, through mosquitto: with the
// settings of docs/attach.md, and without the one that matters most.
func BenchmarkAttached(b *testing.B) {
	for name, settings := range map[string]string{"set_tcp_nodelay=true": "", "set_tcp_nodelay=false": "set_tcp_nodelay false\n"} {
		b.Run(name, func(b *testing.B) {
			broker := mosquitto.Start(b, settings)
			testsupport.Attach(b, broker.Address, attach.Options{})
			client, err := transport.Dial(b.Context(), "mqtt://"+broker.Address, transport.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			for b.Loop() {
				if _, err := client.Set(b.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
