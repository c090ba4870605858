package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

// built is the command tenure.
var built = compiled.Program{Folder: ".."}

// build returns the path of the command.
func build(t *testing.T) string {
	t.Helper()
	return built.Path(t)
}

// launch starts a command and returns the word that follows ready in its first line of output,
// which must begin with ready, and the lines that follow. The process ends with the test.
func launch(t *testing.T, cmd *exec.Cmd, ready string) (address string, stdout *bufio.Scanner) {
	t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, cmd, pipe, ready)
}

// start is launch for a test that has the pipe of standard output.
func start(t *testing.T, cmd *exec.Cmd, pipe io.Reader, ready string) (address string, stdout *bufio.Scanner) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // if it still runs
		_ = await.Result(cmd.Wait)
	})
	stdout = bufio.NewScanner(pipe)
	stdout.Scan()
	line, ok := strings.CutPrefix(stdout.Text(), ready)
	if !ok {
		t.Fatalf("first line %q", stdout.Text())
	}
	address, _, _ = strings.Cut(line, " ")
	return address, stdout
}

func TestServeSaysWhereItListensAndStopsOnASignal(t *testing.T) {
	path := build(t)
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := exec.Command(path, "serve", "--memory", "--addr", "127.0.0.1:0")
			var stderr strings.Builder
			cmd.Stderr = &stderr
			address, lines := launch(t, cmd, "listening on ")
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			client, err := transport.Dial(ctx, address, transport.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err != nil {
				t.Error(err)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			var rest []string
			for lines.Scan() {
				rest = append(rest, lines.Text())
			}
			if err := await.Result(cmd.Wait); err != nil || strings.Join(rest, "\n") != "stopped" || !warnsOfMemoryOnly(stderr.String()) {
				t.Errorf("%v; said %q; standard error %q", err, rest, stderr.String())
			}
		})
	}
}

// warnsOfMemoryOnly reports whether a log has one line, the warning about a store in memory.
func warnsOfMemoryOnly(log string) bool {
	return strings.Count(log, "\n") == 1 && strings.Contains(log, "level=WARN") && strings.Contains(log, "a restart forgets every key, lease and fence")
}

func TestAStoreThatStartsWithHoldOffGrantsNoLeaseAtFirst(t *testing.T) {
	cmd := exec.Command(build(t), "serve", "--memory", "--addr", "127.0.0.1:0", "--hold-off", "1h")
	address, _ := launch(t, cmd, "listening on ")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client, err := transport.Dial(ctx, address, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	l, err := lease.New(client, "press-7/active", lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(ctx); !errors.Is(err, lease.ErrHeld) {
		t.Errorf("a lease during hold-off: %v, want ErrHeld", err)
	}
	if _, err := client.Set(ctx, "k", nil, transport.SetOptions{}); err != nil {
		t.Errorf("a plain key during hold-off: %v", err)
	}
}

func TestServeRefusesWrongUsageAndNamesTheCure(t *testing.T) {
	path := build(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"a dialect that does not exist", []string{"serve", "--dialect", "klingon"}, "choose auto, deployed or documented"},
		{"a negative hold-off", []string{"serve", "--hold-off", "-1s"}, "0 means none"},
		{"a negative limit", []string{"serve", "--memory", "--addr", "127.0.0.1:0", "--max-keys", "-1"}, "0 means no limit"},
		{"an address that others can reach", []string{"serve", "--memory", "--addr", "0.0.0.0:0"}, "or say --insecure"},
		{"a certificate without its key", []string{"serve", "--tls-cert", "server.pem"}, "needs both --tls-cert and --tls-key"},
		{"lock prefixes without --strict", []string{"serve", "--addr", "127.0.0.1:0", "--lock-prefix", "locks/"}, "--lock-prefix needs --strict"},
		{"an unknown flag", []string{"serve", "--adr", "x"}, "unknown flag: --adr"},
		{"an unknown command", []string{"sreve"}, `unknown command "sreve"`},
		{"a URL with credentials", []string{"serve", "mqtt://store:secret-word@localhost"}, "tenure attach URL"},
		{"a certificate that is not there", []string{"serve", "--tls-cert", "no.pem", "--tls-key", "no.key"}, "--tls-cert: open no.pem"},
		{"users that are not there", []string{"serve", "--auth", "no.yaml"}, "--auth: access: open no.yaml"},
		{"an address without a port", []string{"serve", "--memory", "--addr", "localhost"}, "write it like :1883"},
		{"a port that has no number", []string{"serve", "--memory", "--addr", "localhost:mqttt"}, "write it like :1883"},
		{"a port that is too large", []string{"serve", "--memory", "--addr", "localhost:70000"}, "write it like :1883"},
		{"a password that is not there", []string{"attach", "mqtt://localhost", "--password-file", "no"}, "--password-file: open no"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := mustExit(t, exitUsage, path, test.arguments...)
			if !strings.Contains(out, test.want) {
				t.Errorf("%q is not in\n%s", test.want, out)
			}
			if strings.Contains(out, "secret-word") {
				t.Errorf("it repeats a password:\n%s", out)
			}
		})
	}
	for _, test := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"a port that is taken", []string{"serve", "--memory", "--addr", taken.Addr().String()}, "choose another with --addr"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if out := mustExit(t, exitFailure, path, test.arguments...); !strings.Contains(out, test.want) {
				t.Errorf("%q is not in\n%s", test.want, out)
			}
		})
	}
}

