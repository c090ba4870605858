package tenureprom_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tenurelock/tenure/contrib/tenureprom"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// values returns the counters and gauges of a registry, and the counts of its histograms, by their names with labels.
func values(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	found := make(map[string]float64)
	for line := range strings.Lines(page.Body.String()) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			found[strings.Replace(strings.ReplaceAll(name, `"`, ""), "_count{", "{", 1)+"}"] = value
		} else if name, text, _ := strings.Cut(strings.TrimSpace(line), " "); !strings.HasPrefix(name, "#") {
			found[name+"{}"], _ = strconv.ParseFloat(text, 64)
		}
	}
	return found
}

func register(t *testing.T, options tenureprom.Options) (*tenureprom.Metrics, *prometheus.Registry) {
	t.Helper()
	metrics, registry := tenureprom.New(options), prometheus.NewPedanticRegistry()
	if err := registry.Register(metrics); err != nil {
		t.Fatal(err)
	}
	return metrics, registry
}

func TestATermOfAnElectorIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics, registry := register(t, tenureprom.Options{})
		store := transporttest.Start(t)
		client, conn := store.Client(t, "node-a", transport.ClientOptions{Trace: metrics.Transport()})
		elector, err := election.New(client, "press-7/active", election.Options{
			TTL:   2 * time.Second,
			Lease: lease.Options{Trace: metrics.Lease()},
		})
		if err != nil {
			t.Fatal(err)
		}
		electing, end := context.WithCancel(t.Context())
		_ = elector.Run(electing, func(ctx context.Context, term *election.Term) error {
			defer end()
			if _, err := term.Guard().Set(ctx, "k", nil); err != nil {
				t.Error(err)
			}
			synctest.Wait() // the hooks are called a moment later
			if held := values(t, registry)["tenure_client_lease_held{lease=press-7/active}"]; held != 1 {
				t.Errorf("held: %v", held)
			}
			time.Sleep(10 * time.Second)
			conn.Cut()
			await.Receive(ctx.Done())
			if _, err := term.Guard().Set(ctx, "k", nil); !errors.Is(err, lease.ErrDeadlinePassed) && !errors.Is(err, transport.ErrNotSent) {
				t.Errorf("%v", err)
			}
			time.Sleep(10 * time.Second)
			if _, err := term.Guard().Set(ctx, "k", nil); !errors.Is(err, lease.ErrDeadlinePassed) {
				t.Errorf("%v", err)
			}
			return nil
		})
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		got := values(t, registry)
		for name, want := range map[string]float64{
			"tenure_client_lease_held{lease=press-7/active}":                             0,
			"tenure_client_lease_acquisitions_total{lease=press-7/active}":               1,
			"tenure_client_lease_acquire_wait_seconds{lease=press-7/active}":             1,
			"tenure_client_lease_ends_total{cause=deadline_passed,lease=press-7/active}": 1,
			"tenure_client_lease_tenure_duration_seconds{lease=press-7/active}":          1,
			"tenure_client_requests_total{outcome=ok,verb=KEYNOTIFY}":                    2, // of the lease, and of requests to hand over
			"tenure_client_connected{}":                                                  0,
			"tenure_client_connections_total{}":                                          1,
			"tenure_client_connect_failures_total{}":                                     0,
			"tenure_client_connection_losses_total{cause=network}":                       1,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		for _, name := range []string{
			// One, or two: an attempt before the client's first answer is not bound to a store.
			"tenure_client_lease_attempts_total{lease=press-7/active,result=granted}",
			"tenure_client_lease_renewals_total{lease=press-7/active,result=renewed}",
			"tenure_client_lease_renewals_total{lease=press-7/active,result=failed}",
			"tenure_client_lease_renewal_duration_seconds{lease=press-7/active}",
			"tenure_client_lease_renewal_headroom_seconds{lease=press-7/active}",
			"tenure_client_guard_refusals_total{lease=press-7/active,place=local}",
			"tenure_client_requests_total{outcome=ok,verb=SET}",
			"tenure_client_requests_total{outcome=not_sent,verb=SET}",
			"tenure_client_request_duration_seconds{verb=SET}",
		} {
			if got[name] == 0 {
				t.Errorf("%s is missing in\n%s", name, strings.Join(slices.Sorted(maps.Keys(got)), "\n"))
			}
		}
		if _, stale := got["tenure_client_guard_refusals_total{lease=press-7/active,place=store}"]; stale {
			t.Error("a refusal of the store, which refused nothing")
		}
	})
}

func TestAStaleWriteThatTheStoreRefusesIsCountedAsSuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics, registry := register(t, tenureprom.Options{LeaseLabel: func(string) string { return "all" }})
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		var guards []*fencing.Guard
		for i := range 2 {
			l, err := lease.New(client, fmt.Sprint("lease ", i), lease.Options{Trace: metrics.Lease()})
			if err != nil {
				t.Fatal(err)
			}
			tenure, err := l.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			guards = append(guards, fencing.NewGuard(client, tenure))
		}
		if _, err := guards[1].Set(t.Context(), "k", nil); err != nil {
			t.Fatal(err)
		}
		if _, err := guards[0].Set(t.Context(), "k", nil); !errors.Is(err, fencing.ErrStaleToken) {
			t.Fatal(err)
		}
		synctest.Wait()
		got := values(t, registry)
		if got["tenure_client_guard_refusals_total{lease=all,place=store}"] != 1 || got["tenure_client_lease_ends_total{cause=fenced_out,lease=all}"] != 1 ||
			got["tenure_client_lease_held{lease=all}"] != 1 || got["tenure_client_lease_acquisitions_total{lease=all}"] != 2 {
			t.Errorf("%v", got)
		}
	})
}

// Prometheus' linter knows the conventions for names, units and help texts.
func TestNamesFollowTheConventions(t *testing.T) {
	metrics, registry := register(t, tenureprom.Options{ConstLabels: prometheus.Labels{"client": "gateway-a"}})
	metrics.Lease().Acquired(t.Context(), lease.TraceInfo{Lease: "l"})
	metrics.Lease().Ended(lease.TraceInfo{Lease: "l"})
	metrics.Lease().Attempt(t.Context(), lease.TraceInfo{Lease: "l", Err: &lease.HeldError{}})
	metrics.Lease().Refused(t.Context(), lease.TraceInfo{Lease: "l"})
	metrics.Lease().Renewed(lease.TraceInfo{Lease: "l"})
	metrics.Transport().Request(t.Context(), transport.RequestInfo{Verb: "GET"})
	for _, err := range []error{transport.ErrClosed, transport.ErrSessionTakenOver, &transport.ConnectionError{Ended: true}, errors.New("why")} {
		metrics.Transport().Lost(transport.ConnectionStatus{Err: err})
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	got := values(t, registry)
	for _, cause := range []string{"client_closed", "session_taken_over", "broker", "network"} {
		if got["tenure_client_connection_losses_total{cause="+cause+",client=gateway-a}"] != 1 {
			t.Errorf("no loss with the cause %s in %v", cause, got)
		}
	}
	if got["tenure_client_lease_attempts_total{client=gateway-a,lease=l,result=held}"] != 1 {
		t.Errorf("%v", got)
	}
}
