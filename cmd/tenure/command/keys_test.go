package command

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/tenurelock/tenure/internal/await"
)

func TestCommandsForKeysSayWhatTheStoreHolds(t *testing.T) {
	t.Parallel()
	broker := startMemory(t)
	const version = versionPattern + "\n"
	hostile := "\x1b]0;owned\x07gw\u009b2J\n2026-11-22T17:20:00.000Z none" // a holder that would command a terminal
	shown := regexp.QuoteMeta(`\x1b]0;owned\x07gw\xc2\x9b2J\x0a2026-11-22T17:20:00.000Z none`)
	for _, step := range []struct {
		stdin, line    string // _ is an empty argument
		code           int
		stdout, stderr string // regular expressions for all of it
	}{
		{"", "set k v", 0, version, ""},
		{"", "get k", 0, "v", ""},
		{"", "get k --json", 0, `{"key":"k","exists":true,"value":"v","version":"` + versionPattern + `"}` + "\n", ""},
		{"", "set k w", 0, version, ""},
		{"", "set k x --nx", exitMissing, "", `tenure: SET "k": the condition was not met \(the key has version ` + versionPattern + `\)` + "\n"},
		{"", "set k x --nex", exitMissing, "", "(?s).*the condition was not met.*"},
		{"", "set k w --nex", 0, version, ""},
		{"\x00\xff\x10", "set b -", 0, version, ""},
		{"", "get b", 0, "\x00\xef\xbf\xbd\x10", ""}, // as regexp sees the byte 0xff
		{"", "get b --json", 0, `{"key":"b","exists":true,"valueBase64":"AP8Q","version":"` + versionPattern + `"}` + "\n", ""},
		{"", "vdel k other", exitMissing, "", `tenure: VDEL "k": the condition was not met` + "\n"},
		{"w", "vdel k -", 0, "", ""},
		{"", "vdel k w", exitMissing, "", `tenure: the key "k" does not exist` + "\n"},
		{"", "get k", exitMissing, "", `tenure: the key "k" does not exist` + "\n"},
		{"", "get k --json", exitMissing, `{"key":"k","exists":false}` + "\n", ""},
		{"", "del b", 0, "", ""},
		{"", "del b", exitMissing, "", `tenure: the key "b" does not exist` + "\n"},
		{"", "set lease gateway-a:nonce --px 1h --nx --persist", 0, version, ""},
		{"", "holder lease", 0, "gateway-a\n", ""},
		{"", "holder lease --json", 0, `{"name":"lease","held":true,"holder":"gateway-a","value":"gateway-a:nonce","version":"` + versionPattern + `"}` + "\n", ""},
		{"", "release lease --yes", 0, "released lease, which gateway-a held\n",
			`(?s)"lease" is held by "gateway-a" \(value "gateway-a:nonce", last renewed at 20.*the lease was deleted from the store.*`},
		{"", "release lease --yes", exitMissing, "", `tenure: no process holds "lease"` + "\n"},
		{"", "holder lease", exitMissing, "", `tenure: no process holds "lease"` + "\n"},
		{"", "holder lease --json", exitMissing, `{"name":"lease","held":false}` + "\n", ""},
		// What others chose is printed, and not obeyed. A pipe gets a value as it is.
		{hostile + ":nonce", "set odd - --px 1h", 0, version, ""},
		{"", "holder odd", 0, shown + "\n", ""},
		{"", "get odd", 0, regexp.QuoteMeta(hostile) + ":nonce", ""},
		{"", "get odd --json", 0, `.*"value":"\\u001b\]0;owned\\u0007gw\\u009b2J\\n.*` + "\n", ""},
		{"", "release odd --yes", 0, "released odd, which " + shown + " held\n", "[^\x1b\a\u009b]*"},
	} {
		arguments := strings.Fields(strings.ReplaceAll(step.line, "_", "\x00"))
		for i := range arguments {
			arguments[i] = strings.ReplaceAll(arguments[i], "\x00", "")
		}
		got := invoke(t, step.stdin, append(arguments, "--broker", broker)...)
		for stream, part := range map[string][2]string{"output": {got.stdout, step.stdout}, "error": {got.stderr, step.stderr}} {
			if !regexp.MustCompile(`\A` + part[1] + `\z`).MatchString(strings.ToValidUTF8(part[0], "\ufffd")) {
				t.Errorf("tenure %s: standard %s is %q, want %q", step.line, stream, part[0], part[1])
			}
		}
		if got.code != step.code {
			t.Errorf("tenure %s: exit code %d, want %d", step.line, got.code, step.code)
		}
	}
}

func TestGetShowsControlCharactersToATerminal(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("SKIPPED: there are no pseudo-terminals of this kind on Windows")
	}
	broker := startMemory(t)
	mustSet(t, dialTest(t, broker, "writer"), "k", "one\ttwo\n\x1b[2J\u009bthree")
	cmd := exec.Command(built.Path(t), "get", "k", "--broker", broker)
	cmd.Env = append(os.Environ(), "TERM=dumb") // also there
	screen, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	until(t, screen, "one\ttwo\r\n"+`\x1b[2J\xc2\x9bthree`+"\r\n")
	_ = await.Result(cmd.Wait)
}

func TestAFenceRefusesAnOldTokenWithACodeOfItsOwn(t *testing.T) {
	broker := startMemory(t)
	t.Setenv("TENURE_BROKER", broker)
	old := strings.TrimSpace(invoke(t, "", "set", "lease", "a").stdout)
	token := strings.TrimSpace(invoke(t, "", "set", "lease", "b").stdout)
	for _, step := range []struct {
		line string
		code int
	}{
		{"set setpoint 21 --fence " + token, 0},
		{"set setpoint 22 --fence " + old, exitRefused},
		{"set setpoint 22", exitRefused},
		{"del setpoint", exitRefused},
		{"vdel setpoint 21 --fence " + old, exitRefused},
		{"vdel setpoint 21 --fence " + token, 0},
	} {
		got := invoke(t, "", strings.Fields(step.line)...)
		if got.code != step.code || got.code != 0 && !strings.Contains(got.stderr, "fencing token") {
			t.Errorf("tenure %s: %+v", step.line, got)
		}
	}
	t.Setenv("TENURE_FENCE", "")
	if got := invoke(t, "", "set", "k", "22"); got.code != exitUsage || !strings.Contains(got.stderr, "TENURE_FENCE is empty") {
		t.Errorf("the token of an unset variable: %+v", got)
	}
}

func TestWatchPrintsEachChangeUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	client := dialTest(t, address, "writer")
	text, interrupt := here(t, "get", "--watch", "k", "--broker", address)
	text.mustPrint(moment + " missing")
	asJSON, _ := here(t, "get", "--watch", "k", "--broker", address, "--json")
	asJSON.mustPrint(`{"time":"` + moment + `","key":"k","exists":false}`)
	mustSet(t, client, "k", "a\n\xff")
	text.mustPrint(moment + ` set "a\\n\\xff"`)
	asJSON.mustPrint(`{"time":"` + moment + `","key":"k","exists":true,"valueBase64":"YQr/","version":"` + versionPattern + `"}`)
	if code := interrupt(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
