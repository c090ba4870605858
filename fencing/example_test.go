package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// dial stands for transport.Dial: the examples run without a broker.
func dial() (client *transport.Client, end func()) {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	client, err = transport.NewClient(store.Connect("gateway-a"), transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		_ = client.Close()
		store.Close()
	}
}

func Example() {
	client, end := dial()
	defer end()

	ctx := context.Background()
	l, err := lease.New(client, "press-7/active", lease.Options{})
	if err != nil {
		log.Fatal(err)
	}
	tenure, err := l.Acquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	guard := fencing.NewGuard(client, tenure)
	if _, err := guard.Claim(ctx, "press-7/setpoint"); err != nil { // first shut out former leaders
		log.Fatal(err)
	}
	if _, err := guard.Set(ctx, "press-7/setpoint", []byte("42")); err != nil { // then act
		log.Fatal(err)
	}

	_, err = client.Set(ctx, "press-7/setpoint", []byte("13"), transport.SetOptions{})
	fmt.Println("without a token:", errors.Is(err, transport.ErrFencingTokenRequired))
	_ = tenure.Release(ctx)
	_, err = guard.Set(ctx, "press-7/setpoint", []byte("13"))
	fmt.Println("after the release:", errors.Is(err, lease.ErrReleased))
	entry, err := client.Get(ctx, "press-7/setpoint")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("the key holds %s\n", entry.Value)
	// Output:
	// without a token: true
	// after the release: true
	// the key holds 42
}