func TestAnAddressThatIsNoneMakesNoDirectory(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	for _, address := range []string{"localhost", "mqtt://localhost:1883", "localhost:mqttt", "localhost:70000"} {
		mustExit(t, exitUsage, build(t), "serve", "--data", data, "--addr", address)
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the data: %v", err)
	}
}

// mustExit runs a command that ends by itself with this code, and returns what it printed.
func mustExit(t *testing.T, code int, path string, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, arguments...)
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("tenure %q: %v, want exit code %d; it said\n%s", arguments, err, code, out)
	}
	return string(out)
}

func TestHelpShowsEveryFlagAndAnExample(t *testing.T) {
	path := build(t)
	for name, wants := range map[string][]string{
		"serve": {"--addr", "--hold-off", "--max-keys", "--max-bytes", "--max-packet-size", "--dialect", "--verbose",
			"--tls-cert", "--tls-key", "--client-ca", "--auth", "--insecure", "--strict", "--lock-prefix", "--max-value", "--max-watches",
			"--max-clients", "--max-memory", "--retain", "--max-retained", "--max-retained-bytes", "--max-outgoing-bytes", "--max-all-outgoing-bytes",
			"--max-session-bytes", "--max-session-messages", "--max-all-session-bytes", "--max-sessions-per-user", "--max-subscriptions",
			"--password-checks", "--packet-timeout", "--max-unauthenticated", "--max-unauthenticated-per-address", "--dedup-window", "SIGHUP", "the command attach"},
		"attach": {"--username", "--password-file", "--tls-ca", "--tls-cert", "--tls-key", "--max-clients",
			"--hold-off", "--max-keys", "--max-bytes", "--dialect", "--verbose", "--strict", "--lock-prefix", "--max-value", "--max-watches",
			"--dedup-window", "SIGHUP", "docs/attach.md"},
	} {
		out, err := exec.Command(path, name, "--help").CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range append(wants, "--data", "--memory", "Examples:", "in memory", "tenure "+name+" ") {
			if !strings.Contains(string(out), want) {
				t.Errorf("%q is not in the help of %s:\n%s", want, name, out)
			}
		}
	}
}

func TestServeAndAttachShareOnlyTheFlagsOfTheStore(t *testing.T) {
	var shared []string
	serveCommand(nil).Flags().VisitAll(func(f *pflag.Flag) {
		if attachCommand(nil).Flags().Lookup(f.Name) != nil {
			shared = append(shared, f.Name)
		}
	})
	want := []string{"admin", "admin-host", "admin-insecure", "admin-values", "data", "dedup-window", "dialect", "hold-off", "lock-prefix", "max-bytes", "max-clients", "max-keys", "max-value", "max-watches",
		"memory", "strict", "tls-cert", "tls-key"}
	if !slices.Equal(shared, want) {
		t.Errorf("shared: %q, want %q", shared, want)
	}
}

