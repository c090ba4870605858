package tenureotel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// scope is the name of the instrumentation.
const scope = "github.com/tenurelock/tenure/contrib/tenureotel"

// Options configures New. The zero value uses the global providers.
type Options struct {
	// TracerProvider makes the spans. Default: otel.GetTracerProvider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the metrics. Default: otel.GetMeterProvider.
	MeterProvider metric.MeterProvider
	// Requests makes a span for each request, also where the context has none: each renewal
	// begins a trace of its own then. Default: only for requests within a span.
	Requests bool
	// LeaseAttribute returns the value of the attribute tenure.lease in metrics for the name of a
	// lease. Each value is a set of time series, so a program with thousands of leases joins
	// them. It is called from several goroutines. Default: the name.
	LeaseAttribute func(name string) string
}

// Hooks makes spans and metrics. It is safe for concurrent use.
type Hooks struct {
	options Options
	tracer  trace.Tracer

	held, connected                                                 metric.Int64UpDownCounter
	acquisitions, renewalFailures, ends, refusals, failures, losses metric.Int64Counter
	renewals, headrooms, requests                                   metric.Float64Histogram
}

// Round trips to a store take a millisecond on a local network and seconds on a bad one.
var buckets = metric.WithExplicitBucketBoundaries(0.0005, 0.001, 0.002, 0.004, 0.008, 0.016,
	0.032, 0.064, 0.128, 0.256, 0.512, 1, 2, 4, 8, 16)

// New returns hooks. The error is what the MeterProvider says if it refuses an instrument.
func New(options Options) (*Hooks, error) {
	if options.TracerProvider == nil {
		options.TracerProvider = otel.GetTracerProvider()
	}
	if options.MeterProvider == nil {
		options.MeterProvider = otel.GetMeterProvider()
	}
	if options.LeaseAttribute == nil {
		options.LeaseAttribute = func(name string) string { return name }
	}
	h := &Hooks{options: options, tracer: options.TracerProvider.Tracer(scope)}
	meter := options.MeterProvider.Meter(scope)
	var failed []error
	counter := func(name, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithDescription(description))
		failed = append(failed, err)
		return c
	}
	upDown := func(name, description string) metric.Int64UpDownCounter {
		c, err := meter.Int64UpDownCounter(name, metric.WithDescription(description))
		failed = append(failed, err)
		return c
	}
	histogram := func(name, description string) metric.Float64Histogram {
		c, err := meter.Float64Histogram(name, metric.WithDescription(description), metric.WithUnit("s"), buckets)
		failed = append(failed, err)
		return c
	}
	h.held = upDown("tenure.client.lease.held", "Tenures that this process holds now.")
	h.acquisitions = counter("tenure.client.lease.acquisitions", "Tenures that began.")
	h.renewals = histogram("tenure.client.lease.renewal.duration", "Round trip of a renewal that the store accepted.")
	h.headrooms = histogram("tenure.client.lease.renewal.headroom",
		"How long the tenure would have lasted without the renewal.")
	h.renewalFailures = counter("tenure.client.lease.renewal.failures", "Renewals that failed and were repeated.")
	h.ends = counter("tenure.client.lease.ends", "Tenures that ended, by cause.")
	h.refusals = counter("tenure.client.guard.refusals",
		"Protected operations that were refused, by the guard (local) or by the store.")
	h.requests = histogram("tenure.client.request.duration",
		"Time from a request to its result, waiting for a connection included.")
	h.connected = upDown("tenure.client.connected", "Connections to the broker now.")
	h.failures = counter("tenure.client.connect.failures", "Attempts to connect to the broker that failed.")
	h.losses = counter("tenure.client.connection.losses", "Connections to the broker that ended, by cause.")
	if err := errors.Join(failed...); err != nil {
		return nil, fmt.Errorf("tenureotel: %w", err)
	}
	return h, nil
}

