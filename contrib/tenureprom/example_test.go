package tenureprom_test

import (
	"context"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurelock/tenure/contrib/tenureprom"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A program gives its client and its leases the hooks of one Metrics. This one uses a store in the
// same process; another one dials a broker.
func Example() {
	registry := prometheus.NewRegistry()
	metrics := tenureprom.New(tenureprom.Options{})
	registry.MustRegister(metrics)

	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	client, err := transport.NewClient(store.Connect("gateway-a"), transport.ClientOptions{Trace: metrics.Transport()})
	if err != nil {
		log.Fatal(err)
	}
	l, err := lease.New(client, "press-7/active", lease.Options{Trace: metrics.Lease()})
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

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "tenure_client_lease_acquisitions") || strings.HasPrefix(line, "tenure_client_connections") {
			fmt.Print(line)
		}
	}
	// Output:
	// tenure_client_connections_total 1
	// tenure_client_lease_acquisitions_total{lease="press-7/active"} 1
}
