package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func Example() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	// With a broker: transport.Dial(ctx, "mqtt://localhost:1883", transport.Options{ClientID: "gateway-a"})
	client, err := transport.NewClient(store.Connect("gateway-a"), transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	if _, err := client.Set(ctx, "recipe", []byte("42"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}
	_, err = client.Set(ctx, "recipe", []byte("43"), transport.SetOptions{Condition: transport.IfMissing})
	fmt.Println("there already:", errors.Is(err, transport.ErrConditionFailed))
	entry, err := client.Get(ctx, "recipe")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", entry.Value)
	// Output:
	// there already: true
	// 42
}

func ExampleClient_Watch() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	client, err := transport.NewClient(store.Connect("gateway-a"), transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	watch, err := client.Watch("recipe")
	if err != nil {
		log.Fatal(err)
	}
	defer watch.Close()
	fmt.Println("exists:", (<-watch.Changes()).Exists)
	if _, err := client.Set(context.Background(), "recipe", []byte("42"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("now: %s\n", (<-watch.Changes()).Value)
	// Output:
	// exists: false
	// now: 42
}