func TestSettingsReachAllCommands(t *testing.T) {
	address := startMemory(t)
	file := filepath.Join(t.TempDir(), "tenure.yaml")
	content := fmt.Sprintf("broker: %s\nserve:\n  memory: true\n  addr: 127.0.0.1:0\n  hold-off: 1h\n", address)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tenure(t, "", []string{"TENURE_CONFIG=" + file}, "set", "k", "v"); got.code != 0 {
		t.Errorf("a file: %+v", got)
	}
	serve := exec.Command(build(t), "serve", "--config", file)
	other, _ := launch(t, serve, "listening on ")
	if got := tenure(t, "", []string{"TENURE_CONFIG=" + file, "TENURE_BROKER=" + other}, "get", "k"); got.code != exitMissing {
		t.Errorf("a variable goes before the file: %+v", got)
	}
	if got := tenure(t, "", []string{"TENURE_CONFIG=" + file, "TENURE_BROKER=" + other}, "get", "k", "--broker", address); got.stdout != "v" {
		t.Errorf("a flag goes before the variable: %+v", got)
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(address, "mqtt://"))
	if err != nil {
		t.Fatal(err)
	}
	operations := []string{"AIO_BROKER_HOSTNAME=" + host, "AIO_BROKER_TCP_PORT=" + port, "AIO_MQTT_USE_TLS=false", "AIO_MQTT_CLIENT_ID=workload"}
	workload := dialTest(t, address, "workload")
	if got := tenure(t, "", operations, "get", "k"); got.stdout != "v" {
		t.Errorf("variables of Azure IoT Operations: %+v", got)
	}
	if _, err := workload.Get(t.Context(), "k"); err != nil {
		t.Errorf("the workload of the same pod: %v", err) // not taken over
	}
	if got := tenure(t, "", append(operations, "TENURE_BROKER="+other), "get", "k"); got.code != exitMissing {
		t.Errorf("an address of Tenure goes before an address of Azure IoT Operations: %+v", got)
	}
	if got := tenure(t, "", append(operations, "AIO_BROKER_TCP_PORT=x"), "get", "k"); got.code != exitUsage || !strings.Contains(got.stderr, "AIO_BROKER_TCP_PORT") {
		t.Errorf("a variable that makes no sense: %+v", got)
	}
	if got := tenure(t, "", []string{"TENURE_BROKER=" + address}, "attach", "--memory"); got.code != exitRefused || !strings.Contains(got.stderr, "the broker is a tenure serve, which has a store of its own: point the clients at it, and leave attach out") {
		t.Errorf("attach: %+v", got)
	}
	misspelled := []string{"TENURE_BROKER=" + address, "TENURE_BROKKER=" + other}
	if got := tenure(t, "", misspelled, "get", "k"); got.stdout != "v" || !strings.Contains(got.stderr, `level=WARN msg="TENURE_BROKKER is not a setting`) {
		t.Errorf("a variable that no flag has: %+v", got)
	}
	if got := tenure(t, "", misspelled, "health"); got.code != 0 || got.stderr != "" {
		t.Errorf("a probe writes the warning each time: %+v", got)
	}
	if got := tenure(t, "", misspelled, "health", "--log-level", "warn"); !strings.Contains(got.stderr, "TENURE_BROKKER") {
		t.Errorf("a probe that is to warn: %+v", got)
	}
	if got := tenure(t, "", misspelled, "get", "k", "--log-level", "error"); got.stderr != "" {
		t.Errorf("a warning that was not asked for: %+v", got)
	}
	if got := tenure(t, "", []string{"TENURE_HOLD_OFF=-1s"}, "serve", "--memory"); got.code != exitUsage || !strings.Contains(got.stderr, "--hold-off comes from TENURE_HOLD_OFF") {
		t.Errorf("the source of a refused value: %+v", got)
	}
}

func TestTheLogHasTheFormatAndTheLevelOfItsFlags(t *testing.T) {
	for _, test := range []struct {
		name  string
		flags []string
		want  string
		not   string
	}{
		{"the default", nil, "level=WARN", "level=INFO"},
		{"json", []string{"--log-format", "json"}, `"level":"WARN"`, "level="},
		{"errors only", []string{"--log-level", "error"}, "", "WARN"},
		{"debug", []string{"--log-level", "debug"}, "level=DEBUG", ""},
		{"verbose", []string{"--verbose"}, "level=DEBUG", ""},
		{"a level goes before verbose", []string{"--verbose", "--log-level", "error"}, "", "level="},
		{"with data", []string{"--data", filepath.Join(t.TempDir(), "a")}, "loaded the journal", ""},
		{"with data, warnings only", []string{"--data", filepath.Join(t.TempDir(), "b"), "--log-level", "warn"}, "", "level="},
	} {
		t.Run(test.name, func(t *testing.T) {
			arguments := append([]string{"serve", "--addr", "127.0.0.1:0"}, test.flags...)
			if !slices.Contains(test.flags, "--data") {
				arguments = append(arguments, "--memory")
			}
			r := begin(t, arguments...)
			line, _ := await.Next(r.lines)
			address, _, _ := strings.Cut(strings.TrimPrefix(line, "listening on "), " ")
			_ = tenure(t, "", nil, "get", "k", "--broker", address)
			_ = r.cmd.Process.Signal(os.Interrupt)
			for range r.lines {
			}
			_ = await.Result(r.cmd.Wait)
			log := r.stderr.String()
			if !strings.Contains(log, test.want) || test.not != "" && strings.Contains(log, test.not) || test.want == "" && log != "" {
				t.Errorf("log:\n%s", log)
			}
			if test.name == "json" {
				for line := range strings.Lines(log) {
					if !json.Valid([]byte(line)) {
						t.Errorf("no JSON: %s", line)
					}
				}
			}
		})
	}
}

