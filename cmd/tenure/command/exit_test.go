package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/transport"
)

func TestTheExitCodeSaysWhyThereIsNoAnswer(t *testing.T) {
	t.Parallel()
	silent := listen(t, func(net.Conn) {})
	garbage := listen(t, func(conn net.Conn) { _, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n") })
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	users := write(t, "users.yaml", fmt.Sprintf("users:\n  - name: alice\n    password: %s\n    clients: [\"alice-*\"]\nrules:\n"+
		"  - users: [alice]\n    read: [open]\n", hash))
	open, guarded, full := startMemory(t), startMemory(t, "--auth", users), startMemory(t, "--max-keys", "1")
	mustSet(t, dialTest(t, full, "writer"), "taken", "another-holder")
	withoutStore := "mqtt://" + mosquitto.Start(t, "").Address
	alice := guarded + " --client-id alice-1 --username alice --password-file "
	for _, test := range []struct {
		name, line string
		code       int
		want       string
	}{
		{"nothing listens", "get k --broker mqtt://127.0.0.1:1 --timeout 1h", exitUnreachable, "is `tenure serve` running there"},
		{"nothing listens at one of two addresses", "get k --broker mqtt://127.0.0.1:1," + open, exitMissing, "does not exist"},
		{"a host that does not exist", "get k --broker mqtt://host.invalid --timeout 1h", exitUnreachable, "host.invalid"},
		{"a program that is silent", "get k --timeout 300ms --broker mqtt://" + silent, exitUnreachable, "no MQTT answer from " + silent},
		{"a program that is no broker", "get k --timeout 300ms --broker mqtt://" + garbage, exitUnreachable, garbage},
		{"no password", "get k --broker " + guarded, exitRefused, "check the username, the password"},
		{"a wrong password", "get k --broker " + alice + write(t, "wrong", "wrong"), exitRefused, "check the username, the password"},
		{"no right to the key", "get k --broker " + alice + write(t, "right", "right\n"), exitRefused, "not authorized"},
		{"no store", "get k --timeout 1s --broker " + withoutStore, exitUnreachable, transport.ErrNoStore.Error()},
		{"no store for a holder", "holder k --timeout 1s --broker " + withoutStore, exitUnreachable, transport.ErrNoStore.Error()},
		{"no store for a lock", "lock --wait 1s --broker " + withoutStore + " k -- true", exitUnreachable, "--wait 1s"},
		{"no broker for a lock", "lock --wait 300ms --broker mqtt://" + silent + " k -- true", exitUnreachable, "--wait 300ms"},
		{"a lock that another holder has", "lock --wait 1s --broker " + full + " taken -- true", exitTimeout, "--wait 1s"},
		{"a store without space for a lock", "lock --wait 1s --broker " + full + " k -- true", exitRefused, transport.ErrQuotaExceeded.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			arguments := strings.Fields(test.line)
			got := outcome{}
			if arguments[0] == "lock" {
				got = tenure(t, "", nil, arguments...)
			} else {
				got = invoke(t, "", arguments...)
			}
			lines := strings.Split(strings.TrimSpace(got.stderr), "\n")
			last := lines[len(lines)-1]
			if got.code != test.code || !strings.HasPrefix(last, "tenure: ") || !strings.Contains(last, test.want) || got.stdout != "" {
				t.Errorf("%+v, want exit code %d and %q in the last line", got, test.code, test.want)
			}
		})
	}
}

func TestASignalBeforeTheAnswerHasACodeOfItsOwn(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("SKIPPED: processes of Windows get no signals")
	}
	connected := make(chan struct{}, 10)
	silent := listen(t, func(net.Conn) { connected <- struct{}{} })
	for command, test := range map[string]struct {
		signal os.Signal
		code   int
		want   string
	}{"get": {os.Interrupt, 130, "interrupt"}, "get --watch": {syscall.SIGTERM, 143, "terminated"}} {
		r := begin(t, append(strings.Fields(command), "k", "--broker", "mqtt://"+silent)...)
		await.Receive(connected)
		r.mustEndAfter(test.signal, test.code)
		if text := r.stderr.String(); !strings.HasSuffix(text, test.want+"\n") {
			t.Errorf("%s said %q", command, text)
		}
	}
	stdin, writer := io.Pipe()
	defer writer.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&interruptedError{signal: syscall.SIGINT})
	cmd := setCommand()
	cmd.SetIn(stdin)
	cmd.SetContext(ctx)
	if _, err := readValue(cmd, "-"); exitCode(err) != 130 {
		t.Errorf("while it reads standard input: %v", err)
	}
}

func TestEachErrorHasItsExitCode(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{Usage(errors.New("any")), exitUsage},
		{fmt.Errorf("wrapped: %w", exitWith(7, nil)), 7},
		{transport.ErrConditionFailed, exitMissing},
		{election.ErrNoLeader, exitMissing},
		{election.ErrOtherLeads, exitHeld},
		{journal.ErrNoData, exitUsage},
		{fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, transport.ErrNoStore), exitUnreachable},
		{fmt.Errorf("%w: %w", transport.ErrNotSent, &transport.ConnectionError{Code: 0x87}), exitRefused},
		{&transport.ConnectionError{Code: 0x86}, exitRefused},     // bad user name or password
		{&transport.ConnectionError{Code: 0x97}, exitRefused},     // quota exceeded
		{&transport.ConnectionError{Code: 0x89}, exitUnreachable}, // busy
		{&transport.RefusedError{Text: "not authorized"}, exitRefused},
		{&transport.RejectedError{Code: 503}, exitUnreachable},
		{&timeoutError{flag: "timeout"}, exitUnreachable},
		{&timeoutError{flag: "wait"}, exitTimeout},
		{fmt.Errorf("%w: %w", &interruptedError{signal: syscall.SIGINT}, transport.ErrNotSent), 130},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("%v: %d, want %d", test.err, got, test.want)
		}
	}
	help := invoke(t, "", "help", "exit-codes")
	for code := range exitMissing + 1 {
		if named := strings.Contains(help.stdout, fmt.Sprintf("\n%5d  ", code)); named != (code <= exitUsage || code >= exitHeld) {
			t.Errorf("code %d: %v in\n%s", code, named, help.stdout)
		}
	}
}

func TestACommandThatASignalEndsBeforeItIsDoneHasTheCodeOfTheSignal(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&interruptedError{signal: syscall.SIGTERM})
	dir := t.TempDir() + "/new"
	if got := invokeWith(t, ctx, "", "backup", emptyData(t), dir); got.code != 143 || !strings.Contains(got.stderr, "terminated") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it left a backup")
	}
}

// A broker or a store may have chosen parts of an error.
func TestAnErrorIsOneLineThatATerminalShows(t *testing.T) {
	const forged = "a\x1b]0;b\x07\ntenure: forged\tx"
	err := errors.Join(&transport.RefusedError{Text: forged}, errors.New(forged))
	const want = `refused by the store: a ]0;b  tenure: forged x; a\x1b]0;b\x07; tenure: forged x`
	if got := oneLine(err.Error()); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
