package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/doctor"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/transport"
)

// startMemory runs a server in memory until the test ends, and returns its address.
func startMemory(t *testing.T, flags ...string) (address string) {
	t.Helper()
	address, _ = launch(t, exec.Command(build(t), append([]string{"serve", "--memory", "--addr", "127.0.0.1:0"}, flags...)...), "listening on ")
	return address
}

// dialTest returns a client until the test ends.
func dialTest(t *testing.T, address, id string) *transport.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, address, transport.Options{ClientID: id})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// An outcome is what a command did.
type outcome struct {
	code           int
	stdout, stderr string
}

// tenure runs the command with standard input until it ends.
func tenure(t *testing.T, stdin string, environment []string, arguments ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, build(t), arguments...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), environment...)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

const versionPattern = `\d+:\d+:\S+`

func TestWrongUsageEndsWithTheCodeForItAndNamesTheCure(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"no key", []string{"get"}, "give the key: tenure get KEY"},
		{"an empty key", []string{"set", "", "v"}, "an argument is empty"},
		{"no value", []string{"set", "k"}, "give the value, which may be empty; - for standard input: tenure set KEY VALUE"},
		{"two keys", []string{"get", "a", "b"}, "one argument too many"},
		{"two conditions", []string{"set", "k", "v", "--nx", "--nex"}, "give --nx or --nex, not both"},
		{"two forms", []string{"get", "k", "--hex", "--json"}, "give --hex or --json, not both"},
		{"two forms of a watch", []string{"watch", "k", "--hex", "--json"}, "give --hex or --json, not both"},
		{"a short life", []string{"set", "k", "v", "--px", "1us"}, "whole milliseconds"},
		{"the token of an unset variable", []string{"set", "k", "v", "--fence", ""}, "--fence is empty"},
		{"the same in vdel", []string{"vdel", "k", "v", "--fence", ""}, "--fence is empty"},
		{"the same in del", []string{"del", "k", "--fence", ""}, "--fence is empty"},
		{"a token that is none", []string{"set", "k", "v", "--fence", "7"}, `--fence "7" is no token; one looks like 1795363097601:1:StateStore, as in $TENURE_TOKEN`},
		{"half a byte", []string{"set", "k", "abc", "--hex"}, "--hex: VALUE: "},
		{"half a byte of a key", []string{"get", "abc", "--hex-key"}, "--hex-key: KEY: "},
		{"no time", []string{"get", "k", "--timeout", "0s"}, "--timeout 0s is not positive"},
		{"an address that is none", []string{"get", "k", "--broker", "http://localhost"}, "like mqtt://host:1883"},
		{"credentials in the address", []string{"get", "k", "--broker", "mqtt://user:secret-word@localhost"}, "credentials are options"},
		{"a client id with a slash", []string{"get", "k", "--client-id", "a/b"}, `--client-id "a/b" contains a character`},
		{"a certificate without a key", []string{"get", "k", "--broker", "mqtts://localhost", "--tls-cert", "c.pem"}, "set both or neither"},
		{"TLS for an address without", []string{"get", "k", "--tls-ca", "ca.pem"}, "write mqtts or wss"},
		{"a cost that no server takes", []string{"password", "--cost", "99"}, "--cost 99: choose 4 to 16"},
		{"data in a file", []string{"serve", "--addr", "127.0.0.1:0", "--data", "clients_test.go"}, "not a directory"},
		{"a key of the doctor below nothing", []string{"doctor", "--prefix", "/"}, "--prefix is empty"},
		{"a release without --force", []string{"release", "lease"}, "give --force"},
		{"a release that cannot ask", []string{"release", "lease", "--force"}, "give --yes"},
		{"a lease that one lost reply ends", []string{"run", "l", "--ttl", "2s", "--grace", "1s", "--", "true"}, "make --ttl longer"},
		{"a negative duration", []string{"run", "l", "--grace", "-1s", "--", "true"}, "--grace -1s is negative"},
		{"a negative rank", []string{"run", "l", "--rank", "-1", "--", "true"}, "--rank -1 is negative; the best rank is 0"},
		{"a negative delay", []string{"run", "l", "--fail-back", "-1s", "--", "true"}, "--fail-back -1s is negative; 0 means never"},
		{"a negative pause", []string{"run", "l", "--health-every", "-1s", "--", "true"}, "--health-every -1s is negative; 0 means a third of --ttl"},
		{"an argument that nothing takes", []string{"doctor", "2s"}, "doctor takes no arguments"},
		{"a level that does not exist", []string{"get", "k", "--log-level", "loud"}, "choose debug, info, warn or error"},
		{"a format that does not exist", []string{"get", "k", "--log-format", "xml"}, "choose text or json"},
		{"a file that is not there", []string{"get", "k", "--config", "no.yaml"}, "--config: open no.yaml"},
		{"authorities that are not there", []string{"get", "k", "--broker", "mqtts://localhost", "--tls-ca", "no.pem"}, "--tls-ca: open no.pem"},
		{"a duration without a unit", []string{"get", "k", "--timeout", "5"}, `--timeout: want a duration such as 5s, not "5"`},
		{"the same where a value may begin with a dash", []string{"set", "k", "v", "--px", "5"}, `--px: want a duration such as 5s, not "5"`},
		{"a value that looks like a flag", []string{"set", "k", "-5"}, "a value that begins with a dash goes after --: tenure set KEY -- VALUE"},
		{"the flags of a child", []string{"run", "web", "ls", "-la"}, "a flag of the child goes after --: tenure run NAME -- COMMAND"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := tenure(t, "", nil, test.arguments...)
			if got.code != exitUsage || !strings.Contains(got.stderr, test.want) || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%+v, want exit code 2 and a line with %q", got, test.want)
			}
			if got.stdout != "" || strings.Contains(got.stderr, "secret-word") {
				t.Errorf("it said too much: %+v", got)
			}
		})
	}
}

