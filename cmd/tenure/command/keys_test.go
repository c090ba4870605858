package command

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

func TestCommandsForKeysSayWhatTheStoreHolds(t *testing.T) {
	t.Parallel()
	broker := "TENURE_BROKER=" + startMemory(t)
	for _, step := range []struct {
		stdin          string
		arguments      []string
		code           int
		stdout, stderr string // regular expressions for all of it
	}{
		{"", []string{"set", "k", "v"}, 0, versionPattern + "\n", ""},
		{"", []string{"get", "k"}, 0, "v", ""},
		{"", []string{"get", "k", "--hex"}, 0, "76\n", ""},
		{"", []string{"get", "k", "--json"}, 0, `{"key":"k","exists":true,"value":"v","version":"` + versionPattern + `"}` + "\n", ""},
		{"", []string{"get", "--hex-key", "6b"}, 0, "v", ""},
		{"", []string{"set", "k", "w", "--json"}, 0, `{"key":"k","version":"` + versionPattern + `"}` + "\n", ""},
		{"", []string{"set", "k", "x", "--nx"}, exitMissing, "", `tenure: SET "k": the condition was not met \(the key has version ` + versionPattern + `\)` + "\n"},
		{"", []string{"set", "k", "x", "--nex"}, exitMissing, "", "(?s).*the condition was not met.*"},
		{"", []string{"set", "k", "w", "--nex"}, 0, versionPattern + "\n", ""},
		{"\n00 ff\n10", []string{"set", "b", "-", "--hex"}, 0, versionPattern + "\n", ""},
		{"", []string{"get", "b"}, 0, "\x00\xef\xbf\xbd\x10", ""}, // as regexp sees the byte 0xff
		{"", []string{"get", "b", "--json"}, 0, `{"key":"b","exists":true,"valueBase64":"AP8Q","version":"` + versionPattern + `"}` + "\n", ""},
		{"", []string{"set", "--hex-key", "ff", ""}, 0, versionPattern + "\n", ""},
		{"", []string{"get", "--hex-key", "ff", "--json"}, 0, `{"keyBase64":"/w==","exists":true,"value":"","version":"` + versionPattern + `"}` + "\n", ""},
		{"", []string{"vdel", "k", "other"}, exitMissing, "", `tenure: VDEL "k": the condition was not met` + "\n"},
		{"w", []string{"vdel", "k", "-"}, 0, "", ""},
		{"", []string{"vdel", "k", "w"}, exitMissing, "", `tenure: the key "k" does not exist` + "\n"},
		{"", []string{"get", "k"}, exitMissing, "", `tenure: the key "k" does not exist` + "\n"},
		{"", []string{"get", "k", "--json"}, exitMissing, `{"key":"k","exists":false}` + "\n", ""},
		{"", []string{"del", "b"}, 0, "", ""},
		{"", []string{"del", "b"}, exitMissing, "", `tenure: the key "b" does not exist` + "\n"},
		{"", []string{"del", "b", "--json"}, exitMissing, `{"key":"b","deleted":false}` + "\n", ""},
		{"", []string{"set", "lease", "gateway-a:nonce", "--px", "1h", "--nx", "--persist"}, 0, versionPattern + "\n", ""},
		{"", []string{"holder", "lease"}, 0, "gateway-a\n", ""},
		{"", []string{"holder", "lease"}, 0, "gateway-a\n", ""},
		{"", []string{"holder", "lease", "--json"}, 0, `{"name":"lease","held":true,"holder":"gateway-a","value":"gateway-a:nonce","version":"` + versionPattern + `"}` + "\n", ""},
		{"", []string{"release", "lease", "--force", "--yes"}, 0, "released lease, which gateway-a held\n",
			`(?s)"lease" is held by "gateway-a" \(value "gateway-a:nonce", last renewed at 20.*the lease was deleted from the store.*`},
		{"", []string{"release", "lease", "--force", "--yes"}, exitMissing, "", `tenure: no process holds "lease"` + "\n"},
		{"", []string{"holder", "lease"}, exitMissing, "", `tenure: no process holds "lease"` + "\n"},
		{"a\xff:1", []string{"set", "odd", "-"}, 0, versionPattern + "\n", ""},
		{"", []string{"holder", "odd", "--json"}, 0, `{"name":"odd","held":true,"holderBase64":"Yf8=","valueBase64":"Yf86MQ==","version":"` + versionPattern + `"}` + "\n", ""},
		{"", []string{"holder", "lease", "--json"}, exitMissing, `{"name":"lease","held":false}` + "\n", ""},
	} {
		got := tenure(t, step.stdin, []string{broker}, step.arguments...)
		for _, part := range []struct{ name, got, want string }{{"standard output", got.stdout, step.stdout}, {"standard error", got.stderr, step.stderr}} {
			if !regexp.MustCompile(`\A` + part.want + `\z`).MatchString(strings.ToValidUTF8(part.got, "\ufffd")) {
				t.Errorf("tenure %q: %s is %q, want %q", step.arguments, part.name, part.got, part.want)
			}
		}
		if got.code != step.code {
			t.Errorf("tenure %q: exit code %d, want %d", step.arguments, got.code, step.code)
		}
	}
}

