package admin

import (
	"cmp"
	"log"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/statestore"
)

// maxNames bounds how many leases have metrics of their own, so that clients cannot make a
// monitoring system store as many series as they like. The totals count all leases. A State always has
// those with the 100 lowest turns: see statestore.Lease.Turn.
const maxNames = 100

// metrics answers /metrics. docs/metrics.md has a list that is made from the answer.
type metrics struct {
	view    *view
	process []prometheus.Collector // what needs no state of the store
	logger  *log.Logger
}

func newMetrics(view *view) *metrics {
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	return &metrics{
		view: view, process: []prometheus.Collector{collectors.NewGoCollector(), process},
		logger: slog.NewLogLogger(view.options.Logger.Handler(), slog.LevelError),
	}
}

func (m *metrics) serve(w http.ResponseWriter, r *http.Request) {
	reading, err := m.view.read(r.Context())
	if err != nil {
		refuse(w, err.Error())
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.process...)
	registry.MustRegister(collector{reading})
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		// One metric that is wrong must not hide the others: alerts are made of them.
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: m.logger,
	}).ServeHTTP(w, r)
}

// collector makes the metrics of a reading.
type collector struct{ *reading }

// Describe implements prometheus.Collector: what there is depends on the reading.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(found chan<- prometheus.Metric) {
	s := &scrape{c.reading, found}
	s.processMetrics()
	s.leaseTotals()
	s.leaseMetrics()
	s.requestMetrics()
	if s.server != nil {
		s.serverMetrics()
	}
	if s.attached != nil {
		s.attachMetrics()
	}
	if s.usage != nil {
		s.storeMetrics()
	}
}

// scrape makes metrics of a reading.
type scrape struct {
	*reading
	found chan<- prometheus.Metric
}

type number interface {
	int | int64 | uint64 | float64
}

// gauge reports a value with labels: a name, its value, the next name.
func gauge[N number](s *scrape, name, help string, value N, labels ...string) {
	s.report(prometheus.GaugeValue, name, help, float64(value), labels)
}

// counter is gauge for a value that only grows.
func counter[N number](s *scrape, name, help string, value N, labels ...string) {
	s.report(prometheus.CounterValue, name, help, float64(value), labels)
}

func (s *scrape) report(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for pair := range slices.Chunk(labels, 2) {
		names, values = append(names, pair[0]), append(values, strings.ToValidUTF8(pair[1], "\uFFFD"))
	}
	s.found <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...)
}

func truth(value bool) int {
	if value {
		return 1
	}
	return 0
}

func (s *scrape) processMetrics() {
	gauge(s, "tenure_build_info", "Always 1; the labels say which program runs.", 1,
		"version", s.Info.Version, "commit", s.Commit, "goversion", runtime.Version(), "mode", s.Info.Mode)
	gauge(s, "tenure_ready", "1 while this process answers requests, as /readyz says.", truth(s.Node.Ready))
	for _, role := range roles {
		gauge(s, "tenure_role", "1 for the role of this process, 0 for the other roles.",
			truth(s.Node.Role == role), "role", string(role))
	}
	gauge(s, "tenure_role_start_time_seconds", "When the present role began, as Unix time.",
		float64(s.Node.Since.UnixMilli())/1000)
}

func (s *scrape) leaseTotals() {
	const leases = "Leases, by state: held or free."
	gauge(s, "tenure_leases", leases, s.Totals.Held, "state", "held")
	gauge(s, "tenure_leases", leases, s.Totals.Free, "state", "free")
	var longest int64
	for i := range s.Leases {
		if !s.Leases[i].Held {
			longest = max(longest, s.Leases[i].NoHolderMillis)
		}
	}
	gauge(s, "tenure_leases_no_holder_max_seconds",
		"The longest time that any lease has had no holder until now; 0 if each has one.", float64(longest)/1000)
	counter(s, "tenure_acquisitions_total", "Leases that were acquired.", s.Totals.Acquired)
	counter(s, "tenure_renewals_total", "Renewals of leases.", s.Totals.Renewed)
	for _, cause := range statestore.Causes[1:] { // each from the start, so that an increase from 0 to 1 is seen
		counter(s, "tenure_lease_ends_total", "Leases that ended, by cause.",
			s.Totals.EndsBy[cause], "cause", string(cause))
	}
	counter(s, "tenure_stale_writes_total",
		"Writes that were refused for their fencing token: of a former holder, most likely.", s.Totals.StaleWrites)
}