func TestATTLOfFourTimesTheGraceCarriesIt(t *testing.T) {
	for grace := time.Millisecond; grace < time.Hour; grace = grace*5/4 + time.Microsecond {
		flags := holdFlags{ttl: max(4*grace, 500*time.Millisecond).Round(time.Millisecond), grace: grace}
		if _, err := flags.leaseOptions(slog.Default()); err != nil {
			t.Errorf("--grace %v: %v", grace, err)
		}
	}
}

func TestTheExitCodeSaysWhyThereIsNoAnswer(t *testing.T) {
	t.Parallel()
	silent := listen(t, func(net.Conn) {})
	garbage := listen(t, func(conn net.Conn) { _, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n") })
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, content string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	users := file("users.yaml", fmt.Sprintf("users:\n  - name: alice\n    password: %s\n    clients: [\"alice-*\"]\nrules:\n  - users: [alice]\n    read: [open]\n", hash))
	right, wrong := file("right", "right\n"), file("wrong", "wrong")
	open, guarded := startMemory(t), startMemory(t, "--auth", users)
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		want      string
	}{
		{"nothing listens", []string{"--broker", "mqtt://127.0.0.1:1", "--timeout", "1h"}, exitUnreachable, "is `tenure serve` running there"},
		{"nothing listens at two addresses", []string{"--broker", "mqtt://127.0.0.1:1,mqtt://127.0.0.1:2", "--timeout", "1h"}, exitUnreachable, "connection refused"},
		{"nothing listens at one of two addresses", []string{"--broker", "mqtt://127.0.0.1:1," + open}, exitMissing, "does not exist"},
		{"no scheme", []string{"--broker", strings.TrimPrefix(open, "mqtt://")}, exitMissing, "does not exist"},
		{"a program that is silent", []string{"--broker", "mqtt://" + silent, "--timeout", "300ms"}, exitUnreachable, silent},
		{"a program that is no broker", []string{"--broker", "mqtt://" + garbage, "--timeout", "300ms"}, exitUnreachable, garbage},
		{"a port without TLS", []string{"--broker", strings.Replace(open, "mqtt", "mqtts", 1), "--timeout", "300ms"}, exitUnreachable, "is this a port without TLS?"},
		{"a host that does not exist", []string{"--broker", "mqtt://host.invalid", "--timeout", "1h"}, exitUnreachable, "host.invalid"},
		{"no password", []string{"--broker", guarded}, exitRefused, "check the username, the password"},
		{"a wrong password", []string{"--broker", guarded, "--username", "alice", "--password-file", wrong, "--client-id", "alice-1"}, exitRefused, "check the username, the password"},
		{"no right to the key", []string{"--broker", guarded, "--username", "alice", "--password-file", right, "--client-id", "alice-1"}, exitRefused, "not authorized"},
		{"a file that is not there", []string{"--broker", guarded, "--username", "alice", "--password-file", filepath.Join(dir, "no")}, exitUsage, "--password-file: open"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := tenure(t, "", nil, append([]string{"get", "k"}, test.arguments...)...)
			lines := strings.Split(strings.TrimSpace(got.stderr), "\n")
			last := lines[len(lines)-1]
			if got.code != test.code || !strings.HasPrefix(last, "tenure: ") || !strings.Contains(last, test.want) || got.stdout != "" {
				t.Errorf("%+v, want exit code %d and %q in the last line", got, test.code, test.want)
			}
		})
	}
}

