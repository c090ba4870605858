package admin

import (
	"cmp"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// maxNames bounds how many leases have metrics of their own, so that clients cannot make a
	// monitoring system store as many series as they like. The totals count all leases. A State always has
	// those with the 100 lowest turns: see statestore.Lease.Turn.
	maxNames = 100
	// maxScrapes bounds how many answers with metrics are made at once.
	maxScrapes = 4
	// scrapeTimeout bounds how long one takes.
	scrapeTimeout = 5 * time.Second
)

// metricsHandler serves /metrics.
type metricsHandler struct {
	readings *readings
	process  *prometheus.Registry // what needs no state of the store
	table    []metric
	descs    []*prometheus.Desc
	duration *prometheus.Desc
	places   chan struct{} // one entry for each answer that is made
	logger   *log.Logger
}

// newMetrics returns the handler of /metrics.
func newMetrics(readings *readings, logger *slog.Logger) (http.Handler, error) {
	h := &metricsHandler{
		readings: readings, process: prometheus.NewRegistry(), table: metrics(), places: make(chan struct{}, maxScrapes),
		duration: prometheus.NewDesc("tenure_request_duration_seconds",
			"Time from the reading of a request until its reply could leave, the commit included.", []string{"verb"}, nil),
		logger: slog.NewLogLogger(logger.Handler(), slog.LevelError),
	}
	for _, m := range h.table {
		h.descs = append(h.descs, prometheus.NewDesc(m.name, m.help, m.labels, nil))
	}
	for _, collector := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := h.process.Register(collector); err != nil {
			return nil, err
		}
	}
	return http.TimeoutHandler(h, scrapeTimeout, fmt.Sprintf("no metrics within %v\n", scrapeTimeout)), nil
}

// ServeHTTP implements http.Handler.
func (h *metricsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case h.places <- struct{}{}:
	default:
		refuseReader(w, fmt.Sprintf("%d clients read /metrics already; ask again", maxScrapes))
		return
	}
	defer func() { <-h.places }()
	protect(r)
	reading, err := h.readings.fresh(r.Context(), asState)
	if err != nil {
		refuseReader(w, err.Error())
		return
	}
	store := prometheus.NewRegistry()
	if err := store.Register(&collector{metricsHandler: h, sample: reading.sample()}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	promhttp.HandlerFor(prometheus.Gatherers{h.process, store}, promhttp.HandlerOpts{
		// One metric that is wrong must not hide the others: alerts are made of them.
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: h.logger,
	}).ServeHTTP(w, r)
}

// sample is what a scrape reads, once for all metrics.
type sample struct {
	state    State
	named    []statestore.Lease // those that have metrics of their own
	usage    *server.Usage      // nil: there is no store
	server   *server.Stats      // nil: there is no server
	attached *attach.Stats      // nil: there is no attached store
}

// sample returns what metrics are made of.
func (r *reading) sample() *sample {
	s := &sample{state: r.state, named: slices.Clone(r.state.Leases)}
	// In turn, so that a client which holds many names does not take the series of all others, and a lease
	// keeps its series when it loses its holder.
	slices.SortStableFunc(s.named, func(a, b statestore.Lease) int { return cmp.Compare(a.Turn, b.Turn) })
	s.named = s.named[:min(len(s.named), maxNames)]
	slices.SortFunc(s.named, func(a, b statestore.Lease) int { return strings.Compare(a.Name, b.Name) })
	// Two long names may look alike. A metric has one series for both.
	s.named = slices.CompactFunc(s.named, func(a, b statestore.Lease) bool { return a.Name == b.Name })
	s.usage, s.server, s.attached = r.store.stats()
	return s
}

// emit reports a value of a metric with the values of its labels.
type emit func(value float64, labels ...string)

