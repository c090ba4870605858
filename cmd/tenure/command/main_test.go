package command

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// build returns the path of the command, which is built once for all tests.
func build(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		built.path = filepath.Join(built.dir, "tenure")
		if runtime.GOOS == "windows" {
			built.path += ".exe"
		}
		built.out, built.err = exec.Command("go", "build", "-o", built.path, "..").CombinedOutput()
	})
	if built.err != nil {
		t.Fatalf("go build: %v\n%s", built.err, built.out)
	}
	return built.path
}

var built struct {
	dir  string // of TestMain
	once sync.Once
	path string
	out  []byte
	err  error
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
		{"a dialect that does not exist", []string{"serve", "--dialect", "klingon"}, "choose deployed or documented"},
		{"a negative hold-off", []string{"serve", "--hold-off", "-1s"}, "0 means none"},
		{"a negative limit", []string{"serve", "--memory", "--addr", "127.0.0.1:0", "--max-keys", "-1"}, "0 means no limit"},
		{"an address that others can reach", []string{"serve", "--memory", "--addr", "0.0.0.0:0"}, "or say --insecure"},
		{"a certificate without its key", []string{"serve", "--tls-cert", "server.pem"}, "needs both --tls-cert and --tls-key"},
		{"lock prefixes without --strict", []string{"serve", "--addr", "127.0.0.1:0", "--lock-prefix", "locks/"}, "--lock-prefix needs --strict"},
		{"an unknown flag", []string{"serve", "--adr", "x"}, "unknown flag: --adr"},
		{"an unknown command", []string{"sreve"}, `unknown command "sreve"`},
		{"a URL with credentials", []string{"serve", "mqtt://store:secret-word@localhost"}, "tenure attach URL"},
		{"the flag for what attach does", []string{"serve", "--attach", "mqtt://localhost"}, "unknown flag: --attach; attach is a command of its own: tenure attach URL"},
		{"a flag that moved to attach", []string{"serve", "--attach-ca", "ca.pem"}, "tenure attach URL has it, as --tls-ca"},
		{"a flag that was renamed", []string{"serve", "--remembered", "9"}, "it is --dedup-window now"},
		{"a flag of attach", []string{"serve", "--password-file", "secret"}, "it belongs to tenure attach URL"},
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
		{"a certificate that is not there", []string{"serve", "--tls-cert", "no.pem", "--tls-key", "no.key"}, "no.pem"},
		{"users that are not there", []string{"serve", "--auth", "no.yaml"}, "no.yaml"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if out := mustExit(t, exitFailure, path, test.arguments...); !strings.Contains(out, test.want) {
				t.Errorf("%q is not in\n%s", test.want, out)
			}
		})
	}
}

// mustExit runs a command that ends by itself with this code, and returns what it printed.
func mustExit(t *testing.T, code int, path string, arguments ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, arguments...)
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
			"--password-checks", "--max-unauthenticated", "--max-unauthenticated-per-address", "--dedup-window", "SIGHUP", "tenure attach"},
		"attach": {"--username", "--password-file", "--tls-ca", "--tls-cert", "--tls-key", "--probe-messages", "--max-clients",
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
		"memory", "strict", "tls-cert", "tls-key", "tls-key-password-file"}
	if !slices.Equal(shared, want) {
		t.Errorf("shared: %q, want %q", shared, want)
	}
}