// lease returns the attribute with the name of a lease, for metrics, with others.
func (h *Hooks) lease(name string, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(more, attribute.String("tenure.lease", h.options.LeaseAttribute(name)))...)
}

// Lease returns the hooks for lease.Options.Trace and for election.Options.Lease. Several leases may
// share them.
func (h *Hooks) Lease() *lease.Trace {
	background := context.Background()
	return &lease.Trace{
		Acquired: func(ctx context.Context, info lease.TraceInfo) {
			h.acquisitions.Add(ctx, 1, h.lease(info.Lease))
			h.held.Add(ctx, 1, h.lease(info.Lease))
			now := time.Now()
			_, span := h.tracer.Start(ctx, "tenure acquire", trace.WithTimestamp(now.Add(-info.Lasted)), trace.WithAttributes(
				attribute.String("tenure.lease", info.Lease), attribute.String("tenure.holder", info.Holder),
				attribute.String("tenure.token", info.Token.String())))
			span.End(trace.WithTimestamp(now))
		},
		Renewed: func(info lease.TraceInfo) {
			h.renewals.Record(background, info.RoundTrip.Seconds(), h.lease(info.Lease))
			h.headrooms.Record(background, info.Headroom.Seconds(), h.lease(info.Lease))
		},
		RenewalFailed: func(info lease.TraceInfo) {
			h.renewalFailures.Add(background, 1, h.lease(info.Lease))
		},
		Ended: func(info lease.TraceInfo) {
			cause := attribute.String("tenure.cause", lease.CauseText(info.Err))
			h.held.Add(background, -1, h.lease(info.Lease))
			h.ends.Add(background, 1, h.lease(info.Lease, cause))
			now := time.Now()
			_, span := h.tracer.Start(background, "tenure hold", trace.WithTimestamp(now.Add(-info.Lasted)),
				trace.WithAttributes(
					attribute.String("tenure.lease", info.Lease), attribute.String("tenure.token", info.Token.String()), cause))
			if !errors.Is(info.Err, lease.ErrReleased) {
				span.SetStatus(codes.Error, info.Err.Error())
			}
			span.End(trace.WithTimestamp(now))
		},
		Refused: func(ctx context.Context, info lease.TraceInfo) {
			local := attribute.Bool("tenure.local", info.Local)
			h.refusals.Add(ctx, 1, h.lease(info.Lease, local))
			trace.SpanFromContext(ctx).AddEvent("tenure.refused", trace.WithAttributes(
				attribute.String("tenure.lease", info.Lease), attribute.String("tenure.operation", info.Operation), local))
		},
	}
}

// Transport returns the hooks for transport.ClientOptions.Trace. Several clients may share them.
func (h *Hooks) Transport() *transport.Trace {
	background := context.Background()
	return &transport.Trace{
		Request: func(ctx context.Context, info transport.RequestInfo) {
			verb, outcome := attribute.String("tenure.verb", info.Verb),
				attribute.String("tenure.outcome", transport.OutcomeText(info.Err))
			h.requests.Record(ctx, info.Duration.Seconds(), metric.WithAttributes(verb, outcome))
			if !h.options.Requests && !trace.SpanContextFromContext(ctx).IsValid() {
				return
			}
			_, span := h.tracer.Start(ctx, "tenure "+info.Verb, trace.WithTimestamp(info.Began),
				trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(verb, outcome))
			if info.Err != nil && !errors.Is(info.Err, transport.ErrConditionFailed) {
				span.SetStatus(codes.Error, info.Err.Error())
			}
			span.End(trace.WithTimestamp(info.Began.Add(info.Duration)))
		},
		Connected:     func(transport.ConnectionStatus) { h.connected.Add(background, 1) },
		ConnectFailed: func(transport.ConnectionStatus) { h.failures.Add(background, 1) },
		Lost: func(info transport.ConnectionStatus) {
			h.connected.Add(background, -1)
			h.losses.Add(background, 1, metric.WithAttributes(attribute.String("tenure.cause", transport.LossText(info.Err))))
		},
	}
}