// metric is one row of the table of metrics.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	read       func(s *sample, emit emit)
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// collector makes the metrics of the table for one scrape.
type collector struct {
	*metricsHandler
	sample *sample
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		descs <- desc
	}
	descs <- c.duration
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(found chan<- prometheus.Metric) {
	for i, m := range c.table {
		m.read(c.sample, func(value float64, labels ...string) {
			for j := range labels {
				labels[j] = strings.ToValidUTF8(labels[j], "\uFFFD")
			}
			found <- prometheus.MustNewConstMetric(c.descs[i], m.kind, value, labels...)
		})
	}
	for _, d := range c.sample.state.Totals.Durations {
		found <- prometheus.MustNewConstHistogram(c.duration, d.Count, d.Seconds, d.Buckets, d.Verb)
	}
}

func truth(value bool) float64 {
	if value {
		return 1
	}
	return 0
}

// metrics returns the table of metrics. docs/metrics.md is made from it.
func metrics() []metric {
	return slices.Concat(
		processMetrics(), leaseMetrics(), requestMetrics(), serverMetrics(), attachMetrics(), usageMetrics(),
	)
}

func processMetrics() []metric {
	return []metric{
		{"tenure_build_info",
			"Always 1; the labels say which program runs.", gauge, []string{"version", "commit", "goversion", "mode"},
			func(s *sample, emit emit) {
				emit(1, s.state.Info.Version, s.state.Commit, runtime.Version(), s.state.Info.Mode)
			}},
		{"tenure_ready", "1 while this process answers requests, as /readyz says.", gauge, nil,
			func(s *sample, emit emit) { emit(truth(s.state.Node.Ready)) }},
		{"tenure_role", "1 for the role of this process, 0 for the other roles.", gauge, []string{"role"},
			func(s *sample, emit emit) {
				for _, role := range roles {
					emit(truth(s.state.Node.Role == role), string(role))
				}
			}},
		{"tenure_role_start_time_seconds", "When the present role began, as Unix time.", gauge, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Node.Since.UnixMilli()) / 1000) }},
	}
}

func leaseMetrics() []metric {
	byName := []string{"name"}
	each := func(read func(s *sample, lease *statestore.Lease) (value float64, has bool)) func(*sample, emit) {
		return func(s *sample, emit emit) {
			for i := range s.named {
				if value, has := read(s, &s.named[i]); has {
					emit(value, s.named[i].Name)
				}
			}
		}
	}
	return []metric{
		{"tenure_leases", "Leases, by state: held or free.", gauge, []string{"state"},
			func(s *sample, emit emit) {
				emit(float64(s.state.Totals.Held), "held")
				emit(float64(s.state.Totals.Free), "free")
			}},
		{"tenure_leases_without_series", "Leases without metrics of their own, because 100 others have them.", gauge, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Totals.Held + s.state.Totals.Free - len(s.named))) }},
		{"tenure_leases_no_holder_max_seconds",
			"The longest time that any lease has had no holder until now, whether or not clients wait for it; " +
				"0 if each has one.", gauge, nil,
			func(s *sample, emit emit) {
				var longest int64
				for i := range s.state.Leases {
					if !s.state.Leases[i].Held {
						longest = max(longest, s.state.Leases[i].NoHolderMillis)
					}
				}
				emit(float64(longest) / 1000)
			}},
		{"tenure_lease_held", "1 while the lease has a holder, otherwise 0.", gauge, byName,
			each(func(_ *sample, lease *statestore.Lease) (float64, bool) { return truth(lease.Held), true })},
		{"tenure_lease_no_holder_seconds", "How long the lease has had no holder; 0 while it has one.", gauge, byName,
			each(func(_ *sample, lease *statestore.Lease) (float64, bool) {
				if lease.Held {
					return 0, true
				}
				return float64(lease.NoHolderMillis) / 1000, true
			})},
		{"tenure_lease_left_seconds",
			"Time until the lease ends unless it is renewed; missing while it has no holder.", gauge, byName,
			each(func(_ *sample, lease *statestore.Lease) (float64, bool) {
				return float64(lease.LeftMillis) / 1000, lease.Held
			})},
		{"tenure_lease_ttl_seconds",
			"Lifetime that the holder asked for; missing while the lease has no holder.", gauge, byName,
			each(func(_ *sample, lease *statestore.Lease) (float64, bool) {
				return float64(lease.TTLMillis) / 1000, lease.Held
			})},
		{"tenure_lease_held_since_timestamp_seconds",
			"When the holder acquired the lease, as Unix time; missing while it has no holder.", gauge, byName,
			each(func(_ *sample, lease *statestore.Lease) (float64, bool) {
				return float64(lease.Since.UnixMilli()) / 1000, lease.Held
			})},
		{"tenure_lease_waiting", "Clients that wait for the lease or watch it.", gauge, byName,
			each(func(_ *sample, lease *statestore.Lease) (float64, bool) {
				return float64(len(lease.Waiting) + lease.WaitingHidden), true
			})},
		{"tenure_lease_holder_changes_total",
			"How often another holder than the one before has acquired the lease.", counter, byName,
			each(func(_ *sample, lease *statestore.Lease) (float64, bool) { return float64(lease.Changes), true })},
		{"tenure_acquisitions_total", "Leases that were acquired.", counter, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Totals.Acquired)) }},
		{"tenure_renewals_total", "Renewals of leases.", counter, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Totals.Renewed)) }},
		{"tenure_lease_ends_total", "Leases that ended, by cause.", counter, []string{"cause"},
			func(s *sample, emit emit) {
				for _, cause := range statestore.Causes[1:] { // each from the start, so that an increase from 0 to 1 is seen
					emit(float64(s.state.Totals.EndsBy[cause]), string(cause))
				}
			}},
		{"tenure_stale_writes_total",
			"Writes that were refused for their fencing token: of a former holder, most likely.", counter, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Totals.StaleWrites)) }},
	}
}