// As the shipped configuration of mosquitto does: replies to the id that a client chose do not reach it.
func TestAMissingReplyNamesTheClientIDThatABrokerMayWant(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(rules, []byte("user store\ntopic readwrite #\n\npattern write statestore/#\npattern readwrite clients/%c/#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := "mqtt://" + mosquitto.Start(t, "use_username_as_clientid true\nacl_file "+rules+"\n").Address
	launch(t, exec.Command(build(t), "attach", "--memory", "--username", "store", address), "attached to ")
	get := []string{"get", "k", "--broker", address, "--username", "gateway-a"}
	if got := tenure(t, "", nil, append(get, "--timeout", "2s")...); got.code != exitUnreachable || !strings.Contains(got.stderr, "give --client-id gateway-a") {
		t.Errorf("another id: %+v", got)
	}
	if got := tenure(t, "", nil, append(get, "--client-id", "gateway-a")...); got.code != exitMissing {
		t.Errorf("the id that the broker gives: %+v", got)
	}
}

func TestABrokerWithoutAStoreIsUnreachable(t *testing.T) {
	t.Parallel()
	address := "mqtt://" + mosquitto.Start(t, "").Address
	for _, command := range []string{"get", "watch", "holder"} {
		got := tenure(t, "", nil, command, "k", "--broker", address, "--timeout", "1s")
		if got.code != exitUnreachable || !strings.Contains(got.stderr, transport.ErrNoStore.Error()) {
			t.Errorf("%s: %+v", command, got)
		}
	}
	got := tenure(t, "", nil, "lock", "--broker", address, "--wait", "1s", "k", "--", "true")
	if got.code != exitUnreachable || !strings.Contains(got.stderr, "--wait 1s") {
		t.Errorf("lock --wait: %+v", got)
	}
}

func TestAWaitThatEndsWhileTheStoreRefusesHasTheCodeOfARefusal(t *testing.T) {
	t.Parallel()
	address := startMemory(t, "--max-keys", "1")
	lock := []string{"lock", "--broker", address, "--wait", "1s", "k", "--", "true"}
	if got := tenure(t, "", nil, "set", "--broker", address, "k", "another-holder"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := tenure(t, "", nil, lock...); got.code != exitTimeout {
		t.Errorf("another holder has the lease: %+v", got)
	}
	lock[len(lock)-3] = "another"
	if got := tenure(t, "", nil, lock...); got.code != exitRefused || !strings.Contains(got.stderr, transport.ErrQuotaExceeded.Error()) {
		t.Errorf("the store has no room: %+v", got)
	}
}

// listen accepts connections until the test ends, and returns the address.
func listen(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var open []net.Conn
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open = append(open, conn)
			serve(conn)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		await.Receive(ended)
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	return listener.Addr().String()
}

// A running is a command that goes on.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of standard output
	stderr *logbuffer.Buffer
}

// begin starts a command, which is killed when the test ends.
func begin(t *testing.T, arguments ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: exec.Command(build(t), arguments...), lines: make(chan string, 100), stderr: new(logbuffer.Buffer)}
	r.cmd.Stderr = r.stderr
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			r.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		for range r.lines { // until the pipe is closed
		}
		_ = await.Result(r.cmd.Wait)
	})
	return r
}

