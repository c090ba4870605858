package tenurews_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"

	"github.com/coder/websocket"

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

// This server sends back what it gets. A broker would answer a CONNECT.
func ExampleUpgrade() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mqtt"}})
		if err != nil {
			return
		}
		stream := websocket.NetConn(r.Context(), socket, websocket.MessageBinary)
		_, _ = io.Copy(stream, stream)
	}))
	defer server.Close()
	address := &url.URL{Scheme: "ws", Host: server.Listener.Addr().String(), Path: "/mqtt"}

	conn, err := net.Dial("tcp", address.Host)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	stream, err := tenurews.Upgrade(context.Background(), conn, address)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := io.WriteString(stream, "PINGREQ"); err != nil {
		log.Fatal(err)
	}
	answer := make([]byte, len("PINGREQ"))
	if _, err := io.ReadFull(stream, answer); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", answer)
	// Output: PINGREQ
}
