package command

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/tenurelock/tenure/cmd/tenure/internal/doctor"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
)

func TestDoctorEndsWithTheCodeOfTheFirstFailureAndItsCure(t *testing.T) {
	t.Parallel()
	store := startMemory(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const service = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
	withoutStore := "mqtt://" + mosquitto.Start(t, "").Address
	// The client may send requests, and may not read its replies, which mosquitto 2 does not say.
	noReplies := "mqtt://" + mosquitto.Start(t, "acl_file "+write("replies", "topic write "+service+"/command/invoke\n\nuser store\ntopic readwrite #\n")+"\n").Address
	launch(t, exec.Command(build(t), "attach", "--memory", "--username", "store", noReplies), "attached to ")
	// The client may read its replies, and may not send requests.
	noRequests := "mqtt://" + mosquitto.Start(t, "acl_file "+write("requests", "pattern read clients/%c/#\n")+"\n").Address

	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		out, err  string // what the output and the error have
	}{
		{"a store", []string{"--broker", store}, 0, "The store can be used", ""},
		{"a store, read only", []string{"--broker", store, "--read-only"}, 0, "because of --read-only", ""},
		{"no broker", []string{"--broker", "mqtt://127.0.0.1:1"}, exitUnreachable, "tenure serve", "connection: connection refused"},
		{"a broker without a store", []string{"--broker", withoutStore}, exitUnreachable, "tenure attach " + withoutStore, "no store is subscribed"},
		{"replies that may not be read", []string{"--broker", noReplies, "--timeout", "2s"}, exitUnreachable, "docs/attach.md", "no reply came within 2s"},
		{"requests that may not be sent", []string{"--broker", noRequests}, exitRefused, "docs/attach.md", "send requests"},
		{"a file that is not there", []string{"--broker", store, "--username", "x", "--password-file", "nowhere"}, exitUsage, "correct the flag, or the file", "nowhere"},
		{"a file of TLS that is not there", []string{"--broker", "mqtts" + strings.TrimPrefix(store, "mqtt"), "--tls-ca", "nowhere"}, exitUsage, "correct the flag, or the file", "nowhere"},
		{"flags of TLS without TLS", []string{"--broker", store, "--tls-ca", "nowhere"}, exitUsage, "correct the flag", "write mqtts"},
		{"an address that is none", []string{"--broker", "http://localhost"}, exitUsage, "correct --broker", "write it like"},
		{"an argument", []string{"it"}, exitUsage, "", "doctor takes no arguments"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := tenure(t, "", nil, append([]string{"doctor", "--timeout", "20s"}, test.arguments...)...)
			if got.code != test.code || !strings.Contains(got.stdout, test.out) || !strings.Contains(got.stderr, test.err) {
				t.Errorf("exit code %d, want %d; %q in\n%s\n%q in\n%s", got.code, test.code, test.out, got.stdout, test.err, got.stderr)
			}
			if strings.Contains(got.stdout, "\x1b") {
				t.Errorf("an escape sequence in a pipe: %q", got.stdout)
			}
		})
	}
	got := tenure(t, "", nil, "doctor", "--broker", withoutStore, "--json")
	var report doctor.Report
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil || got.code != exitUnreachable || report.FirstFailure() == nil || report.FirstFailure().Name != "store" {
		t.Errorf("exit code %d, %v: %s", got.code, err, got.stdout)
	}
}

func TestTopPrintsATableOnceWhereTheOutputIsNoTerminal(t *testing.T) {
	t.Parallel()
	page, store, _ := launchWithPage(t, exec.Command(build(t), "serve", "--memory", "--addr", "127.0.0.1:0"), "listening on ")
	if got := tenure(t, "", nil, "set", "--broker", store, "--client-id", "gateway-a", "press-7/active", "v", "--nex", "--px", "60s"); got.code != 0 {
		t.Fatal(got.stderr)
	}
	if got := tenure(t, "", nil, "set", "--broker", store, "press-8/active\x1b[2J", "v", "--nex", "--px", "60s"); got.code != 0 {
		t.Fatal(got.stderr)
	}
	var got outcome
	await.Until(func() bool { // the page learns of a lease a moment later
		got = tenure(t, "", nil, "top", "--admin", page)
		return strings.Contains(got.stdout, "press-8/active")
	})
	if got.code != 0 || !regexp.MustCompile(`press-7/active +gateway-a +\d+s +(1m0|5\d)`).MatchString(got.stdout) || strings.Contains(got.stdout, "\x1b") {
		t.Errorf("exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
	}
	got = tenure(t, "", nil, "top", "--admin", page, "press-7/active", "no-such-lease")
	if got.code != 0 || !strings.Contains(got.stdout, "press-7/active") || strings.Contains(got.stdout, "press-8/active") ||
		!regexp.MustCompile(`(?m)^no-such-lease +not known +- +-$`).MatchString(got.stdout) {
		t.Errorf("two names: exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
	}
	for _, test := range []struct {
		code      int
		want      string
		arguments []string
	}{
		{exitUsage, "give --admin with", nil},
		{exitUsage, "--admin: ", []string{"--admin", "ftp://x"}},
		{exitUsage, "--timeout 0s is not positive", []string{"--admin", page, "--timeout", "0s"}},
		{exitUnreachable, "status page does not answer", []string{"--admin", "127.0.0.1:1"}},
	} {
		if got := tenure(t, "", nil, append([]string{"top"}, test.arguments...)...); got.code != test.code || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%q: exit code %d, want %d and %q in %s%s", test.arguments, got.code, test.code, test.want, got.stdout, got.stderr)
		}
	}
}

// until reads a terminal until it has shown text.
func until(t *testing.T, screen *os.File, text string) {
	t.Helper()
	shown := await.Result(func() string {
		var all strings.Builder
		buffer := make([]byte, 4096)
		for !strings.Contains(all.String(), text) {
			n, err := screen.Read(buffer)
			all.Write(buffer[:n])
			if err != nil {
				break
			}
		}
		return all.String()
	})
	if !strings.Contains(shown, text) {
		t.Fatalf("%q is not in %q", text, shown)
	}
}

func TestTopRedrawsUntilTheUserEndsIt(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("SKIPPED: there are no pseudo-terminals of this kind on Windows")
	}
	page, store, _ := launchWithPage(t, exec.Command(build(t), "serve", "--memory", "--addr", "127.0.0.1:0"), "listening on ")
	for name, end := range map[string]func(*exec.Cmd, *os.File) error{
		"Ctrl-C":  func(_ *exec.Cmd, screen *os.File) error { _, err := screen.WriteString("\x03"); return err },
		"SIGTERM": func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(build(t), "top", "--admin", page)
			screen, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 90, Rows: 10})
			if err != nil {
				t.Fatal(err)
			}
			defer screen.Close()
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			until(t, screen, "NAME")
			if got := tenure(t, "", nil, "set", "--broker", store, "--client-id", "gateway-"+name, "press-"+name, "v", "--nex", "--px", "60s"); got.code != 0 {
				t.Fatal(got.stderr)
			}
			until(t, screen, "gateway-"+name)
			if err := end(cmd, screen); err != nil {
				t.Fatal(err)
			}
			if err := await.Result(cmd.Wait); err != nil {
				t.Error(err)
			}
		})
	}
}
