package lease_test

import (
	"context"
	"errors"
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

func ExampleLease_TryAcquire() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	for _, gateway := range []string{"gateway-a", "gateway-b"} {
		client := connect(store, gateway)
		defer client.Close()
		l, err := lease.New(client, "press-7/active", lease.Options{})
		if err != nil {
			log.Fatal(err)
		}
		_, err = l.TryAcquire(context.Background())
		var held *lease.HeldError
		if errors.As(err, &held) {
			fmt.Println(gateway, "must wait for", held.Holder.Name)
		} else if err == nil {
			fmt.Println(gateway, "has it")
		}
	}
	// Output:
	// gateway-a has it
	// gateway-b must wait for gateway-a
}

func ExampleTenure_Token() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	client := connect(store, "gateway-a")
	defer client.Close()
	l, err := lease.New(client, "press-7/active", lease.Options{})
	if err != nil {
		log.Fatal(err)
	}
	tenure, err := l.Acquire(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	// Ask for the token before each action on the resource, and send it along.
	if token, err := tenure.Token(); err == nil {
		fmt.Println("a token of", token.Node)
	}
	_ = tenure.Release(context.Background())
	if _, err := tenure.Token(); errors.Is(err, lease.ErrReleased) {
		fmt.Println("and none any more")
	}
	// Output:
	// a token of StateStore
	// and none any more
}

func ExampleOptions_Budget() {
	budget, err := lease.Options{TTL: 2 * time.Second, RequestTimeout: 200 * time.Millisecond}.Budget()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(budget)
	// Output:
	// With a TTL of 2s                                 at worst
	// the holder crashes: the next one holds after     2.2s
	// the holder is cut off: the next one holds after  2.2s
	// … of which no holder works for                   1.133334s
	// a clean hand-over takes                          10ms
	// … if its notification is lost                    2.2s
	// the store is away, and no lease is lost, for     1.266666s
	// renewals in a row that may go unanswered         3
}
