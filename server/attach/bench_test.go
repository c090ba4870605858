package attach_test

import (
	"context"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport/mosquitto"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkAttached measures a Set, one after the other, through mosquitto: with the
// settings of docs/attach.md, and without the one that matters most.
func BenchmarkAttached(b *testing.B) {
	for _, bench := range []struct{ name, settings string }{
		{"set_tcp_nodelay=true", ""},
		{"set_tcp_nodelay=false", "set_tcp_nodelay false\n"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			broker := "mqtt://" + mosquitto.Start(b, bench.settings).Address
			store, err := attach.New(broker, attach.Options{})
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			served := make(chan error, 1)
			go func() { served <- store.Serve(ctx) }()
			select {
			case <-store.Ready():
			case err := <-served:
				b.Fatal(err)
			case <-time.After(await.Patience):
				b.Fatal("the store is not attached")
			}
			client, err := transport.Dial(ctx, broker, transport.Options{})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			_ = client.Close()
			stop()
			if err := await.Receive(served); err != nil {
				b.Error(err)
			}
		})
	}
}
