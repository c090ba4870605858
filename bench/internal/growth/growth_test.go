package growth

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) {
	peer.ServeChild()
	ServeChild()
	os.Exit(testprocess.Run(m))
}

func TestAQuickRunHasAllFiguresOfAllSubjects(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*await.Patience) // compiles the server
	defer cancel()
	host, err := peer.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := host.Build(ctx, peer.TenureCommand); err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	options := Options{Subjects: All(), Quick: true, Progress: &progress}
	result, err := Run(ctx, host, options)
	if err != nil {
		t.Fatalf("%v; the progress:\n%s", err, progress.String())
	}
	if len(result.Series) != 5 {
		t.Errorf("there are %d series", len(result.Series))
	}
	for _, s := range result.Series {
		if len(s.Points) != 2 {
			t.Errorf("%s: %d sizes", s.Name, len(s.Points))
		}
		for _, p := range s.Points {
			if p.Lacks != "" {
				t.Errorf("%d %s: %s", p.Size, s.Name, p.Lacks)
				continue
			}
			for _, m := range s.Metrics {
				value, ok := p.Value(m)
				// Few items may take no more memory than the process had already.
				if !ok || value < 0 || value == 0 && m.Unit == Seconds {
					t.Errorf("%d %s: %s, %s is %v", p.Size, s.Name, m.Panel, m.Name, value)
				}
			}
		}
	}
	var text strings.Builder
	if err := result.Write(&text, "charts"); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "charts")
	if err := result.WriteCharts(dir); err != nil {
		t.Fatal(err)
	}
	for _, s := range result.Series {
		if !strings.Contains(text.String(), "(charts/"+s.Name+".svg)") {
			t.Errorf("the document does not show the chart of %s", s.Name)
		}
		if drawing, err := os.ReadFile(filepath.Join(dir, s.Name+".svg")); err != nil || !bytes.HasPrefix(drawing, []byte("<svg ")) {
			t.Errorf("the chart of %s: %v", s.Name, err)
		}
	}
	if !strings.Contains(text.String(), "renewals a second, and as many leases") {
		t.Errorf("the document has no figures for the formulas:\n%s", text.String())
	}
}

// The process of the clients ends with an error if the server is not there. The run goes on.
func TestASizeThatFailsSaysWhy(t *testing.T) {
	if got, want := reason("first\nthe cause\n", nil), "the cause"; got != want {
		t.Errorf("the reason is %q", got)
	}
	s := Series{Subject: leases(), Points: []Point{{Size: 1000, Lacks: "no room"}}}
	var b strings.Builder
	s.write(&b, "charts")
	if text := b.String(); !strings.Contains(text, "n/a with 1,000: no room") || !strings.Contains(text, "| 1,000 | n/a |") {
		t.Errorf("the table is\n%s", text)
	}
	if _, ok := s.chart(); ok {
		t.Error("there is a chart of nothing")
	}
}

// series is a subject with one metric, and its values in order.
func series(m Metric, sizes []int, values ...float64) Series {
	s := Series{Subject: &Subject{Name: "things", Item: "thing", Metrics: []Metric{m}}}
	for i, value := range values {
		s.Points = append(s.Points, Point{Size: sizes[i], Values: map[string]float64{m.key: value}})
	}
	return s
}

func TestWhatIsNotFlatIsNamed(t *testing.T) {
	total := Metric{Panel: "Memory", Name: "server", Unit: Bytes, Kind: Total, Noise: 1000, key: "memory"}
	each := Metric{Panel: "Latency", Name: "p99", Unit: Seconds, Kind: Each, Noise: 50e-6, key: "p99"}
	sizes := []int{10, 100, 1000, 10_000}
	for name, test := range map[string]struct {
		s    Series
		want []string // in the sentence; none: flat
	}{
		"a fixed part and a flat slope":     {series(total, sizes, 50_000, 59_000, 149_000, 1_049_000), nil},
		"one larger slope":                  {series(total, sizes, 1_000, 100_000, 1_090_000, 40_690_000), []string{"each thing from 1,000 to 10,000 costs 4.40 kB", "4.0 times"}},
		"1.5 times is flat":                 {series(total, sizes, 1_000, 100_000, 1_600_000), nil},
		"differences that are noise":        {series(total, sizes, 9_000, 9_100, 99_100, 1_049_100), nil},
		"a slope that falls and then grows": {series(total, sizes, 0, 90_000, 539_000, 18_539_000), []string{"4.0 times"}},
		"an operation that stays":           {series(each, sizes, 200e-6, 220e-6, 190e-6, 230e-6), nil},
		"an operation that grows":           {series(each, sizes, 200e-6, 220e-6, 190e-6, 380e-6), []string{"with 10,000 things it is 380 µs", "2.0 times"}},
		"an operation that grows by noise":  {series(each, sizes, 20e-6, 60e-6), nil},
		"growth by small steps":             {series(each, sizes, 200e-6, 260e-6, 320e-6, 400e-6), []string{"2.0 times"}},
	} {
		got := test.s.NotFlat()
		if len(test.want) == 0 {
			if len(got) != 0 {
				t.Errorf("%s: %q", name, got)
			}
			continue
		}
		if len(got) != 1 {
			t.Errorf("%s: %q", name, got)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(got[0], want) {
				t.Errorf("%s: %q lacks %q", name, got[0], want)
			}
		}
	}
}

func TestWhatTheMachineCannotHoldIsRefused(t *testing.T) {
	plenty := Machine{Files: math.MaxUint64, Memory: 64 << 30, Ports: 28_000}
	options := Options{Subjects: All()}
	if err := options.Check(plenty); err != nil {
		t.Errorf("a large machine: %v", err)
	}
	for name, test := range map[string]struct {
		have Machine
		want []string
	}{
		"files":  {Machine{Files: 1024, Memory: plenty.Memory, Ports: plenty.Ports}, []string{"10,000 connections", "10064 open files and may have 1024", "ulimit -n 10064"}},
		"ports":  {Machine{Files: plenty.Files, Memory: plenty.Memory, Ports: 5000}, []string{"10,000 connections", "a port each"}},
		"memory": {Machine{Files: plenty.Files, Memory: 1 << 30, Ports: plenty.Ports}, []string{"2,000,000 keys", "MB of memory are needed"}},
	} {
		err := options.Check(test.have)
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range append(test.want, "--largest") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", name, err, want)
			}
		}
		small := Options{Subjects: All(), Largest: 100}
		if err := small.Check(test.have); err != nil {
			t.Errorf("%s, with small sizes only: %v", name, err)
		}
	}
	if err := (Options{Subjects: All(), Largest: 1}).Check(plenty); err == nil {
		t.Error("a run without sizes was accepted")
	}
}

func TestThisMachineHasSomething(t *testing.T) {
	have, err := ThisMachine(t.Context())
	if err != nil || have.Files == 0 || have.Memory <= 0 || have.Ports <= 0 {
		t.Errorf("this machine has %+v: %v", have, err)
	}
}

func TestSizesGrow(t *testing.T) {
	for _, s := range All() {
		if !slices.IsSorted(s.sizes) || !slices.IsSorted(s.quick) || len(s.quick) < 2 {
			t.Errorf("%s: the sizes are %v and %v", s.Name, s.sizes, s.quick)
		}
	}
}
