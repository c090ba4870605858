package admin

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/statestore"
)

var update = flag.Bool("update", false, "write the list of docs/metrics.md")

// root is the root of the repository.
const root = "../../../.."

// scraped returns the metrics of a store, as text.
func scraped(t *testing.T, store Store) string {
	t.Helper()
	node := NewNode()
	node.Serve(store)
	got := answer(t, newGuard(Options{Node: node, About: about, Logger: silent}), "/metrics")
	if got.Code != 200 {
		t.Fatal(got.Code, got.Body)
	}
	return got.Body.String()
}

// scrapedState is scraped of a store that has a state alone.
func scrapedState(t *testing.T, state activity.State) string {
	t.Helper()
	return scraped(t, Store{State: func() activity.State { return state }})
}

func mustHave(t *testing.T, metrics string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			name, _, _ := strings.Cut(line, "{")
			t.Errorf("no %s in\n%s", line, strings.Join(regexp.MustCompile(`(?m)^`+name+`.*`).FindAllString(metrics, -1), "\n"))
		}
	}
}

// Clients choose the names of leases. No name may cost a monitoring system all metrics, or look like the
// name of another lease.
func TestNoNameOfALeaseMakesAScrapeFail(t *testing.T) {
	long := strings.Repeat("x", 240) + strings.Repeat("\x01", 16) // too long when it is escaped
	cut := shown.Printable(long)
	state := activity.NewState()
	for _, name := range []string{"a\x01", `a\x01`, "a\xff", "a\ufffd", long, cut} {
		state.Leases = append(state.Leases, statestore.Lease{Name: name, Held: true})
	}
	state.Totals.Held = len(state.Leases)
	state.Bound()
	metrics := scrapedState(t, state)
	for _, name := range []string{`a\x01`, `a\\x01`, `a\xff`, "a\ufffd", cut, shown.Printable(cut)} {
		mustHave(t, metrics, `tenure_lease_held{name="`+strings.ReplaceAll(name, `\`, `\\`)+`"} 1`)
	}
	mustHave(t, metrics, "tenure_leases_without_series 0")
	// The hash that stands for a part of a long name may be the hash of another one.
	mustHave(t, scrapedState(t, activity.State{
		Leases: []statestore.Lease{{Name: "k", Held: true}, {Name: "k", Held: true, Turn: 1}},
		Totals: activity.Totals{Totals: statestore.Totals{Held: 2}},
	}), `tenure_lease_held{name="k"} 1`, "tenure_leases_without_series 1")
}

func TestClientsCannotMakeSeriesWithoutBound(t *testing.T) {
	state := activity.State{Totals: activity.Totals{Totals: statestore.Totals{Held: 5000}}}
	for i := range 1000 {
		state.Leases = append(state.Leases, statestore.Lease{Name: fmt.Sprintf("\xff%04d", i), Held: true, Turn: i + 1})
	}
	state.Leases = append(state.Leases, statestore.Lease{Name: "z", Held: true}) // its turn comes first
	metrics := scrapedState(t, state)
	if got := strings.Count(metrics, "\ntenure_lease_held{"); got != maxNames {
		t.Errorf("%d series for leases, want %d", got, maxNames)
	}
	mustHave(t, metrics, `tenure_lease_held{name="z"} 1`, "tenure_leases_without_series 4900", `tenure_leases{state="held"} 5000`)
}

// full returns a scrape with a value for each metric.
func full(t *testing.T) string {
	t.Helper()
	offset := int64(-2500)
	state := activity.State{
		Leases: []statestore.Lease{
			{Name: "press-8", Down: true, NoHolderMillis: 4500, Waiting: []statestore.Waiter{{Client: "c"}}, WaitingHidden: 2},
			{Name: "press-7", Held: true, LeftMillis: 1500, TTLMillis: 10_000, Since: time.Unix(1e9, 0), Changes: 3},
			{Name: "press-9", Held: true, Gone: "gateway-b", GoneSince: time.Now().Add(-time.Hour)},
		},
		Clients: []activity.Client{{Client: "gateway-a", ClockOffsetMillis: &offset}},
		Totals: activity.Totals{
			Totals:      statestore.Totals{Held: 2, Free: 1, EndsBy: map[statestore.Cause]uint64{statestore.CauseExpired: 9}},
			StaleWrites: 6, RequestsBy: []activity.RequestCount{{Verb: "SET", Outcome: "quota exceeded", Count: 8}},
			Durations: []activity.Durations{{Verb: "GET"}, {Verb: "SET", Count: 1, Seconds: 0.003, Buckets: map[float64]uint64{0.005: 1}}},
		},
	}
	return scraped(t, Store{
		State: func() activity.State { return state },
		Usage: func() server.Usage { return server.Usage{Store: statestore.Usage{Keys: 11}, Sessions: 12} },
		Server: func() server.Stats {
			return server.Stats{Connected: 13, Dropped: map[server.DropReason]uint64{server.DroppedQoS: 14, "new": 15, "newer": 16}, Panics: 17}
		},
		Attached: func() attach.Stats { return attach.Stats{Attached: true, Attachments: 18} },
	})
}

func TestMetricsHaveWhatThePageShows(t *testing.T) {
	metrics := full(t)
	mustHave(t, metrics,
		"tenure_ready 1", `tenure_role{role="active"} 1`, `tenure_role{role="standby"} 0`,
		`tenure_lease_held{name="press-7"} 1`, `tenure_lease_held{name="press-8"} 0`,
		`tenure_lease_no_holder_seconds{name="press-8"} 4.5`, `tenure_lease_no_holder_seconds{name="press-7"} 0`,
		`tenure_lease_left_seconds{name="press-7"} 1.5`, `tenure_lease_ttl_seconds{name="press-7"} 10`,
		`tenure_lease_held_since_timestamp_seconds{name="press-7"} 1e+09`, `tenure_lease_waiting{name="press-8"} 3`,
		`tenure_lease_holder_changes_total{name="press-7"} 3`, "tenure_leases_no_holder_max_seconds 4.5", "tenure_leases_without_series 0",
		`tenure_lease_ends_total{cause="expired"} 9`, `tenure_lease_ends_total{cause="will"} 0`, "tenure_stale_writes_total 6",
		`tenure_requests_total{outcome="quota_exceeded",verb="SET"} 8`, "tenure_clients_clock_offset_max_seconds 2.5",
		`tenure_requests_dropped_total{reason="qos"} 14`, `tenure_requests_dropped_total{reason="other"} 31`, `tenure_requests_dropped_total{reason="expired"} 0`,
		"tenure_store_keys 11", "tenure_sessions 12", "tenure_clients_connected 13", "tenure_panics_total 17", "tenure_attachments_total 18",
		`tenure_request_duration_seconds_bucket{verb="SET",le="0.005"} 1`, `tenure_request_duration_seconds_count{verb="GET"} 0`)
	mustHave(t, metrics, `tenure_lease_down{name="press-8"} 1`, `tenure_lease_down{name="press-7"} 0`, `tenure_lease_no_standby_seconds{name="press-7"} 0`)
	if !strings.Contains(metrics, `tenure_lease_no_standby_seconds{name="press-9"} 360`) {
		t.Error("no standby for an hour")
	}
	if strings.Contains(metrics, `tenure_lease_left_seconds{name="press-8"}`) {
		t.Error("a lease without a holder has time left")
	}
}

// family is what a scrape says of a metric.
type family struct {
	help, kind string
	labels     []string
}

// familiesOf returns the families of a scrape.
func familiesOf(metrics string) map[string]family {
	families := make(map[string]family)
	for _, found := range regexp.MustCompile(`(?m)^# HELP (\S+) (.*)\n# TYPE \S+ (\w+)\n\w+(?:{(.*)})? `).FindAllStringSubmatch(metrics, -1) {
		of := family{help: found[2], kind: found[3]}
		for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(found[4], -1) {
			if label[1] != "le" {
				of.labels = append(of.labels, label[1])
			}
		}
		families[found[1]] = of
	}
	return families
}

func TestMetricsAreDocumentedAndNamedByConvention(t *testing.T) {
	families := familiesOf(full(t))
	var names []string
	for name, of := range families {
		if strings.HasPrefix(name, "tenure_") {
			names = append(names, name)
		}
		if strings.HasPrefix(name, "tenure_") && (of.kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %v: counters, and only they, end with _total", name, of.kind)
		}
	}
	slices.Sort(names)
	list := ""
	for _, name := range names {
		of := ""
		if labels := families[name].labels; len(labels) > 0 {
			of = " by `" + strings.Join(labels, "`, `") + "`"
		}
		list += fmt.Sprintf("- `%s`%s: %s\n", name, of, families[name].help)
	}
	path := filepath.Join(root, "docs", "metrics.md")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := bytes.Cut(content, []byte("<!-- metrics -->\n"))
	_, after, found := bytes.Cut(rest, []byte("<!-- end -->\n"))
	want := slices.Concat(before, []byte("<!-- metrics -->\n"+list+"<!-- end -->\n"), after)
	switch {
	case !found:
		t.Fatal("docs/metrics.md has no marks for the list")
	case *update:
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	case !bytes.Equal(content, want):
		t.Error("docs/metrics.md is not up to date: go test ./cmd/tenure/internal/admin -run Documented -update")
	}
}

// Alert rules and the dashboard must not ask for what does not exist: they would be silent.
func TestAlertsAndDashboardUseMetricsThatExist(t *testing.T) {
	families := familiesOf(full(t))
	for _, file := range []string{"tenure.json", "alerts.yaml"} {
		content, err := os.ReadFile(filepath.Join(root, "deploy", "grafana", file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(rate\(|increase\()?\b(tenure_[a-z0-9_]+?)(?:_bucket|_count|_sum)?\b(?:\{([^}]*)\})?`).FindAllStringSubmatch(string(content), -1)
		if len(found) < 8 {
			t.Errorf("%s has %d metrics", file, len(found))
		}
		for _, match := range found {
			of, exists := families[match[2]]
			if !exists || match[1] != "" && of.kind == "gauge" {
				t.Errorf("%s: there is no metric %s, or it is no counter, and has a rate", file, match[2])
			}
			for _, label := range regexp.MustCompile(`([a-z_]+)\s*[=!]`).FindAllStringSubmatch(match[3], -1) {
				if !slices.Contains(append(of.labels, "job", "instance"), label[1]) {
					t.Errorf("%s: %s has no label %s", file, match[2], label[1])
				}
			}
		}
	}
}
