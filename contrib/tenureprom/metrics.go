package tenureprom

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// Options configures New. The zero value is ready to use.
type Options struct {
	// LeaseLabel returns the value of the label "lease" for the name of a lease. Each value is a
	// set of time series, so a program with thousands of leases joins them: it returns the part of
	// the name that they share, or an empty string for all. It is called from several goroutines.
	// Default: the name.
	LeaseLabel func(name string) string
	// ConstLabels are on all metrics, for a program with several clients that have metrics of
	// their own. Default: none.
	ConstLabels prometheus.Labels
}

// Metrics are the metrics of the leases and clients that have its traces. It is a
// prometheus.Collector: register it once. It is safe for concurrent use.
type Metrics struct {
	leaseLabel func(string) string
	collectors []prometheus.Collector

	attempts, acquisitions, renewals, ends, refusals *prometheus.CounterVec
	held                                             *prometheus.GaugeVec
	waits, roundTrips, headrooms, tenures            *prometheus.HistogramVec

	requests         *prometheus.CounterVec
	requestDurations *prometheus.HistogramVec
	connected        prometheus.Gauge
	connections      prometheus.Counter
	failures         prometheus.Counter
	losses           *prometheus.CounterVec
}

// Round trips to a store take a millisecond on a local network and seconds on a bad one. Tenures
// and waits last from a moment to months.
var (
	roundTrips = prometheus.ExponentialBuckets(0.0005, 2, 15)
	headrooms  = prometheus.ExponentialBuckets(0.05, 2, 12)
	lasting    = prometheus.ExponentialBuckets(0.01, 4, 15)
)

// New returns metrics that are zero and not registered.
func New(options Options) *Metrics {
	m := &Metrics{leaseLabel: options.LeaseLabel}
	if m.leaseLabel == nil {
		m.leaseLabel = func(name string) string { return name }
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: options.ConstLabels},
			labels)
		m.collectors = append(m.collectors, c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: options.ConstLabels}, labels)
		m.collectors = append(m.collectors, g)
		return g
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets,
			ConstLabels: options.ConstLabels}, labels)
		m.collectors = append(m.collectors, h)
		return h
	}
	m.attempts = counter("tenure_client_lease_attempts_total",
		"Requests to acquire a lease, by result: granted, held, or an outcome of a request.", "lease", "result")
	m.acquisitions = counter("tenure_client_lease_acquisitions_total", "Tenures that began.", "lease")
	m.held = gauge("tenure_client_lease_held", "Tenures that this process holds now.", "lease")
	m.waits = histogram("tenure_client_lease_acquire_wait_seconds", "Time from the call of Acquire to the tenure.",
		lasting, "lease")
	m.renewals = counter("tenure_client_lease_renewals_total", "Renewals, by result: renewed, or failed (and repeated).",
		"lease", "result")
	m.roundTrips = histogram("tenure_client_lease_renewal_duration_seconds",
		"Round trip of a renewal that the store accepted.", roundTrips, "lease")
	m.headrooms = histogram("tenure_client_lease_renewal_headroom_seconds",
		"How long the tenure would have lasted without the renewal.", headrooms, "lease")
	m.ends = counter("tenure_client_lease_ends_total", "Tenures that ended, by cause.", "lease", "cause")
	m.tenures = histogram("tenure_client_lease_tenure_duration_seconds", "How long tenures lasted.", lasting, "lease")
	m.refusals = counter("tenure_client_guard_refusals_total", "Protected operations that were refused, by place: local "+
		"(the tenure was over) or store (a stale write was prevented).", "lease", "place")

	m.requests = counter("tenure_client_requests_total", "Requests to the store, by verb and outcome.", "verb", "outcome")
	m.requestDurations = histogram("tenure_client_request_duration_seconds",
		"Time from a request to its result, waiting for a connection included.", roundTrips, "verb")
	m.connected = gauge("tenure_client_connected", "Connections to the broker now.").WithLabelValues()
	m.connections = counter("tenure_client_connections_total",
		"Connections to the broker that were established.").WithLabelValues()
	m.failures = counter("tenure_client_connect_failures_total",
		"Attempts to connect to the broker that failed.").WithLabelValues()
	m.losses = counter("tenure_client_connection_losses_total", "Connections to the broker that ended, by cause.", "cause")
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(descriptions)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	for _, c := range m.collectors {
		c.Collect(metrics)
	}
}

// Lease returns the hooks for lease.Options.Trace and for election.Options.Lease. Several leases may
// share them.
func (m *Metrics) Lease() *lease.Trace {
	return &lease.Trace{
		Attempt: func(_ context.Context, info lease.TraceInfo) {
			m.attempts.WithLabelValues(m.leaseLabel(info.Lease), resultOf(info.Err)).Inc()
		},
		Acquired: func(_ context.Context, info lease.TraceInfo) {
			label := m.leaseLabel(info.Lease)
			m.acquisitions.WithLabelValues(label).Inc()
			m.held.WithLabelValues(label).Inc()
			m.waits.WithLabelValues(label).Observe(info.Lasted.Seconds())
		},
		Renewed: func(info lease.TraceInfo) {
			label := m.leaseLabel(info.Lease)
			m.renewals.WithLabelValues(label, "renewed").Inc()
			m.roundTrips.WithLabelValues(label).Observe(info.RoundTrip.Seconds())
			m.headrooms.WithLabelValues(label).Observe(info.Headroom.Seconds())
		},
		RenewalFailed: func(info lease.TraceInfo) {
			m.renewals.WithLabelValues(m.leaseLabel(info.Lease), "failed").Inc()
		},
		Ended: func(info lease.TraceInfo) {
			label := m.leaseLabel(info.Lease)
			m.held.WithLabelValues(label).Dec()
			m.ends.WithLabelValues(label, lease.CauseText(info.Err)).Inc()
			m.tenures.WithLabelValues(label).Observe(info.Lasted.Seconds())
		},
		Refused: func(_ context.Context, info lease.TraceInfo) {
			place := "store"
			if info.Local {
				place = "local"
			}
			m.refusals.WithLabelValues(m.leaseLabel(info.Lease), place).Inc()
		},
	}
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return "granted"
	case errors.Is(err, lease.ErrHeld):
		return "held"
	}
	return transport.OutcomeText(err)
}

// Transport returns the hooks for transport.ClientOptions.Trace. Several clients may share them.
func (m *Metrics) Transport() *transport.Trace {
	return &transport.Trace{
		Request: func(_ context.Context, info transport.RequestInfo) {
			m.requests.WithLabelValues(info.Verb, transport.OutcomeText(info.Err)).Inc()
			m.requestDurations.WithLabelValues(info.Verb).Observe(info.Duration.Seconds())
		},
		Connected: func(transport.ConnectionStatus) {
			m.connected.Inc()
			m.connections.Inc()
		},
		ConnectFailed: func(transport.ConnectionStatus) { m.failures.Inc() },
		Lost: func(info transport.ConnectionStatus) {
			m.connected.Dec()
			m.losses.WithLabelValues(transport.LossText(info.Err)).Inc()
		},
	}
}