// named returns the leases that have metrics of their own: in turn, so that a client which holds many names does
// not take the series of all others, and a lease keeps its series when it loses its holder.
func (s *scrape) named() []statestore.Lease {
	named := slices.Clone(s.Leases)
	slices.SortStableFunc(named, func(a, b statestore.Lease) int { return cmp.Compare(a.Turn, b.Turn) })
	named = named[:min(len(named), maxNames)]
	slices.SortFunc(named, func(a, b statestore.Lease) int { return strings.Compare(a.Name, b.Name) })
	// Two long names may look alike. A metric has one series for both.
	return slices.CompactFunc(named, func(a, b statestore.Lease) bool { return a.Name == b.Name })
}

func (s *scrape) leaseMetrics() {
	named := s.named()
	gauge(s, "tenure_leases_without_series", "Leases without metrics of their own, because 100 others have them.",
		s.Totals.Held+s.Totals.Free-len(named))
	for i := range named {
		lease := &named[i]
		gauge(s, "tenure_lease_held", "1 while the lease has a holder, otherwise 0.",
			truth(lease.Held), "name", lease.Name)
		gauge(s, "tenure_lease_waiting", "Clients that wait for the lease.",
			len(lease.Waiting)+lease.WaitingHidden, "name", lease.Name)
		counter(s, "tenure_lease_holder_changes_total",
			"How often another holder than the one before has acquired the lease.", lease.Changes, "name", lease.Name)
		without := 0.0
		if !lease.Held {
			without = float64(lease.NoHolderMillis) / 1000
		}
		gauge(s, "tenure_lease_no_holder_seconds", "Time since the release or the last renewal of a lease without holder, otherwise 0.",
			without, "name", lease.Name)
		gauge(s, "tenure_lease_down",
			"1 while the lease has no holder although clients wait for it, or it was not released.",
			truth(lease.Down), "name", lease.Name)
		alone := 0.0
		if lease.Gone != "" {
			alone = max(0, s.At.Sub(lease.GoneSince).Seconds())
		}
		gauge(s, "tenure_lease_no_standby_seconds",
			"Time since the last client that stood by for the holder was gone; 0 while one waits, or if none did.",
			alone, "name", lease.Name)
		if !lease.Held {
			continue
		}
		gauge(s, "tenure_lease_left_seconds",
			"Time until the lease ends unless it is renewed; missing while it has no holder.",
			float64(lease.LeftMillis)/1000, "name", lease.Name)
		gauge(s, "tenure_lease_ttl_seconds",
			"Lifetime that the holder asked for; missing while the lease has no holder.",
			float64(lease.TTLMillis)/1000, "name", lease.Name)
		gauge(s, "tenure_lease_held_since_timestamp_seconds",
			"When the holder acquired the lease, as Unix time; missing while it has no holder.",
			float64(lease.Since.UnixMilli())/1000, "name", lease.Name)
	}
}

func (s *scrape) requestMetrics() {
	for _, count := range s.Totals.RequestsBy {
		counter(s, "tenure_requests_total", "Requests that the store answered, by verb and outcome.",
			count.Count, "verb", count.Verb, "outcome", strings.ReplaceAll(count.Outcome, " ", "_"))
	}
	const dropped = "Requests that were not given to the store, by reason."
	switch {
	case s.server != nil:
		reasons(s, "tenure_requests_dropped_total", dropped, s.server.Dropped, dropReasons)
	case s.attached != nil:
		reasons(s, "tenure_requests_dropped_total", dropped, s.attached.Dropped, dropReasons)
	}
	duration := prometheus.NewDesc("tenure_request_duration_seconds",
		"Time from the reading of a request until its reply could leave, the commit included.", []string{"verb"}, nil)
	for _, d := range s.Totals.Durations {
		s.found <- prometheus.MustNewConstHistogram(duration, d.Count, d.Seconds, d.Buckets, d.Verb)
	}
	counter(s, "tenure_clients_taken_over_total",
		"Connections that ended because another one came with the same client id.", s.Totals.TakeOvers)
	gauge(s, "tenure_clients_flapping",
		"Client ids that are taken over again and again: two programs have the same one, most likely.",
		s.Totals.Flapping)
	gauge(s, "tenure_clients_clock_off",
		"Clients whose clock is more than a second off the store's, and plausible, as of the last five minutes.",
		s.Totals.ClocksOff)
	gauge(s, "tenure_clients_clock_implausible",
		"Clients whose last clock is more than a day off, as of the last five minutes.", s.Totals.ClocksImplausible)
	var largest int64
	for i := range s.Clients {
		if offset := s.Clients[i].ClockOffsetMillis; offset != nil {
			largest = max(largest, *offset, -*offset)
		}
	}
	gauge(s, "tenure_clients_clock_offset_max_seconds",
		"Largest plausible difference between the clock of a client and the store's, without a sign, "+
			"as of the last five minutes and among the clients that the page shows.", float64(largest)/1000)
}