func requestMetrics() []metric {
	return []metric{
		{"tenure_requests_total",
			"Requests that the store answered, by verb and outcome.", counter, []string{"verb", "outcome"},
			func(s *sample, emit emit) {
				for _, count := range s.state.Totals.RequestsBy {
					emit(float64(count.Count), count.Verb, strings.ReplaceAll(count.Outcome, " ", "_"))
				}
			}},
		{"tenure_requests_dropped_total",
			"Requests that were not given to the store, by reason.", counter, []string{"reason"},
			func(s *sample, emit emit) {
				switch {
				case s.server != nil:
					emitBy(emit, s.server.Dropped, dropReasons)
				case s.attached != nil:
					emitBy(emit, s.attached.Dropped, dropReasons)
				}
			}},
		{"tenure_clients_taken_over_total",
			"Connections that ended because another one came with the same client id.", counter, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Totals.TakeOvers)) }},
		{"tenure_clients_flapping",
			"Client ids that are taken over again and again: two programs have the same one, most likely.", gauge, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Totals.Flapping)) }},
		{"tenure_clients_clock_off",
			"Clients whose clock is more than a second off the store's, and plausible, as of the last five minutes.", gauge, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Totals.ClocksOff)) }},
		{"tenure_clients_clock_implausible",
			"Clients whose last clock was refused as too far ahead, or is more than a day off, " +
				"as of the last five minutes.", gauge, nil,
			func(s *sample, emit emit) { emit(float64(s.state.Totals.ClocksImplausible)) }},
		{"tenure_clients_clock_offset_max_seconds",
			"Largest plausible difference between the clock of a client and the store's, without a sign, " +
				"as of the last five minutes and among the clients that the page shows.", gauge, nil,
			func(s *sample, emit emit) {
				var largest int64
				for i := range s.state.Clients {
					if offset := s.state.Clients[i].ClockOffsetMillis; offset != nil {
						largest = max(largest, *offset, -*offset)
					}
				}
				emit(float64(largest) / 1000)
			}},
	}
}

