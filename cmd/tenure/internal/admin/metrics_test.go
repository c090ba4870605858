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

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/statestore"
)

var update = flag.Bool("update", false, "write the list of docs/metrics.md")

// root is the root of the repository.
const root = "../../../.."

// scraped returns the families of metrics of a store.
func scraped(t *testing.T, store Store) map[string]*dto.MetricFamily {
	t.Helper()
	node := NewNode()
	node.Serve(store)
	got := answer(t, newGuard(Options{Node: node, About: about}, silent), "/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(got.Body)
	if err != nil || got.Code != 200 {
		t.Fatal(got.Code, err)
	}
	return families
}

// scrapeState is scraped of a store that has a state alone.
func scrapeState(t *testing.T, state activity.State) map[string]*dto.MetricFamily {
	t.Helper()
	return scraped(t, Store{State: func() activity.State { return state }})
}

// value returns the value of a metric, with labels as "name=value", or -1.
func value(families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	for _, m := range families[name].GetMetric() {
		var has []string
		for _, label := range m.GetLabel() {
			has = append(has, label.GetName()+"="+label.GetValue())
		}
		if slices.Sort(has); slices.Equal(has, labels) {
			switch {
			case m.Gauge != nil:
				return m.GetGauge().GetValue()
			case m.Counter != nil:
				return m.GetCounter().GetValue()
			case m.Histogram != nil:
				return float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

func fullState(now time.Time) activity.State {
	offset := int64(-2500)
	return activity.State{
		Leases: []statestore.Lease{
			{Name: "press-8", NoHolderMillis: 4500, Waiting: []statestore.Waiter{{Client: "c"}}, WaitingHidden: 2},
			{Name: "press-7", Held: true, LeftMillis: 1500, TTLMillis: 10_000, Since: now.Add(-time.Hour), Changes: 3},
		},
		Clients: []activity.Client{{Client: "gateway-a", ClockOffsetMillis: &offset}},
		Totals: activity.Totals{
			Totals: statestore.Totals{
				Held: 1, Free: 1, Acquired: 4, Renewed: 50, EndsBy: map[statestore.Cause]uint64{statestore.CauseExpired: 9},
			},
			StaleWrites: 6, TakeOvers: 7, Flapping: 1, RequestsBy: []activity.RequestCount{{Verb: "SET", Outcome: "ok", Count: 8}},
			Durations: []activity.Durations{{Verb: "GET"}, {Verb: "SET", Count: 1, Seconds: 0.003, Buckets: map[float64]uint64{0.0025: 0, 0.005: 1}}},
		},
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
	families := scrapeState(t, state)
	for _, name := range []string{`a\x01`, `a\\x01`, `a\xff`, "a\ufffd", cut, shown.Printable(cut)} {
		if got := value(families, "tenure_lease_held", "name="+name); got != 1 {
			t.Errorf("tenure_lease_held of %q is %v", name, got)
		}
	}
	if got := value(families, "tenure_leases_without_series"); got != 0 {
		t.Errorf("%v leases are without a series", got)
	}
	// The hash that stands for a part of a long name may be the hash of another one.
	families = scrapeState(t, activity.State{
		Leases: []statestore.Lease{{Name: "k", Held: true}, {Name: "k", Held: true, Turn: 1}},
		Totals: activity.Totals{Totals: statestore.Totals{Held: 2}},
	})
	if value(families, "tenure_lease_held", "name=k") != 1 || value(families, "tenure_leases_without_series") != 1 {
		t.Errorf("two leases that look alike: %v", families["tenure_lease_held"])
	}
}

// full has a value for each metric.
func full(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	return scraped(t, Store{
		State: func() activity.State { return fullState(time.Now()) },
		Usage: func() server.Usage { return server.Usage{Store: statestore.Usage{Keys: 11}, Sessions: 12} },
		Server: func() server.Stats {
			return server.Stats{Connected: 13, Dropped: map[server.DropReason]uint64{server.DroppedQoS: 14, "new": 15, "newer": 16}, Panics: 17}
		},
		Attached: func() attach.Stats { return attach.Stats{Attached: true, Attachments: 18} },
	})
}

func TestMetricsHaveWhatThePageShows(t *testing.T) {
	families := full(t)
	for _, test := range []struct {
		want   float64
		name   string
		labels []string
	}{
		{1, "tenure_ready", nil},
		{1, "tenure_role", []string{"role=active"}},
		{0, "tenure_role", []string{"role=standby"}},
		{1, "tenure_lease_held", []string{"name=press-7"}},
		{0, "tenure_lease_held", []string{"name=press-8"}},
		{4.5, "tenure_lease_no_holder_seconds", []string{"name=press-8"}},
		{0, "tenure_lease_no_holder_seconds", []string{"name=press-7"}},
		{1.5, "tenure_lease_left_seconds", []string{"name=press-7"}},
		{-1, "tenure_lease_left_seconds", []string{"name=press-8"}},
		{3, "tenure_lease_waiting", []string{"name=press-8"}},
		{3, "tenure_lease_holder_changes_total", []string{"name=press-7"}},
		{4.5, "tenure_leases_no_holder_max_seconds", nil},
		{0, "tenure_leases_without_series", nil},
		{9, "tenure_lease_ends_total", []string{"cause=expired"}},
		{0, "tenure_lease_ends_total", []string{"cause=will"}},
		{8, "tenure_requests_total", []string{"outcome=ok", "verb=SET"}},
		{2.5, "tenure_clients_clock_offset_max_seconds", nil},
		{14, "tenure_requests_dropped_total", []string{"reason=qos"}},
		{31, "tenure_requests_dropped_total", []string{"reason=other"}},
		{0, "tenure_requests_dropped_total", []string{"reason=expired"}},
		{11, "tenure_store_keys", nil},
		{12, "tenure_sessions", nil},
		{13, "tenure_clients_connected", nil},
		{17, "tenure_panics_total", nil},
		{18, "tenure_attachments_total", nil},
		{1, "tenure_request_duration_seconds", []string{"verb=SET"}},
		{0, "tenure_request_duration_seconds", []string{"verb=GET"}},
	} {
		if got := value(families, test.name, test.labels...); got != test.want {
			t.Errorf("%s%v is %v, want %v", test.name, test.labels, got, test.want)
		}
	}
}

func TestClientsCannotMakeSeriesWithoutBound(t *testing.T) {
	state := activity.State{Totals: activity.Totals{Totals: statestore.Totals{Held: 5000}}}
	for i := range 1000 {
		state.Leases = append(state.Leases, statestore.Lease{Name: fmt.Sprintf("\xff%04d", i), Held: true, Turn: i + 1})
	}
	state.Leases = append(state.Leases, statestore.Lease{Name: "z", Held: true}) // its turn comes first
	families := scrapeState(t, state)
	if got := len(families["tenure_lease_held"].GetMetric()); got != maxNames {
		t.Errorf("%d series for leases, want %d", got, maxNames)
	}
	if got := value(families, "tenure_lease_held", "name=z"); got != 1 {
		t.Error("the lease with the first turn has no series")
	}
	if got := value(families, "tenure_leases_without_series"); got != 5000-maxNames {
		t.Errorf("%v leases without series", got)
	}
	if got := value(families, "tenure_leases", "state=held"); got != 5000 {
		t.Errorf("%v leases are held", got)
	}
}

// documented is the list in docs/metrics.md.
func documented(families map[string]*dto.MetricFamily) (list string, names []string) {
	var lines strings.Builder
	for name := range families {
		if strings.HasPrefix(name, "tenure_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		family := families[name]
		var labels []string
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+label.GetName()+"`")
		}
		of := ""
		if len(labels) > 0 {
			of = " by " + strings.Join(labels, ", ")
		}
		fmt.Fprintf(&lines, "- `%s`%s: %s\n", name, of, family.GetHelp())
	}
	return lines.String(), names
}

func TestMetricsAreDocumentedAndNamedByConvention(t *testing.T) {
	families := full(t)
	list, names := documented(families)
	for _, name := range names {
		family := families[name]
		isCounter := family.GetType() == dto.MetricType_COUNTER
		if isCounter != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %v: counters, and only they, end with _total", name, family.GetType())
		}
		if regexp.MustCompile(`_(ms|millis|minutes|kb)(_|$)`).MatchString(name) || !strings.HasSuffix(family.GetHelp(), ".") {
			t.Errorf("%s: base units, and a sentence as help: %q", name, family.GetHelp())
		}
	}
	path := filepath.Join(root, "docs", "metrics.md")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := bytes.Cut(content, []byte("<!-- metrics -->\n"))
	_, after, found := bytes.Cut(rest, []byte("<!-- end -->\n"))
	want := slices.Concat(before, []byte("<!-- metrics -->\n"+list+"<!-- end -->\n"), after)
	if !found {
		t.Fatal("docs/metrics.md has no marks for the list")
	}
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(content, want) {
		t.Error("docs/metrics.md is not up to date: go test ./cmd/tenure/internal/admin -run Documented -update")
	}
}

// Alert rules and the dashboard must not ask for what does not exist: they would be silent.
func TestAlertsAndDashboardUseMetricsThatExist(t *testing.T) {
	families := full(t)
	exists := make(map[string]bool)
	for name, family := range families {
		exists[name] = true
		if family.GetType() == dto.MetricType_HISTOGRAM {
			exists[name+"_bucket"], exists[name+"_count"], exists[name+"_sum"] = true, true, true
		}
	}
	labels := make(map[string]map[string]bool)
	for name, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if labels[name] == nil {
					labels[name] = make(map[string]bool)
				}
				labels[name][label.GetName()] = true
			}
		}
	}
	dir := filepath.Join(root, "deploy", "grafana")
	for _, file := range []string{"tenure.json", "alerts.yaml"} {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		var document any
		if err := yaml.Unmarshal(content, &document); err != nil { // JSON is YAML
			t.Fatalf("%s: %v", file, err)
		}
		expressions := expressions(document, nil)
		if len(expressions) < 8 {
			t.Errorf("%s has %d expressions", file, len(expressions))
		}
		for _, expression := range expressions {
			found := regexp.MustCompile(`\b(tenure_[a-z0-9_]+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(expression, -1)
			if len(found) == 0 && !strings.Contains(expression, "up{") && !strings.Contains(expression, "process_") {
				t.Errorf("%s: no metric of tenure in %q", file, expression)
			}
			for _, match := range found {
				if !exists[match[1]] {
					t.Errorf("%s: there is no metric %s", file, match[1])
				}
				base := strings.TrimSuffix(match[1], "_bucket")
				for _, label := range regexp.MustCompile(`([a-z_]+)\s*[=!]`).FindAllStringSubmatch(match[2], -1) {
					if name := label[1]; name != "job" && name != "instance" && !labels[base][name] {
						t.Errorf("%s: %s has no label %s", file, base, name)
					}
				}
			}
			for _, call := range regexp.MustCompile(`\b(?:rate|increase)\((tenure_[a-z0-9_]+)`).FindAllStringSubmatch(expression, -1) {
				base := strings.TrimSuffix(call[1], "_bucket")
				if kind := families[base].GetType(); kind != dto.MetricType_COUNTER && kind != dto.MetricType_HISTOGRAM {
					t.Errorf("%s: %s is no counter, and %q has its rate", file, base, expression)
				}
			}
			if open, shut := strings.Count(expression, "("), strings.Count(expression, ")"); open != shut {
				t.Errorf("%s: parentheses in %q", file, expression)
			}
		}
	}
}

// expressions returns the values of keys "expr" and "query" anywhere in a document.
func expressions(document any, found []string) []string {
	switch node := document.(type) {
	case map[string]any:
		for key, child := range node {
			if text, ok := child.(string); ok && key == "expr" {
				found = append(found, text)
				continue
			}
			found = expressions(child, found)
		}
	case []any:
		for _, child := range node {
			found = expressions(child, found)
		}
	}
	return found
}