// mustPrint waits for a line of standard output that matches a regular expression.
func (r *running) mustPrint(want string) {
	r.t.Helper()
	line, open := await.Next(r.lines)
	if !open || !regexp.MustCompile(`\A`+want+`\z`).MatchString(line) {
		r.t.Fatalf("printed %q (ended: %t), want %q; standard error:\n%s", line, !open, want, r.stderr)
	}
}

// shellCode returns the code that a shell shows for a process that ended: SIGINT ends a command by
// itself, so that a shell ends a loop around it.
func shellCode(cmd *exec.Cmd) int {
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// mustEndAfter sends a signal and waits for the end with this code.
func (r *running) mustEndAfter(signal os.Signal, code int) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(signal); err != nil {
		r.t.Fatal(err)
	}
	for line, open := await.Next(r.lines); open; line, open = await.Next(r.lines) {
		r.t.Errorf("after %v it printed %q", signal, line)
	}
	_ = await.Result(r.cmd.Wait)
	if got := shellCode(r.cmd); got != code {
		r.t.Errorf("after %v: exit code %d, want %d; standard error:\n%s", signal, got, code, r.stderr)
	}
}

const moment = `20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\d\S+`

func TestASignalBeforeTheAnswerHasACodeOfItsOwn(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("SKIPPED: processes of Windows get no signals")
	}
	connected := make(chan struct{}, 10)
	silent := listen(t, func(net.Conn) { connected <- struct{}{} })
	for _, test := range []struct {
		signal os.Signal
		code   int
		want   string
	}{{os.Interrupt, 130, "interrupted\n"}, {syscall.SIGTERM, 143, "terminated\n"}} {
		for _, arguments := range [][]string{{"get", "k"}, {"watch", "k"}, {"release", "k", "--force", "--yes"}} {
			r := begin(t, append(arguments, "--broker", "mqtt://"+silent)...)
			await.Receive(connected)
			r.mustEndAfter(test.signal, test.code)
			if text := r.stderr.String(); !strings.HasSuffix(text, test.want) {
				t.Errorf("%q said %q", arguments, text)
			}
		}
	}
	stdin, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer writer.Close()
	waits := exec.Command(build(t), "set", "k", "-")
	waits.Stdin = stdin
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = waits.Process.Kill() })
	// The pipe holds less than this, so when it is written the process has begun to read.
	if _, err := writer.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	_ = waits.Process.Signal(os.Interrupt)
	_ = await.Result(waits.Wait)
	if code := shellCode(waits); code != 130 {
		t.Errorf("while it read standard input: exit code %d", code)
	}
}

