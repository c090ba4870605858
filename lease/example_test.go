package lease_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// connect stands for transport.Dial: the examples run without a broker.
func connect(store *transporttest.Store, clientID string) *transport.Client {
	client, err := transport.NewClient(store.Connect(clientID), transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

func Example() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	client := connect(store, "gateway-a")
	defer client.Close()

	ctx := context.Background()
	l, err := lease.New(client, "press-7/active", lease.Options{TTL: 2 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	tenure, err := l.Acquire(ctx) // waits for as long as another has it
	if err != nil {
		log.Fatal(err)
	}
	holder, err := l.Holder(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held by", holder.Name)

	if err := tenure.Release(ctx); err != nil {
		log.Fatal(err)
	}
	<-tenure.Context().Done()
	fmt.Println(context.Cause(tenure.Context()))
	// Output:
	// held by gateway-a
	// lease: tenure of "press-7/active": given up by its holder
}