// startVerbose starts tenure serve with --verbose. stop ends it and returns its log.
func startVerbose(t *testing.T, arguments ...string) (stop func() string) {
	t.Helper()
	cmd := exec.Command(build(t), append([]string{"serve", "--memory", "--addr", "127.0.0.1:0", "--verbose"}, arguments...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	_, stdout := launch(t, cmd, "listening on ")
	stop = sync.OnceValue(func() string {
		_ = cmd.Process.Signal(os.Interrupt)
		for stdout.Scan() {
		}
		if err := await.Result(cmd.Wait); err != nil {
			t.Errorf("%v; standard error: %s", err, stderr.String())
		}
		return stderr.String()
	})
	t.Cleanup(func() { stop() })
	return stop
}

func TestLimitsAreDerivedFromMaxMemoryAndLoggedOnce(t *testing.T) {
	stop := startVerbose(t, "--max-memory", "512MiB", "--max-session-bytes", "1MiB", "--max-keys", "77", "--max-all-session-bytes=2GiB")
	log := stop()
	lines := regexp.MustCompile(`(?m)^.* msg=limits .*$`).FindAllString(log, -1)
	if len(lines) != 1 {
		t.Fatalf("%d lines about limits in\n%s", len(lines), log)
	}
	for _, want := range []string{" memory=536870912 ", " clients=819 ", " keys=77 ", " key-bytes=134217728 ", " session-bytes=1048576 ",
		" all-session-bytes=2147483648 ", " all-outgoing-bytes=67108864 ", " retain=false "} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("%q is not in %s", want, lines[0])
		}
	}
}

func TestLimitsWithoutEffectAreRefused(t *testing.T) {
	path := build(t)
	for _, test := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"--addr", "127.0.0.1:0", "--max-memory", "1MiB"}, "--max-memory 1048576 is below 33554432"},
		{[]string{"--max-memory", "512MB"}, "like 536870912, 512MiB or 2GiB"},
		{[]string{"--max-bytes", "-1"}, "want a number of bytes"},
		{[]string{"--addr", "127.0.0.1:0", "--max-subscriptions", "-1"}, "tenure: --max-subscriptions -1 is negative"},
		{[]string{"--addr", "127.0.0.1:0", "--max-clients", "-1"}, "tenure: --max-clients -1 is negative"},
		{[]string{"--addr", "127.0.0.1:0", "--packet-timeout", "-1s"}, "tenure: --packet-timeout -1s is negative"},
		{[]string{"--addr", "127.0.0.1:0", "--max-unauthenticated-per-address", "-1"}, "tenure: --max-unauthenticated-per-address -1 is negative"},
		{[]string{"--addr", "127.0.0.1:0", "--max-packet-size", "5"}, "tenure: --max-packet-size 5 is below 1024"},
		{[]string{"--max-retained", "1"}, "--max-retained limits retained messages; give --retain too"},
		{[]string{"--max-retained-bytes", "1"}, "give --retain too"},
	} {
		out, err := exec.Command(path, append([]string{"serve", "--memory"}, test.arguments...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), test.want) {
			t.Errorf("%q: %v, want %q in\n%s", test.arguments, err, test.want, out)
		}
	}
}

func TestTheLogReportsUsageAndDropsAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbuffer.Buffer // timers of virtual time are no order to the race detector
		logger := log.Logger()
		var mu sync.Mutex
		usage := server.Usage{WaitingBytes: 12345}
		dropped := uint64(0)
		ctx, cancel := context.WithCancel(t.Context())
		var task sync.WaitGroup
		task.Go(func() {
			reportUsage(ctx, logger, func() server.Usage { return usage }, func() server.Stats {
				mu.Lock()
				defer mu.Unlock()
				return server.Stats{DroppedMessages: map[server.MessageDropReason]uint64{server.MessageSessionFull: dropped, server.MessageExpired: 7}}
			})
		})
		check := func(messages, held int, what string) {
			t.Helper()
			synctest.Wait()
			if strings.Count(log.String(), "messages were dropped: session full") != messages ||
				strings.Count(log.String(), "session-bytes=12345") != held || strings.Contains(log.String(), "expired") {
				t.Errorf("%s: %s", what, log.String())
			}
		}
		time.Sleep(119 * time.Second)
		check(0, 1, "nothing was dropped")
		for range 5000 { // each millisecond
			mu.Lock()
			dropped++
			mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		check(2, 2, "5,000 were dropped")
		if !strings.Contains(log.String(), `flag="--max-session-bytes, --max-session-messages"`) {
			t.Errorf("the log does not name the flag: %s", log.String())
		}
		mu.Lock()
		dropped++
		mu.Unlock()
		cancel()
		await.Done(task.Wait)
		check(3, 2, "at the end")
	})
}

func TestEachReasonAndFlagOfDropsExists(t *testing.T) {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reasons := s.Stats().DroppedMessages
	for reason, flags := range dropFlags {
		if _, ok := reasons[reason]; !ok {
			t.Errorf("the server does not know the reason %q", reason)
		}
		for _, flag := range strings.Split(flags, ", ") {
			if serveCommand(nil).Flags().Lookup(strings.TrimPrefix(flag, "--")) == nil {
				t.Errorf("there is no flag %s", flag)
			}
		}
	}
}

func TestEachFlagOfAnOptionExists(t *testing.T) {
	commands := Program{Name: "tenure"}.Command().Commands()
	for option, flags := range optionFlags {
		name, _, _ := strings.Cut(flags, ",") // of several, the first one
		if !slices.ContainsFunc(commands, func(cmd *cobra.Command) bool { return cmd.Flags().Lookup(name) != nil }) {
			t.Errorf("%s: there is no flag --%s", option, name)
		}
	}
}

// A text of another machine reaches a log of any format without what a terminal obeys.
func TestALogInJSONHasNothingThatATerminalObeys(t *testing.T) {
	cmd := Program{Name: "tenure"}.Command()
	if err := cmd.ParseFlags([]string{"--log-format", "json"}); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	logger, _ := newLogger(cmd, &log, slog.LevelWarn)
	logger.Warn("refused", "reason", "\x1b]0;x\a\u009b2J\u202e")
	if got := log.String(); !strings.Contains(got, `\u001b]0;x\u0007\u009b2J\u202e`) || strings.ContainsAny(got, "\x1b\a\u009b\u202e") {
		t.Errorf("%q", got)
	}
}

// What completion prints becomes a part of a shell.
func TestHelpAndCompletionRefuseWhatTheyDoNotKnow(t *testing.T) {
	for _, test := range []struct {
		arguments, stdout, stderr string
	}{
		{"nope", "", `unknown command "nope" for "tenure"`},
		{"help nope", "", `unknown command "nope" for "tenure"`},
		{"help serv", "", "\nDid you mean this?\n\tserve\n"},
		{"help serve get", "", `unknown help topic "serve get"; tenure help lists the commands`},
		{"help exit-codes 2", "", `unknown help topic "exit-codes 2"`},
		{"help --nope", "", "unknown flag: --nope"},
		{"completion zhs", "", `unknown command "zhs" for "tenure completion"`},
		{"completion zsh bash", "", `unknown command "bash" for "tenure completion zsh"`},
		{"help", "Available Commands:", ""},
		{"help serve", "--addr", ""},
		{"help help", "help for any command", ""},
		{"help completion zsh", "zsh", ""},
		{"completion", "  zsh ", ""},
		{"__complete help ser", "serve\t", "Completion ended"},
	} {
		t.Run(test.arguments, func(t *testing.T) {
			want := exitUsage
			if test.stdout != "" {
				want = 0
			}
			got := tenure(t, "", nil, strings.Fields(test.arguments)...)
			if got.code != want || !strings.Contains(got.stdout, test.stdout) || !strings.Contains(got.stderr, test.stderr) {
				t.Errorf("%+v, want exit code %d, %q and %q", got, want, test.stdout, test.stderr)
			}
			if test.stdout == "" && got.stdout != "" || test.stderr == "" && got.stderr != "" {
				t.Errorf("it said too much: %+v", got)
			}
		})
	}
}
