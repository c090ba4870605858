package growth

import (
	"bytes"
	"context"
	"os"
	"regexp"
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

func TestAQuickRunHasAllFiguresOfAllSubjectsAndSaysWhyOneFails(t *testing.T) {
	ctx, host := start(t)
	var progress bytes.Buffer
	broken := &Subject{Name: "broken", columns: timeOf("it"), quick: []int{1000}}
	tables, err := Run(ctx, host, Options{Subjects: append(All(), broken), Quick: true, Progress: &progress})
	if err != nil {
		t.Fatalf("%v; the progress:\n%s", err, progress.String())
	}
	text := tables.String()
	for _, want := range []string{"- n/a with 1000: there is no subject \"broken\"\n", "| 1000 | n/a | n/a |\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables lack %q:\n%s", want, text)
		}
	}
	// A header, a line below it, and two sizes. Few items may take no more memory than the process had already.
	zero := regexp.MustCompile(`\| 0\.00 ?(ns)? \|`)
	if rows := strings.Count(text, "\n| "); rows != 5*3+2 || strings.Count(text, "n/a") != 3 || zero.MatchString(text) {
		t.Errorf("there are %d rows, or figures are missing:\n%s", rows, text)
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
		"999 B": memoryOf("")[0].format(999), "1.50 kB": memoryOf("")[1].format(1500), "2000 MB": memoryOf("")[0].format(2e9),
		"500 ns": seconds("").format(500e-9), "18.5 µs": seconds("").format(18.5e-6), "5.33 ms": seconds("").format(5.33e-3),
		"90.0 s": seconds("").format(90), "12346": column{"", []string{""}, 1}.format(12345.6),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
