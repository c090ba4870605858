package growth

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) {
	peer.ServeChild(Children)
	os.Exit(testprocess.Run(m))
}

// start returns a host with the command tenure.
func start(t *testing.T) (context.Context, *peer.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*await.Patience) // compiles the server
	t.Cleanup(cancel)
	host, err := peer.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := host.Build(ctx, peer.TenureCommand); err != nil {
		t.Fatal(err)
	}
	return ctx, host
}

func TestAQuickRunHasAllFiguresOfAllSubjects(t *testing.T) {
	ctx, host := start(t)
	var progress bytes.Buffer
	result, err := Run(ctx, host, Options{Subjects: All(), Quick: true, Progress: &progress})
	if err != nil {
		t.Fatalf("%v; the progress:\n%s", err, progress.String())
	}
	if len(result) != 5 {
		t.Errorf("there are %d series", len(result))
	}
	for _, s := range result {
		if len(s.Points) != 2 {
			t.Errorf("%s: %d sizes", s.Name, len(s.Points))
		}
		for _, p := range s.Points {
			if p.Lacks != "" || len(p.Values) != len(s.Columns) {
				t.Errorf("%d %s: %v for %d columns: %s", p.Size, s.Name, p.Values, len(s.Columns), p.Lacks)
				continue
			}
			for i, column := range s.Columns {
				// Few items may take no more memory than the process had already.
				memory := strings.HasSuffix(column.Format(p.Values[i]), "B")
				if p.Values[i] < 0 || p.Values[i] == 0 && !memory {
					t.Errorf("%d %s: %s is %v", p.Size, s.Name, column.Name, p.Values[i])
				}
			}
		}
	}
}

func TestASizeThatFailsSaysWhy(t *testing.T) {
	ctx, host := start(t)
	var progress bytes.Buffer
	broken := &Subject{Name: "broken", Columns: columns(latencyOf("it")), sizes: []int{1000}}
	result, err := Run(ctx, host, Options{Subjects: []*Subject{broken}, Progress: &progress})
	if err != nil {
		t.Fatal(err)
	}
	text := result.String()
	for _, want := range []string{`- n/a with 1,000: there is no subject "broken"`, "| 1,000 | n/a | n/a |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}

func TestPercentilesAreOfAllTimes(t *testing.T) {
	times := make([]time.Duration, 1000)
	for i := range times {
		times[i] = time.Duration(1000-i) * time.Second
	}
	got, want := percentiles(times, 50, 90, 99, 99.9, 100), []float64{501, 901, 991, 1000, 1000}
	if !slices.Equal(got, want) {
		t.Errorf("the percentiles are %v, want %v", got, want)
	}
}

func TestFiguresHaveThreeDigitsAndAUnit(t *testing.T) {
	for want, got := range map[string]string{
		"999 B": size(999), "1.50 kB": size(1500), "2000 MB": size(2e9),
		"500 ns": duration(500e-9), "18.5 µs": duration(18.5e-6), "5.33 ms": duration(5.33e-3), "90.0 s": duration(90),
		"1,234,567": number(1234567.8), "12": number(12),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