// emitBy reports counts by reason, under short names. A reason without one counts as other.
func emitBy[R comparable](emit emit, counts map[R]uint64, names map[R]string) {
	var other uint64
	for reason, count := range counts {
		if names[reason] == "" {
			other += count
		}
	}
	for reason, name := range names {
		emit(float64(counts[reason]), name)
	}
	emit(float64(other), "other")
}

var dropReasons = map[server.DropReason]string{
	server.DroppedRetained:       "retained",
	server.DroppedQoS:            "qos",
	server.DroppedNoResponse:     "no_response_topic",
	server.DroppedNoCorrelation:  "no_correlation_data",
	server.DroppedForbiddenTopic: "forbidden_response_topic",
	server.DroppedInvalidTopic:   "invalid_response_topic",
	server.DroppedForeignTopic:   "foreign_response_topic",
	server.DroppedExpired:        "expired",
	server.DroppedTooManyTopics:  "too_many_response_topics",
	server.DroppedOldProtocol:    "old_protocol",
	server.DroppedJournalSlow:    "journal_slow",
	attach.DroppedLongClient:     "long_client_id",
}

var refusalReasons = map[server.RefusalReason]string{
	server.RefusedCredentials:     "credentials",
	server.RefusedBusy:            "too_many_password_checks",
	server.RefusedSlow:            "slow_password_check",
	server.RefusedUnauthenticated: "too_many_unauthenticated",
	server.RefusedTurn:            "another_connection",
	server.RefusedDescriptors:     "too_many_sockets",
	server.RefusedRules:           "rules",
}

var messageReasons = map[server.MessageDropReason]string{
	server.MessageSessionFull:    "session_full",
	server.MessageSessionsFull:   "sessions_full",
	server.MessageExpired:        "expired",
	server.MessageTooLarge:       "too_large",
	server.MessageNotReadable:    "not_readable",
}

// ofServer reads what only a server has.
func ofServer(read func(stats *server.Stats, emit emit)) func(*sample, emit) {
	return func(s *sample, emit emit) {
		if s.server != nil {
			read(s.server, emit)
		}
	}
}

func serverMetrics() []metric {
	return []metric{
		{"tenure_clients_connected", "Clients that are connected (serve).", gauge, nil,
			ofServer(func(stats *server.Stats, emit emit) { emit(float64(stats.Connected)) })},
		{"tenure_connections_refused_total", "Connections that were refused, by reason (serve).", counter, []string{"reason"},
			ofServer(func(stats *server.Stats, emit emit) { emitBy(emit, stats.Refused, refusalReasons) })},
		{"tenure_messages_dropped_total",
			"Ordinary messages that did not reach a subscriber, by reason (serve).", counter, []string{"reason"},
			ofServer(func(stats *server.Stats, emit emit) { emitBy(emit, stats.DroppedMessages, messageReasons) })},
		{"tenure_slow_readers_total",
			"Clients that were disconnected because they did not read fast enough (serve).", counter, nil,
			ofServer(func(stats *server.Stats, emit emit) { emit(float64(stats.SlowReaders)) })},
		{"tenure_wills_applied_total", "Wills that were requests, and were given to the store (serve).", counter, nil,
			ofServer(func(stats *server.Stats, emit emit) { emit(float64(stats.AppliedWills)) })},
		{"tenure_panics_total", "Panics that ended one connection; each is a bug (serve).", counter, nil,
			ofServer(func(stats *server.Stats, emit emit) { emit(float64(stats.Panics)) })},
	}
}

// ofAttached reads what only an attached store has.
func ofAttached(read func(stats *attach.Stats) float64) func(*sample, emit) {
	return func(s *sample, emit emit) {
		if s.attached != nil {
			emit(read(s.attached))
		}
	}
}

