package election_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/tenurelock/tenure/election"
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

	elector, err := election.New(client, "press-7/active", election.Options{
		TTL:   2 * time.Second,
		Claim: []string{"press-7/setpoint"},
		Observer: func(t election.Status) {
			fmt.Println(t.Phase)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	err = elector.Run(ctx, func(ctx context.Context, term *election.Term) error {
		if _, err := term.Guard().Set(ctx, "press-7/setpoint", []byte("42")); err != nil {
			return err
		}
		stop() // a program would work here until ctx ends
		<-ctx.Done()
		return nil
	})
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// standby
	// claiming
	// active
	// draining
	// released
	// stopped: true
}
