package tenurews_test

import (
	"context"
	"log"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/transport"
)

// A program gives Upgrade to its client.
func Example() {
	client, err := transport.Dial(context.Background(), "wss://broker.example/mqtt", transport.Options{
		ClientID:  "gateway-a",
		WebSocket: tenurews.Upgrade,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
}
