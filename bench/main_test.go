package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/bench/internal/growth"
	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/bench/internal/table"
	"github.com/tenurelock/tenure/internal/testprocess"
)

// asCommand makes the test executable run the command in place of the tests.
const asCommand = "TENURE_TEST_AS_BENCH"

func TestMain(m *testing.M) {
	peer.ServeChild()
	growth.ServeChild()
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(testprocess.Run(m))
}

// The reference and the raw echo need no program that a machine with Go lacks.
func TestAQuickRunWritesItsTablesIntoTheDocument(t *testing.T) {
	document := filepath.Join(t.TempDir(), "performance.md")
	const before, after = "# Performance\n\n", "\nThe end.\n"
	if err := os.WriteFile(document, []byte(before+table.Peers.Begin()+"\n"+table.Peers.End()+"\n"+after), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, progress strings.Builder
	err := run(t.Context(), []string{"--quick", "--anyway", "--write", "--document", document, "--only", "^raw"}, &out, &progress)
	if err != nil {
		t.Fatalf("%v; the progress:\n%s", err, progress.String())
	}
	content, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	if !strings.HasPrefix(text, before) || !strings.HasSuffix(text, after) || !strings.Contains(text, strings.TrimSpace(out.String())) {
		t.Errorf("the document is\n%s", text)
	}
	for _, want := range []string{
		"load average", "### Obtain and release\n", "### Renewal\n", "### Guarded write\n", "### Wait and hand over\n",
		"| tenure | 16 |", "| raw echo | 1 |", "- n/a for raw echo:",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the document lacks %q", want)
		}
	}
}

func TestAQuickRunOfLatencyPrintsItsReport(t *testing.T) {
	var out, progress strings.Builder
	if err := run(t.Context(), []string{"latency", "--quick"}, &out, &progress); err != nil {
		t.Fatalf("%v; the progress:\n%s", err, progress.String())
	}
	for _, want := range []string{"load average", "Capacity: ", "Target: p99 at most 1ms"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

func TestAQuickRunOfGrowthWritesItsFiguresAndCharts(t *testing.T) {
	dir := t.TempDir()
	document, charts := filepath.Join(dir, "scale.md"), filepath.Join(dir, "charts")
	if err := os.WriteFile(document, []byte("# Scale\n\n"+table.Growth.Begin()+"\n"+table.Growth.End()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, progress strings.Builder
	arguments := []string{"growth", "--quick", "--anyway", "--write", "--only", "^keys$", "--document", document, "--charts", charts}
	if err := run(t.Context(), arguments, &out, &progress); err != nil {
		t.Fatalf("%v; the progress:\n%s", err, progress.String())
	}
	content, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"load average", "### What is not flat\n", "### Keys\n", "(charts/keys.svg)", "| 1,000 |"} {
		if !strings.Contains(string(content), want) {
			t.Errorf("the document lacks %q:\n%s", want, content)
		}
	}
	if _, err := os.Stat(filepath.Join(charts, "keys.svg")); err != nil {
		t.Error(err)
	}
}

func TestFlagsWithoutSenseEndBeforeTheRun(t *testing.T) {
	for _, arguments := range [][]string{
		{"speed"}, {"growth", "now"}, {"growth", "--only", "nothing"}, {"growth", "--only", "("}, {"growth", "--largest", "1"},
		{"growth", "--write", "--only", "keys"}, {"growth", "--write", "--document", "go.mod"},
		{"latency", "now"}, {"latency", "--share", "2"},
	} {
		var progress strings.Builder
		if err := run(t.Context(), arguments, io.Discard, &progress); err == nil || progress.Len() > 0 {
			t.Errorf("%q ends with %v after\n%s", arguments, err, progress.String())
		}
	}
}

func TestATableOfABusyMachineIsNotWritten(t *testing.T) {
	for _, test := range []struct {
		s    settings
		busy float64
		may  bool
	}{
		{settings{}, 1, true},
		{settings{write: true}, 0.02, true},
		{settings{write: true}, 0.5, false},
		{settings{write: true, anyway: true}, 0.5, true},
	} {
		if err := mayWrite(test.s.write, test.s.anyway, test.busy, "in use"); (err == nil) != test.may {
			t.Errorf("%+v with %v of the processors in use: %v", test.s, test.busy, err)
		}
	}
}

func TestADocumentWithoutAPlaceForTheTablesIsFoundAtOnce(t *testing.T) {
	document := filepath.Join(t.TempDir(), "performance.md")
	if err := os.WriteFile(document, []byte("# Performance\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var progress strings.Builder
	err := run(t.Context(), []string{"--write", "--document", document}, io.Discard, &progress)
	if err == nil || progress.Len() > 0 {
		t.Errorf("the run ends with %v after\n%s", err, progress.String())
	}
}
