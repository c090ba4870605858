package transport_test

import (
	"context"
	"fmt"
	"log"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func ExampleWill() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	conn := store.Connect("gateway-a")
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	// The will comes first: from the Set on, nothing can happen without it. The value
	// must be one that nobody sets again.
	will, err := client.SetWill(ctx, "present", []byte("gateway-a:1"))
	if err != nil {
		log.Fatal(err)
	}
	defer will.Close()
	if _, err := client.Set(ctx, "present", []byte("gateway-a:1"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}

	conn.Cut() // as if the process had been killed
	<-will.Lost()
	conn.Restore()
	entry, err := client.Get(ctx, "present")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("present:", entry.Exists)
	// Output:
	// present: false
}