// Any client may set a key to any holder, and a store may send any text. Neither may command the
// terminal of an operator, or write a line that another command seems to have written.
func TestWhatOthersChoseIsPrintedAndNotObeyed(t *testing.T) {
	broker := []string{"TENURE_BROKER=" + startMemory(t)}
	const holder = "\x1b]0;owned\x07gw\u009b2J\n2026-11-22T17:20:00.000Z none"
	const shown = `\x1b]0;owned\x07gw\u009b2J\x0a2026-11-22T17:20:00.000Z none`
	if got := tenure(t, holder+":nonce", broker, "set", "lease", "-", "--px", "1h"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	follower := begin(t, "holder", "lease", "--watch", "--broker", strings.TrimPrefix(broker[0], "TENURE_BROKER="))
	follower.mustPrint(moment + " " + regexp.QuoteMeta(shown))
	follower.mustEndAfter(os.Interrupt, 0)
	for _, step := range []struct{ arguments, want string }{
		{"holder lease", shown + "\n"},
		{"get lease", holder + ":nonce"}, // a pipe gets the bytes as they are
		{"release lease --force --yes", "released lease, which " + shown + " held\n"},
	} {
		got := tenure(t, "", broker, strings.Fields(step.arguments)...)
		if got.code != 0 || got.stdout != step.want || strings.ContainsAny(got.stderr, "\x1b\a\u009b") {
			t.Errorf("tenure %s: %+v, want %q", step.arguments, got, step.want)
		}
	}
	_ = tenure(t, "\u009b2J", broker, "set", "k", "-")
	if got := tenure(t, "", broker, "get", "k", "--json"); !strings.Contains(got.stdout, `"value":"\u009b2J"`) {
		t.Errorf("JSON: %+v", got)
	}
	root := &cobra.Command{Use: "tenure", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(&cobra.Command{Use: "get", RunE: func(*cobra.Command, []string) error {
		const forged = "a\x1b]0;b\x07\ntenure: forged"
		return fmt.Errorf("get: %w", errors.Join(&transport.RefusedError{Text: forged}, errors.New(forged)))
	}})
	root.SetArgs([]string{"get"})
	if code, text, _ := (Program{}).execute(t.Context(), root); code != exitRefused || text != `get: refused by the store: a ]0;b  tenure: forged; a\x1b]0;b\x07; tenure: forged` {
		t.Errorf("exit code %d, %q", code, text)
	}
}

func TestGetShowsControlCharactersToATerminal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no pseudo-terminals of this kind on Windows")
	}
	broker := "TENURE_BROKER=" + startMemory(t)
	if got := tenure(t, "one\ttwo\n\x1b[2J\u009bthree", []string{broker}, "set", "k", "-"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	cmd := exec.Command(build(t), "get", "k")
	cmd.Env = append(os.Environ(), broker, "TERM=dumb") // also there
	screen, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	until(t, screen, "one\ttwo\r\n"+`\x1b[2J\u009bthree`+"\r\n")
	_ = await.Result(cmd.Wait)
}

func TestAFenceRefusesAnOldTokenWithACodeOfItsOwn(t *testing.T) {
	broker := []string{"TENURE_BROKER=" + startMemory(t)}
	old := strings.TrimSpace(tenure(t, "", broker, "set", "lease", "a").stdout)
	token := strings.TrimSpace(tenure(t, "", broker, "set", "lease", "b").stdout)
	if got := tenure(t, "", broker, "set", "setpoint", "21", "--fence", token); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := tenure(t, "", append(broker, "TENURE_FENCE="), "set", "setpoint", "22"); got.code != exitUsage || !strings.Contains(got.stderr, "TENURE_FENCE is empty") {
		t.Errorf("the token of an unset variable: %+v", got)
	}
	for _, arguments := range [][]string{{"set", "setpoint", "22", "--fence", old}, {"set", "setpoint", "22"}, {"del", "setpoint"}, {"vdel", "setpoint", "21", "--fence", old}} {
		if got := tenure(t, "", broker, arguments...); got.code != exitRefused || !strings.Contains(got.stderr, "fencing token") {
			t.Errorf("tenure %q: %+v", arguments, got)
		}
	}
	if got := tenure(t, "", broker, "get", "setpoint"); got.stdout != "21" {
		t.Errorf("%+v", got)
	}
	if got := tenure(t, "", broker, "del", "setpoint", "--fence", token); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTheDebugLogOfAClientHasItsRequests(t *testing.T) {
	broker := []string{"TENURE_BROKER=" + startMemory(t)}
	for _, step := range []struct{ arguments, want string }{
		{"set k v", "msg=request verb=SET key=k outcome=ok took="},
		{"set k v --nx", `verb=SET key=k outcome=condition_failed took=`},
		{"holder k", "verb=GET key=k outcome=ok took="},
	} {
		got := tenure(t, "", broker, append(strings.Fields(step.arguments), "--log-level", "debug")...)
		if !strings.Contains(got.stderr, step.want) {
			t.Errorf("tenure %s: %+v, want %q in the log", step.arguments, got, step.want)
		}
	}
	if got := tenure(t, "", broker, "get", "k"); got.stderr != "" {
		t.Errorf("without the flag: %+v", got)
	}
}

func TestAValueOfAnyBytesPassesThroughTheStreams(t *testing.T) {
	broker := []string{"TENURE_BROKER=" + startMemory(t)}
	value := make([]byte, 600_000)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	if got := tenure(t, string(value), broker, "set", "k", "-"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := tenure(t, "", broker, "get", "k"); got.code != 0 || got.stdout != string(value) {
		t.Errorf("exit code %d, %d bytes, %s", got.code, len(got.stdout), got.stderr)
	}
}

func TestWatchPrintsEachChangeUntilItIsInterrupted(t *testing.T) {
	address := startMemory(t)
	client := dialTest(t, address, "writer")
	set := func(value string) {
		t.Helper()
		if _, err := client.Set(t.Context(), "k", []byte(value), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	text := begin(t, "watch", "k", "--broker", address)
	text.mustPrint(moment + " missing")
	asJSON := begin(t, "watch", "k", "--broker", address, "--json")
	asJSON.mustPrint(`{"time":"` + moment + `","key":"k","exists":false}`)
	set("a\n\xff")
	text.mustPrint(moment + ` set "a\\n\\xff"`)
	asJSON.mustPrint(`{"time":"` + moment + `","key":"k","exists":true,"valueBase64":"YQr/","version":"` + versionPattern + `"}`)
	asHex := begin(t, "watch", "k", "--broker", address, "--hex")
	asHex.mustPrint(moment + " set 610aff")
	if _, err := client.Del(t.Context(), "k", transport.DelOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*running{text, asHex} {
		r.mustPrint(moment + " missing")
	}
	text.mustEndAfter(os.Interrupt, 0)
	asHex.mustEndAfter(syscall.SIGTERM, 0)
}

// As "tenure watch k | head -1": the first line after the reader has gone ends the command.
func TestAClosedStandardOutputEndsAWatch(t *testing.T) {
	address := startMemory(t)
	client := dialTest(t, address, "writer")
	cmd := exec.Command(build(t), "watch", "k", "--broker", address)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if _, err := bufio.NewReader(reader).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := await.Result(cmd.Wait); err == nil {
		t.Error("it ended with success")
	}
}

func TestHolderFollowsEachChange(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	acquire := func(name string) *lease.Tenure {
		t.Helper()
		l, err := lease.New(dialTest(t, address, name), "press-7/active", lease.Options{})
		if err != nil {
			t.Fatal(err)
		}
		held, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	text := begin(t, "holder", "press-7/active", "--watch", "--broker", address)
	text.mustPrint(moment + " none")
	a := acquire("gateway-a")
	text.mustPrint(moment + " gateway-a")
	asJSON := begin(t, "holder", "press-7/active", "--watch", "--json", "--broker", address)
	asJSON.mustPrint(`{"time":"` + moment + `","name":"press-7/active","held":true,"holder":"gateway-a","value":"gateway-a:[^"]+","version":"` + versionPattern + `"}`)
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	text.mustPrint(moment + " none")
	b := acquire("gateway-b")
	text.mustPrint(moment + " gateway-b")
	text.mustEndAfter(os.Interrupt, 0)
	_ = b.Release(t.Context())
}

func TestReleaseEndsTheTenureThatWasShownAndNoOther(t *testing.T) {
	t.Parallel()
	log := new(logbuffer.Buffer)
	serve := exec.Command(build(t), "serve", "--memory", "--addr", "127.0.0.1:0")
	serve.Stderr = log
	address, _ := launch(t, serve, "listening on ")
	l, err := lease.New(dialTest(t, address, "gateway-a"), "press-7/active", lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	acquire := func() *lease.Tenure {
		t.Helper()
		held, err := l.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	operator := dialTest(t, address, "operator")
	release := func(answer io.Reader) (outcome, error) {
		cmd := releaseCommand()
		var stdout, stderr bytes.Buffer
		cmd.SetIn(answer)
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		cmd.SetContext(t.Context())
		err := (&releaseFlags{force: true, reason: "a test"}).run(t.Context(), cmd, operator, l.Name())
		return outcome{stdout: stdout.String(), stderr: stderr.String()}, err
	}
	held := acquire()
	for _, answer := range []string{"", "n\n", "no\n", "perhaps\n"} {
		if said, err := release(strings.NewReader(answer)); err == nil || said.stdout != "" || !strings.Contains(said.stderr, `Take the lease from "gateway-a"? [y/N]`) {
			t.Errorf("answer %q: %+v, %v", answer, said, err)
		}
	}
	if _, err := held.Token(); err != nil {
		t.Errorf("after the answer no: %v", err)
	}
	// While the command asks, the lease passes to another tenure.
	var second *lease.Tenure
	said, err := release(readerFunc(func(p []byte) (int, error) {
		if err := held.Release(t.Context()); err != nil {
			return 0, err
		}
		second = acquire()
		return copy(p, "y\n"), nil
	}))
	if exitCode(err) != exitMissing || !strings.Contains(err.Error(), "has another holder since") {
		t.Errorf("another tenure than the one shown: %+v, %v", said, err)
	}
	if _, err := second.Token(); err != nil {
		t.Errorf("the later tenure: %v", err)
	}
	got := tenure(t, "", nil, "release", l.Name(), "--force", "--yes", "--broker", address, "--reason", "gateway-a lost its disk")
	if got.code != 0 || got.stdout != "released press-7/active, which gateway-a held\n" {
		t.Errorf("%+v", got)
	}
	await.Receive(second.Context().Done())
	if cause := context.Cause(second.Context()); !errors.Is(cause, lease.ErrDeleted) {
		t.Errorf("the tenure ended with %v", cause)
	}
	await.Until(func() bool { return strings.Contains(log.String(), "gateway-a lost its disk") }) // the log has a writer of its own
}

func TestReleaseSaysWhichLeaseOfAStrictStoreOnlyItsHolderReleases(t *testing.T) {
	address, _ := launch(t, exec.Command(build(t), "serve", "--memory", "--addr", "127.0.0.1:0", "--strict", "--lock-prefix", "press-7/"), "listening on ")
	l, err := lease.New(dialTest(t, address, "gateway-a"), "press-7/active", lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	held, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := tenure(t, "", nil, "release", l.Name(), "--force", "--yes", "--broker", address)
	if got.code != exitRefused || !strings.Contains(got.stderr, "lets only the holder release it; stop the holder") {
		t.Errorf("%+v", got)
	}
	if _, err := held.Token(); err != nil {
		t.Error(err)
	}
}

func TestSwitchoverMovesARunningChildToTheNamedHolder(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	const name = "press-7/active"
	node := func(holder string) *running {
		return begin(t, "run", "--broker", address, "--holder", holder, "--ttl", "2s", name, "--", "sh", "-c", "echo "+holder+" works; exec sleep 600")
	}
	a := node("gateway-a")
	a.mustPrint("gateway-a works")
	node("gateway-b")
	c := node("gateway-c")
	await.Until(func() bool { // until the candidate waits, none is ready
		got := tenure(t, "", nil, "switchover", name, "--to", "gateway-c", "--broker", address)
		if got.code == 0 && !regexp.MustCompile(`\Agateway-c leads; gateway-a handed over, and none led for [0-9.]+(µs|ms|s)\n\z`).MatchString(got.stdout) {
			t.Errorf("%+v", got)
		}
		return got.code == 0
	})
	c.mustPrint("gateway-c works")
	if got := tenure(t, "", nil, "switchover", name, "--to", "gateway-c", "--broker", address); got.code != 0 || got.stdout != "gateway-c leads already\n" {
		t.Errorf("%+v", got)
	}
	got := tenure(t, "", nil, "switchover", name, "--to", "gateway-x", "--wait", "1s", "--broker", address)
	if got.code != exitTimeout || !strings.Contains(got.stderr, `"gateway-c" leads on`) {
		t.Errorf("%+v", got)
	}
	got = tenure(t, "", nil, "switchover", name, "--json", "--broker", address)
	if got.code != 0 || !strings.Contains(got.stdout, `"from":"gateway-c","gapMillis":`) {
		t.Errorf("%+v", got)
	}
}

func TestSwitchoverSaysWhyNothingWasHandedOver(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	got := tenure(t, "", nil, "switchover", "free", "--broker", address)
	if got.code != exitMissing || !strings.Contains(got.stderr, "no node leads") {
		t.Errorf("%+v", got)
	}
	if got := tenure(t, "", nil, "switchover", "free", "--wait", "0s", "--broker", address); got.code != exitUsage {
		t.Errorf("%+v", got)
	}
	elector, err := election.New(dialTest(t, address, "gateway-a"), "kept", election.Options{RefuseSwitchover: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	leads, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = elector.Run(ctx, func(ctx context.Context, _ *election.Term) error {
			close(leads)
			await.Receive(ctx.Done())
			return nil
		})
	}()
	await.Receive(leads)
	got = tenure(t, "", nil, "switchover", "kept", "--wait", time.Minute.String(), "--broker", address)
	if got.code != exitRefused || !strings.Contains(got.stderr, "the leader refuses to hand over") {
		t.Errorf("%+v", got)
	}
	cancel()
	await.Receive(ended)
}

// readerFunc is a function as an io.Reader.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestTheTextForTheLogOfTheStoreIsBounded(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"a\nb\x00", "a b "}, {"\xff", "?"}, {strings.Repeat("x", 300), strings.Repeat("x", 256)}, {strings.Repeat("ä", 200), strings.Repeat("ä", 128)},
		{"x" + strings.Repeat("ä", 200), "x" + strings.Repeat("ä", 127)},
	} {
		if got := forcedText(test.text); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
	if text := requester(); !strings.HasPrefix(text, "tenure release, by ") || !strings.Contains(text, " on ") {
		t.Errorf("%q", text)
	}
}

func TestACommandInTheChildDoesNotEndTheConnectionOfItsParent(t *testing.T) {
	environment := []string{"TENURE_BROKER=" + startMemory(t), "TENURE_CLIENT_ID=gateway-a"}
	got := tenure(t, "", environment, "lock", "jobs", "--", build(t), "holder", "jobs")
	if got.code != 0 || got.stdout != "gateway-a\n" {
		t.Errorf("%+v", got)
	}
}