func attachMetrics() []metric {
	return []metric{
		{"tenure_attached", "1 while the store answers on its broker (attach).", gauge, nil,
			ofAttached(func(stats *attach.Stats) float64 { return truth(stats.Attached) })},
		{"tenure_attachments_total",
			"How often the store began to answer on its broker: once, and after each loss of the connection " +
				"(attach).", counter, nil,
			ofAttached(func(stats *attach.Stats) float64 { return float64(stats.Attachments) })},
		{"tenure_attached_clients", "Clients that the store remembers (attach).", gauge, nil,
			ofAttached(func(stats *attach.Stats) float64 { return float64(stats.Clients) })},
		{"tenure_requests_busy_total",
			"Requests that were refused because too much waited for the journal (attach).", counter, nil,
			ofAttached(func(stats *attach.Stats) float64 { return float64(stats.Busy) })},
		{"tenure_watches_dropped_total",
			"Watches that ended because no client had subscribed to their notifications (attach).", counter, nil,
			ofAttached(func(stats *attach.Stats) float64 { return float64(stats.DroppedWatches) })},
		{"tenure_notifications_lost_total",
			"Notifications that were not sent because too many waited for the broker (attach).", counter, nil,
			ofAttached(func(stats *attach.Stats) float64 { return float64(stats.LostNotifications) })},
		{"tenure_messages_oversized_total",
			"Messages that were not sent because the broker does not take such large ones (attach).", counter, nil,
			ofAttached(func(stats *attach.Stats) float64 { return float64(stats.Oversized) })},
	}
}

func usageMetrics() []metric {
	use := func(name, help string, read func(usage *server.Usage) float64) metric {
		return metric{name, help, gauge, nil, func(s *sample, emit emit) {
			if s.usage != nil {
				emit(read(s.usage))
			}
		}}
	}
	ofServer := func(name, help string, read func(usage *server.Usage) float64) metric {
		return metric{name, help + " (serve).", gauge, nil, func(s *sample, emit emit) {
			if s.usage != nil && s.server != nil {
				emit(read(s.usage))
			}
		}}
	}
	return []metric{
		use("tenure_store_keys", "Keys that have a value.", func(u *server.Usage) float64 { return float64(u.Store.Keys) }),
		use("tenure_store_fences", "Deleted keys whose fence a strict store keeps.",
			func(u *server.Usage) float64 { return float64(u.Store.Fences) }),
		use("tenure_store_bytes", "Bytes of keys, values and the names of kept fences.",
			func(u *server.Usage) float64 { return float64(u.Store.Bytes) }),
		use("tenure_store_watches", "Watches of all clients.",
			func(u *server.Usage) float64 { return float64(u.Store.Watches) }),
		use("tenure_store_watch_bytes", "Memory that watches use, in bytes.",
			func(u *server.Usage) float64 { return float64(u.Store.WatchBytes) }),
		use("tenure_store_dedup_entries", "Requests that are kept so that none is applied twice.",
			func(u *server.Usage) float64 { return float64(u.Store.DedupEntries) }),
		use("tenure_store_dedup_bytes", "Memory that these use, in bytes.",
			func(u *server.Usage) float64 { return float64(u.Store.DedupBytes) }),
		ofServer("tenure_sessions", "Clients that are connected or have a session that is kept",
			func(u *server.Usage) float64 { return float64(u.Sessions) }),
		ofServer("tenure_subscriptions", "Subscriptions of all clients",
			func(u *server.Usage) float64 { return float64(u.Subscriptions) }),
		ofServer("tenure_session_messages", "Messages that wait in sessions",
			func(u *server.Usage) float64 { return float64(u.WaitingMessages) }),
		ofServer("tenure_session_bytes", "Bytes of the messages that wait in sessions",
			func(u *server.Usage) float64 { return float64(u.WaitingBytes) }),
		ofServer("tenure_outgoing_bytes", "Bytes that wait to be written to connections",
			func(u *server.Usage) float64 { return float64(u.OutgoingBytes) }),
		ofServer("tenure_arriving_bytes", "Room taken for large packets that are not complete, in bytes",
			func(u *server.Usage) float64 { return float64(u.ArrivingBytes) }),
	}
}