// reasons reports counts by reason, under short names. A reason without one counts as other.
func reasons[R comparable](s *scrape, name, help string, counts map[R]uint64, names map[R]string) {
	var other uint64
	for reason, count := range counts {
		if names[reason] == "" {
			other += count
		}
	}
	for reason, short := range names { // each from the start, so that an increase from 0 to 1 is seen
		counter(s, name, help, counts[reason], "reason", short)
	}
	counter(s, name, help, other, "reason", "other")
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
	"session full":  "session_full",
	"sessions full": "sessions_full",
	"expired":       "expired",
	"too large":     "too_large",
	"not readable":  "not_readable",
}

func (s *scrape) serverMetrics() {
	stats := s.server
	gauge(s, "tenure_clients_connected", "Clients that are connected (serve).", stats.Connected)
	reasons(s, "tenure_connections_refused_total", "Connections that were refused, by reason (serve).",
		stats.Refused, refusalReasons)
	reasons(s, "tenure_messages_dropped_total",
		"Ordinary messages that did not reach a subscriber, by reason (serve).", stats.DroppedMessages, messageReasons)
	counter(s, "tenure_slow_readers_total",
		"Clients that were disconnected because they did not read fast enough (serve).", stats.SlowReaders)
	counter(s, "tenure_wills_applied_total",
		"Wills that were requests, and were given to the store (serve).", stats.AppliedWills)
	counter(s, "tenure_panics_total", "Panics that ended one connection; each is a bug (serve).", stats.Panics)
	use := s.usage
	gauge(s, "tenure_sessions", "Clients that are connected or have a session that is kept (serve).", use.Sessions)
	gauge(s, "tenure_subscriptions", "Subscriptions of all clients (serve).", use.Subscriptions)
	gauge(s, "tenure_session_messages", "Messages that wait in sessions (serve).", use.WaitingMessages)
	gauge(s, "tenure_session_bytes", "Bytes of the messages that wait in sessions (serve).", use.WaitingBytes)
	gauge(s, "tenure_outgoing_bytes", "Bytes that wait to be written to connections (serve).", use.OutgoingBytes)
	gauge(s, "tenure_arriving_bytes",
		"Room taken for large packets that are not complete, in bytes (serve).", use.ArrivingBytes)
}

func (s *scrape) attachMetrics() {
	stats := s.attached
	gauge(s, "tenure_attached", "1 while the store answers on its broker (attach).", truth(stats.Attached))
	counter(s, "tenure_attachments_total",
		"How often the store began to answer on its broker: once, and after each loss of the connection (attach).",
		stats.Attachments)
	gauge(s, "tenure_attached_clients", "Clients that the store remembers (attach).", stats.Clients)
	counter(s, "tenure_requests_busy_total",
		"Requests that were refused because too much waited for the journal (attach).", stats.Busy)
	counter(s, "tenure_watches_dropped_total",
		"Watches that ended because no client had subscribed to their notifications (attach).", stats.DroppedWatches)
	counter(s, "tenure_notifications_lost_total",
		"Notifications that were not sent because too many waited for the broker (attach).", stats.LostNotifications)
	counter(s, "tenure_messages_oversized_total",
		"Messages that were not sent because the broker does not take such large ones (attach).", stats.Oversized)
}

func (s *scrape) storeMetrics() {
	use := s.usage.Store
	gauge(s, "tenure_store_keys", "Keys that have a value.", use.Keys)
	gauge(s, "tenure_store_fences", "Deleted keys whose fence a strict store keeps.", use.Fences)
	gauge(s, "tenure_store_bytes", "Bytes of keys, values and the names of kept fences.", use.Bytes)
	gauge(s, "tenure_store_watches", "Watches of all clients.", use.Watches)
	gauge(s, "tenure_store_watch_bytes", "Memory that watches use, in bytes.", use.WatchBytes)
	gauge(s, "tenure_store_dedup_entries", "Requests that are kept so that none is applied twice.", use.DedupEntries)
	gauge(s, "tenure_store_dedup_bytes", "Memory that these use, in bytes.", use.DedupBytes)
}
