package tenureotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tenurelock/tenure/contrib/tenureotel"
	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// recorded has what hooks made.
type recorded struct {
	spans  *tracetest.SpanRecorder
	tracer *sdktrace.TracerProvider
	reader *sdkmetric.ManualReader
}

func record(t *testing.T, options tenureotel.Options) (*tenureotel.Hooks, recorded) {
	t.Helper()
	r := recorded{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	options.TracerProvider, options.MeterProvider = r.tracer, sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	hooks, err := tenureotel.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return hooks, r
}

// ended returns the spans with a name, as text: duration, attributes, status and events.
func (r recorded) ended(name string) (found []string) {
	for _, span := range r.spans.Ended() {
		if span.Name() != name {
			continue
		}
		text := fmt.Sprint(span.EndTime().Sub(span.StartTime()))
		for _, a := range span.Attributes() {
			if a.Key != "tenure.token" {
				text += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
			}
		}
		if span.Status().Code == codes.Error {
			text += " error"
		}
		for _, event := range span.Events() {
			text += " " + event.Name
		}
		found = append(found, text)
	}
	return found
}

// sums returns the sums of counters, and the counts of histograms.
func (r recorded) sums(t *testing.T) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int64)
	name := func(metric string, set attribute.Set) string {
		return metric + "{" + set.Encoded(attribute.DefaultEncoder()) + "}"
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, point := range data.DataPoints {
					found[name(m.Name, point.Attributes)] = point.Value
				}
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					found[name(m.Name, point.Attributes)] = int64(point.Count)
				}
			}
		}
	}
	return found
}

func TestATenureAndItsRequestsHaveSpansAndMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hooks, r := record(t, tenureotel.Options{})
		client, conn := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{Trace: hooks.Transport()})
		l, err := lease.New(client, "press-7/active", lease.Options{TTL: 2 * time.Second, Trace: hooks.Lease()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, span := r.tracer.Tracer("test").Start(t.Context(), "job")
		tenure, err := l.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		guard := fencing.NewGuard(client, tenure)
		time.Sleep(10 * time.Second)
		if _, err := guard.Set(ctx, "k", nil); err != nil {
			t.Fatal(err)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := guard.Set(ctx, "k", nil); !errors.Is(err, lease.ErrReleased) {
			t.Fatal(err)
		}
		second, err := l.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn.Cut()
		time.Sleep(10 * time.Second)
		if context.Cause(second.Context()) == nil {
			t.Error("the second tenure goes on")
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, _ = client.Get(short, "k")
		synctest.Wait()
		span.End()
		for name, want := range map[string][]string{
			"tenure acquire": {"0s tenure.lease=press-7/active tenure.holder=node-a", "0s tenure.lease=press-7/active tenure.holder=node-a"},
			"tenure hold":    {"10s tenure.lease=press-7/active tenure.cause=released", "1.8s tenure.lease=press-7/active tenure.cause=deadline_passed error"},
			// Two to acquire, because the first request is not bound to a store, and the guard's.
			"tenure SET": {"0s tenure.verb=SET tenure.outcome=ok", "0s tenure.verb=SET tenure.outcome=ok", "0s tenure.verb=SET tenure.outcome=ok"},
			"tenure GET": {"1s tenure.verb=GET tenure.outcome=not_sent error"},
		} {
			if got := r.ended(name); !slices.Equal(got, want) {
				t.Errorf("spans %q:\n%q, want\n%q", name, got, want)
			}
		}
		if job := r.ended("job"); len(job) != 1 || !strings.HasSuffix(job[0], " tenure.refused") {
			t.Errorf("the span of the caller: %q", job)
		}
		got := r.sums(t)
		for name, want := range map[string]int64{
			"tenure.client.lease.held{tenure.lease=press-7/active}":                              0,
			"tenure.client.lease.acquisitions{tenure.lease=press-7/active}":                      2,
			"tenure.client.lease.ends{tenure.cause=released,tenure.lease=press-7/active}":        1,
			"tenure.client.lease.ends{tenure.cause=deadline_passed,tenure.lease=press-7/active}": 1,
			"tenure.client.guard.refusals{tenure.lease=press-7/active,tenure.local=true}":        1,
			"tenure.client.connected{}":                                               0,
			"tenure.client.connection.losses{tenure.cause=network}":                   1,
			"tenure.client.request.duration{tenure.outcome=not_sent,tenure.verb=GET}": 1,
		} {
			if value, found := got[name]; !found || value != want {
				t.Errorf("%s is %v, want %v in %v", name, value, want, got)
			}
		}
		for _, name := range []string{"tenure.client.lease.renewal.duration", "tenure.client.lease.renewal.headroom", "tenure.client.lease.renewal.failures"} {
			if got[name+"{tenure.lease=press-7/active}"] == 0 {
				t.Errorf("%s is missing in %v", name, got)
			}
		}
	})
}

func TestEachRequestHasASpanIfThatIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hooks, r := record(t, tenureotel.Options{Requests: true, LeaseAttribute: func(string) string { return "all" }})
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{Trace: hooks.Transport()})
		_, _ = client.VDel(t.Context(), "k", nil, transport.DelOptions{})
		synctest.Wait()
		if got := r.ended("tenure VDEL"); len(got) != 1 {
			t.Errorf("spans: %q", got)
		}
		hooks.Lease().Acquired(t.Context(), lease.TraceInfo{Lease: "l"})
		if got := r.sums(t); got["tenure.client.lease.held{tenure.lease=all}"] != 1 {
			t.Errorf("%v", got)
		}
	})
}

// refusing is a provider that has no counters.
type refusing struct{ noop.MeterProvider }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

type refusingMeter struct{ noop.Meter }

var errNoCounters = errors.New("no counters")

func (refusingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errNoCounters
}

func TestAProviderThatRefusesAnInstrumentIsAnError(t *testing.T) {
	if hooks, err := tenureotel.New(tenureotel.Options{MeterProvider: refusing{}}); !errors.Is(err, errNoCounters) || hooks != nil {
		t.Errorf("%v, %v", hooks, err)
	}
	if _, err := tenureotel.New(tenureotel.Options{}); err != nil { // the global providers
		t.Error(err)
	}
}
