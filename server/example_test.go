package server_test

import (
	"context"
	"fmt"
	"log"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

func Example() {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()

	client, err := transport.Dial(ctx, "mqtt://"+s.Addr().String(), transport.Options{ClientID: "gateway-a"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Set(ctx, "hello", []byte("world"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}
	entry, err := client.Get(ctx, "hello")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", entry.Value)

	_ = client.Close()
	stop()
	fmt.Println(<-served)
	// Output:
	// world
	// <nil>
}