func TestEachErrorHasItsExitCode(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("any"), exitFailure},
		{usage(errors.New("any")), exitUsage},
		{fmt.Errorf("wrapped: %w", exitWith(7, nil)), 7},
		{transport.ErrConditionFailed, exitMissing},
		{fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, transport.ErrNoStore), exitUnreachable},
		{fmt.Errorf("%w: %w", transport.ErrNotSent, context.DeadlineExceeded), exitUnreachable},
		{fmt.Errorf("%w: %w", transport.ErrNotSent, &transport.ConnectionError{Code: 0x87}), exitRefused},
		{&transport.ConnectionError{Code: 0x86}, exitRefused},     // bad user name or password
		{&transport.ConnectionError{Code: 0x87}, exitRefused},     // not authorized
		{&transport.ConnectionError{Code: 0x8A}, exitRefused},     // banned
		{&transport.ConnectionError{Code: 0x8C}, exitRefused},     // bad authentication method
		{&transport.ConnectionError{Code: 0x97}, exitRefused},     // quota exceeded
		{&transport.ConnectionError{Code: 0x89}, exitUnreachable}, // busy
		{&transport.ConnectionError{Code: 0x84}, exitUnreachable}, // not MQTT 5
		{&transport.RefusedError{Text: "not authorized"}, exitRefused},
		{&transport.RejectedError{Code: 0x87}, exitRefused},
		{&transport.RejectedError{Code: 503}, exitUnreachable},
		{fmt.Errorf("%w: %w", &interruptedError{os.Interrupt}, transport.ErrNotSent), 130},
		{&interruptedError{syscall.SIGTERM}, 143},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%v: %d, want %d", test.err, got, test.want)
		}
	}
	help := tenure(t, "", nil, "help", "exit-codes")
	for _, code := range []int{exitFailure, exitUsage, exitHeld, exitTimeout, exitLost, exitUnreachable, exitRefused, exitMissing} {
		if !strings.Contains(help.stdout, fmt.Sprintf("\n%5d  ", code)) {
			t.Errorf("code %d is not in\n%s", code, help.stdout)
		}
	}
}

func TestTheProgramSaysItsVersionAndCompletesCommands(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenure")
	const at = "github.com/tenurelock/tenure/cmd/tenure/command."
	out, err := exec.Command("go", "build", "-ldflags", "-X "+at+"version=v1.2.3 -X "+at+"commit=abc", "-o", path, "..").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if out, err = exec.Command(path, "--version").CombinedOutput(); err != nil || string(out) != fmt.Sprintf("tenure version v1.2.3 (commit abc, %s, %s/%s)\n", runtime.Version(), runtime.GOOS, runtime.GOARCH) {
		t.Errorf("%q, %v", out, err)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := tenure(t, "", []string{"TENURE_CONFIG=no.yaml"}, "completion", shell); got.code != 0 || !strings.Contains(got.stdout, "tenure") {
			t.Errorf("%s: exit code %d, %s", shell, got.code, got.stderr)
		}
	}
	if got := tenure(t, "", nil, "__complete", "rel"); got.code != 0 || !strings.Contains(got.stdout, "release") {
		t.Errorf("%+v", got)
	}
}

// fullDisk fails as a file on a disk without room does.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

func TestAnOutputThatCannotBeWrittenIsNoWrongUsage(t *testing.T) {
	for _, arguments := range [][]string{{"--version"}, {"completion", "bash"}} {
		root := Program{Name: "tenure"}.Command()
		root.SetOut(fullDisk{})
		root.SetErr(io.Discard)
		root.SetArgs(arguments)
		if code, _, err := (Program{}).execute(t.Context(), root); code != exitFailure || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: exit code %d, %v", arguments, code, err)
		}
	}
}

func TestACommandThatASignalEndsBeforeItIsDoneHasTheCodeOfTheSignal(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&interruptedError{syscall.SIGTERM})
	root := &cobra.Command{Use: "tenure", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(&cobra.Command{Use: "check", RunE: func(cmd *cobra.Command, _ []string) error {
		return orInterrupted(cmd, cmd.Context().Err(), "nothing was changed")
	}})
	root.SetArgs([]string{"check"})
	if code, text, _ := (Program{}).execute(ctx, root); code != 143 || text != "interrupted; nothing was changed" {
		t.Errorf("exit code %d, %q", code, text)
	}
}

