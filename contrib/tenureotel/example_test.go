package tenureotel_test

import (
	"context"
	"fmt"
	"log"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tenurelock/tenure/contrib/tenureotel"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A program gives its client and its leases the same hooks. This one uses a store in the same
// process and keeps its spans in memory; another one dials a broker and exports them.
func Example() {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	hooks, err := tenureotel.New(tenureotel.Options{TracerProvider: provider})
	if err != nil {
		log.Fatal(err)
	}

	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	client, err := transport.NewClient(store.Connect("gateway-a"), transport.ClientOptions{Trace: hooks.Transport()})
	if err != nil {
		log.Fatal(err)
	}
	l, err := lease.New(client, "press-7/active", lease.Options{Trace: hooks.Lease()})
	if err != nil {
		log.Fatal(err)
	}
	tenure, err := l.Acquire(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	if err := tenure.Release(context.Background()); err != nil {
		log.Fatal(err)
	}
	if err := client.Close(); err != nil { // it calls all hooks before it returns
		log.Fatal(err)
	}
	for _, span := range spans.Ended() {
		fmt.Println(span.Name())
	}
	// Output:
	// tenure acquire
	// tenure hold
}
