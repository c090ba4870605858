package attach_test

import (
	"context"
	"fmt"
	"log"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"

	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// someBroker runs an MQTT 5 broker that has no store.
func someBroker() (url string, stop func() error) {
	broker := mochi.New(&mochi.Options{Logger: testsupport.Discard})
	if err := broker.AddHook(new(testsupport.AllowAll), nil); err != nil {
		log.Fatal(err)
	}
	listener := listeners.NewTCP(listeners.Config{ID: "tcp", Address: "127.0.0.1:0"})
	if err := broker.AddListener(listener); err != nil {
		log.Fatal(err)
	}
	if err := broker.Serve(); err != nil {
		log.Fatal(err)
	}
	return "mqtt://" + listener.Address(), broker.Close
}

func ExampleAttach() {
	broker, stopBroker := someBroker()

	// This broker, mochi, is no match for the burst that looks for the limit of its queue.
	store, err := attach.New(broker, attach.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- store.Serve(ctx) }()
	<-store.Ready()

	client, err := transport.Dial(ctx, broker, transport.Options{ClientID: "gateway-a"})
	if err != nil {
		log.Fatal(err)
	}
	version, err := client.Set(ctx, "hello", []byte("world"), transport.SetOptions{})
	if err != nil {
		log.Fatal(err)
	}
	entry, err := client.Get(ctx, "hello")
	fmt.Printf("%s %v %v\n", entry.Value, entry.Version == version, err)

	_ = client.Close()
	stop()
	fmt.Println(<-served)
	_ = stopBroker()
	// Output:
	// world true <nil>
	// <nil>
}