// The file for --config as docs/command.md and the help show it.
func TestAServerStartsWithTheFileOfTheDocument(t *testing.T) {
	document, err := os.ReadFile("../../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimRight(settings.Example, "\n"), "  ")
	if !strings.Contains(string(document), shown) {
		t.Errorf("the document does not show\n%s", shown)
	}
	file := filepath.Join(t.TempDir(), "tenure.yaml")
	if err := os.WriteFile(file, []byte(settings.Example), 0o600); err != nil {
		t.Fatal(err)
	}
	// Another program may have the port of the file.
	launch(t, exec.Command(build(t), "serve", "--memory", "--addr", "localhost:0", "--config", file), "listening on mqtt://")
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
	if err := os.Symlink(build(t), filepath.Join(dir, "tenure")); err != nil {
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

// All JSON of the program has the convention of package output. The keys of commands are written
// down here, because docs/operate.md promises them to scripts.
func TestTheKeysOfAllReportsHaveOneConvention(t *testing.T) {
	for _, test := range []struct {
		command string
		report  any
		keys    string // empty: only the convention is tested
	}{
		{"get, set, del, vdel, watch", entryReport{}, "time key keyBase64 exists value valueBase64 version deleted missed"},
		{"holder, release", holderReport{}, "time name nameBase64 held holder holderBase64 value valueBase64 version"},
		{"switchover", switchoverReport{}, "time name nameBase64 held holder holderBase64 value valueBase64 version from fromBase64 gapMillis"},
		{"doctor", doctor.Report{}, "address clientId steps steps.name steps.broker steps.status steps.found steps.cure steps.kind identity clockOffsetMillis " +
			"roundTrips roundTrips.count roundTrips.minMillis roundTrips.medianMillis roundTrips.maxMillis certificateExpires"},
		{"password", passwordReport{}, "hash"},
		{"health", healthReport{}, "healthy answer"},
		{"check, backup, restore", journal.Report{}, "file online bytes liveBytes records keys fences replies changes identity bound warnings clean"},
		{"/api/state", admin.State{}, ""},
	} {
		t.Run(test.command, func(t *testing.T) {
			var keys []string
			collectKeys(t, reflect.TypeOf(test.report), "", &keys)
			if test.keys != "" && strings.Join(keys, " ") != test.keys {
				t.Errorf("the keys are\n%s\nand were\n%s", strings.Join(keys, " "), test.keys)
			}
			if test.keys == "" && len(keys) < 5 {
				t.Errorf("it has only the keys %q", keys)
			}
		})
	}
}

// camelCase matches the keys of all JSON.
var camelCase = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)

// collectKeys appends the keys of a type in JSON, and tests each.
func collectKeys(t *testing.T, of reflect.Type, prefix string, keys *[]string) {
	t.Helper()
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of == reflect.TypeFor[time.Time]() || of == reflect.TypeFor[output.Millis]() {
		return
	}
	for field := range of.NumField() {
		f := of.Field(field)
		if f.Anonymous {
			collectKeys(t, f.Type, prefix, keys)
			continue
		}
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := f.Type
		for kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		switch {
		case !f.IsExported() || key == "-":
			continue
		case !camelCase.MatchString(key):
			t.Errorf("%v.%s is %q in JSON, want camelCase", of, f.Name, key)
		case kind == reflect.TypeFor[time.Duration]():
			t.Errorf("%v.%s would be nanoseconds in JSON: make it an output.Millis", of, f.Name)
		case kind == reflect.TypeFor[output.Millis]() && !strings.HasSuffix(key, "Millis"):
			t.Errorf("%v.%s is %q in JSON, want a name that ends with Millis", of, f.Name, key)
		case kind == reflect.TypeFor[[]byte]() && !strings.HasSuffix(key, "Base64"):
			t.Errorf("%v.%s is %q in JSON, want a name that ends with Base64", of, f.Name, key)
		}
		*keys = append(*keys, prefix+key)
		collectKeys(t, f.Type, prefix+key+".", keys)
	}
}

func TestTheDocumentNamesEachCommand(t *testing.T) {
	document, err := os.ReadFile("../../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range (Program{Name: "tenure"}).Command().Commands() {
		if !regexp.MustCompile(`\b` + cmd.Name() + `\b`).Match(document) {
			t.Errorf("docs/command.md does not name %s", cmd.Name())
		}
	}
}
