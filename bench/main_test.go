package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/bench/internal/growth"
	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/internal/testprocess"
)

// asCommand makes the test executable run the command in place of the tests.
const asCommand = "TENURE_TEST_AS_BENCH"

func TestMain(m *testing.M) {
	peer.ServeChild(growth.Children)
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(testprocess.Run(m))
}

// The reference and NATS need no program that a machine with Go lacks.
func TestAQuickRunPrintsItsTables(t *testing.T) {
	text := quickRun(t, "--only", "^NATS")
	for _, want := range []string{
		" processors, ", "### Obtain and release\n", "### Renewal\n", "### Guarded write\n",
		"### Wait and hand over\n", "| tenure | ", "| NATS KV | ", "### The peers\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables lack %q:\n%s", want, text)
		}
	}
}

func TestAQuickRunOfGrowthPrintsItsTables(t *testing.T) {
	text := quickRun(t, "growth", "--only", "^keys$")
	for _, want := range []string{"### Keys\n", "| 1000 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables lack %q:\n%s", want, text)
		}
	}
}

func quickRun(t *testing.T, arguments ...string) string {
	t.Helper()
	var out, progress strings.Builder
	if err := run(t.Context(), append(arguments, "--quick"), &out, &progress); err != nil {
		t.Fatalf("%v; the progress:\n%s", err, progress.String())
	}
	return out.String()
}

func TestFlagsWithoutSenseEndBeforeTheRun(t *testing.T) {
	for _, arguments := range [][]string{
		{"speed"}, {"growth", "now"}, {"growth", "--only", "nothing"}, {"growth", "--only", "("},
	} {
		var progress strings.Builder
		if err := run(t.Context(), arguments, io.Discard, &progress); err == nil || progress.Len() > 0 {
			t.Errorf("%q ends with %v after\n%s", arguments, err, progress.String())
		}
	}
}
