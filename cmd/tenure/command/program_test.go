package command

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/cmd/tenure/internal/doctor"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/server/journal"
)

func TestSettingsReachAllCommands(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	file := write(t, "tenure.yaml", fmt.Sprintf("broker: %s\nserve:\n  memory: true\n  addr: 127.0.0.1:0\n  hold-off: 1h\n", address))
	other := begin(t, "serve", "--config", file).mustPrint(`listening on (\S+) .*`)
	host, port, err := net.SplitHostPort(strings.TrimPrefix(address, "mqtt://"))
	if err != nil {
		t.Fatal(err)
	}
	operations := "AIO_BROKER_HOSTNAME=" + host + " AIO_BROKER_TCP_PORT=" + port + " AIO_MQTT_USE_TLS=false AIO_MQTT_CLIENT_ID=workload"
	workload := dialTest(t, address, "workload")
	for _, test := range []struct {
		name, environment, line string
		code                    int
		stdout, stderr          string
	}{
		{"a file", "TENURE_CONFIG=" + file, "set k v", 0, "", ""},
		{"a variable goes before the file", "TENURE_CONFIG=" + file + " TENURE_BROKER=" + other, "get k", exitMissing, "", "does not exist"},
		{"a flag goes before the variable", "TENURE_BROKER=" + other, "get k --broker " + address, 0, "v", ""},
		{"a section of the file", "TENURE_BROKER=" + other, "lock --wait 0 k -- true", exitHeld, "", "hold-off"},
		{"variables of Azure IoT Operations", operations, "get k", 0, "v", ""},
		{"ours go before those", operations + " TENURE_BROKER=" + other, "get k", exitMissing, "", ""},
		{"one of those that makes no sense", operations + " AIO_BROKER_TCP_PORT=x", "get k", exitUsage, "", "AIO_BROKER_TCP_PORT"},
		{"attach", "TENURE_BROKER=" + address, "attach --memory", exitRefused, "", "belongs to the state store of this server"},
		{"a variable that no flag has", "TENURE_BROKKER=x TENURE_BROKER=" + address, "get k", 0, "v", `level=WARN msg="TENURE_BROKKER is not a setting`},
		{"the source of a refused value", "TENURE_HOLD_OFF=-1s", "serve --memory", exitUsage, "", "--hold-off comes from TENURE_HOLD_OFF"},
	} {
		got := tenure(t, "", strings.Fields(test.environment), strings.Fields(test.line)...)
		if got.code != test.code || !strings.Contains(got.stdout, test.stdout) || !strings.Contains(got.stderr, test.stderr) {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
	if _, err := workload.Get(t.Context(), "k"); err != nil {
		t.Errorf("the workload of the same pod: %v", err) // not taken over
	}
}

// A text of another machine reaches a log of any format without what a terminal obeys.
func TestTheLogHasTheFormatAndTheLevelOfItsFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"":                  `level=WARN msg=refused reason="\x1b\u009b2J"`,
		"--log-level debug": "level=DEBUG msg=detail",
		"--log-format json": `"level":"WARN","msg":"refused","reason":"\u001b\u009b2J"`,
		"--log-level error": "",
	} {
		cmd := Program{Name: "tenure"}.Command()
		if err := cmd.ParseFlags(strings.Fields(flags)); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		logger := newLogger(cmd, &log, slog.LevelWarn)
		logger.Debug("detail")
		logger.Warn("refused", "reason", "\x1b\u009b2J")
		text := log.String()
		if !strings.Contains(text, want) || want == "" && text != "" || flags == "" && strings.Contains(text, "detail") || strings.ContainsAny(text, "\x1b\u009b") {
			t.Errorf("%q: %s", flags, text)
		}
	}
}

// The file for --config as docs/command.md and the help show it.
func TestAServerStartsWithTheFileOfTheDocument(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimRight(settings.Example, "\n"), "  ")
	if !strings.Contains(string(document), shown) {
		t.Errorf("the document does not show\n%s", shown)
	}
	// Another program may have the port of the file.
	startMemory(t, "--addr", "localhost:0", "--config", write(t, "tenure.yaml", settings.Example))
}

// The examples of docs/command.md that begin with "$" run in a shell, with a store of their own.
// A line of output that the document shows must begin a line of the real output, in this order;
// versions, times and names of holders differ each time.
func TestTheExamplesOfTheDocumentPrintWhatItShows(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("SKIPPED: the examples are for a POSIX shell")
	}
	document, err := os.ReadFile("../../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(built.Path(t), filepath.Join(dir, "tenure")); err != nil {
		t.Fatal(err)
	}
	environment := append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"),
		"TENURE_BROKER="+startMemory(t))
	changing := strings.NewReplacer("1795361784379:1:StateStore", "\x00", "2026-11-22T15:36:25.061Z", "\x01")
	var examples []string
	shown := make(map[string][]string) // by example
	below := false                     // an example in the same block
	for line := range strings.Lines(string(document)) {
		text, isCode := strings.CutPrefix(strings.TrimRight(line, "\n"), "    ")
		example, isExample := strings.CutPrefix(text, "$ ")
		switch {
		case !isCode:
			below = false
		case isExample:
			below = true
			examples = append(examples, example)
		case below:
			last := examples[len(examples)-1]
			shown[last] = append(shown[last], text)
		}
	}
	if len(examples) < 20 {
		t.Fatalf("the document has only %d examples: %q", len(examples), examples)
	}
	var script strings.Builder // one for all, because an example sets a variable for the next ones
	for _, example := range examples {
		fmt.Fprintf(&script, "echo '### next'\n%s\n", example)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-c", "exec 2>&1\n"+script.String())
	shell.Env, shell.Dir = environment, dir
	out, err := shell.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	results := strings.Split(string(out), "### next\n")[1:]
	if len(results) != len(examples) {
		t.Fatalf("%d results of %d examples:\n%s", len(results), len(examples), out)
	}
	for i, example := range examples {
		rest := results[i]
		for _, want := range shown[example] {
			pattern := regexp.QuoteMeta(changing.Replace(want))
			pattern = strings.NewReplacer("\x00", versionPattern, "\x01", moment).Replace(pattern)
			at := regexp.MustCompile("(?m)^" + pattern).FindStringIndex(rest)
			if at == nil {
				t.Errorf("$ %s\nprinted\n%s\nand the document shows %q", example, results[i], want)
				break
			}
			rest = rest[at[1]:]
		}
		if len(shown[example]) == 0 && results[i] != "" {
			t.Errorf("$ %s\nprinted\n%s\nand the document shows nothing", example, results[i])
		}
	}
}

// Scripts have been promised these keys.
func TestTheKeysOfReportsStay(t *testing.T) {
	for keys, report := range map[string]any{
		"time key exists value valueBase64 version missed":                                              entryReport{},
		"time name held holder value version":                                                           holderReport{},
		"address clientId steps identity":                                                               doctor.Report{},
		"name broker status found cure kind":                                                            doctor.Step{},
		"file online bytes liveBytes records keys fences replies changes identity bound warnings clean": journal.Report{},
	} {
		var got []string
		for _, field := range reflect.VisibleFields(reflect.TypeOf(report)) {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			got = append(got, key)
		}
		if strings.Join(got, " ") != keys {
			t.Errorf("%T has the keys %q, and had %s", report, got, keys)
		}
	}
}
