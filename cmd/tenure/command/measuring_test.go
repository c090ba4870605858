package command

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/tenurelock/tenure/cmd/tenure/internal/doctor"
	"github.com/tenurelock/tenure/cmd/tenure/internal/top"
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
		{"no broker", []string{"--broker", "mqtt://127.0.0.1:1"}, exitUnreachable, "tenure serve", "TCP: no connection"},
		{"a broker without a store", []string{"--broker", withoutStore}, exitUnreachable, "tenure attach " + withoutStore, "no store is subscribed"},
		{"replies that may not be read", []string{"--broker", noReplies, "--timeout", "2s"}, exitUnreachable, "docs/attach.md", "no reply came within 2s"},
		{"requests that may not be sent", []string{"--broker", noRequests}, exitRefused, "docs/attach.md", "send requests"},
		{"a file that is not there", []string{"--broker", store, "--username", "x", "--password-file", "nowhere"}, exitUsage, "correct the file", "nowhere"},
		{"a file of TLS that is not there", []string{"--broker", "mqtts" + strings.TrimPrefix(store, "mqtt"), "--tls-ca", "nowhere"}, exitUsage, "correct the file", "nowhere"},
		{"flags of TLS without TLS", []string{"--broker", store, "--tls-ca", "nowhere"}, exitUsage, "write mqtts", "does not encrypt"},
		{"an address that is none", []string{"--broker", "http://localhost"}, exitUsage, "correct --broker", "write it like"},
		{"a burst that is too large", []string{"--burst", "60001"}, exitUsage, "", "from 0 to 60000"},
		{"an argument", []string{"it"}, exitUsage, "", "unknown command"},
		{"a status page that is none", []string{"--broker", store, "--admin", "ftp://x"}, exitUsage, "", "--admin"},
		{"a status page that does not answer", []string{"--broker", store, "--admin", "127.0.0.1:1"}, 0, "status page does not answer", ""},
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

// A store that attaches to mosquitto without access rules answers, and the doctor says that any client
// could read what others are told.
func TestDoctorWarnsOfABrokerWithoutAccessRules(t *testing.T) {
	t.Parallel()
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	launch(t, exec.Command(build(t), "attach", "--memory", broker), "attached to ")
	got := tenure(t, "", nil, "doctor", "--broker", broker)
	if got.code != 0 || !strings.Contains(got.stdout, "replies for other clients, so it can read their values") || !strings.Contains(got.stdout, "1 warning") || !strings.Contains(got.stdout, "kept a burst of 5000 messages") {
		t.Errorf("exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
	}
}

// mosquitto takes each subscription, and delivers what its rules allow.
func TestDoctorFindsNoFaultInABrokerThatDeliversNothingOfOthers(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(rules, []byte("user store\ntopic readwrite #\n\npattern write statestore/#\npattern readwrite clients/%c/#\n"+
		"pattern read clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/+/command/notify/+\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	broker := "mqtt://" + mosquitto.Start(t, "acl_file "+rules+"\n").Address
	launch(t, exec.Command(build(t), "attach", "--memory", "--username", "store", broker), "attached to ")
	got := tenure(t, "", nil, "doctor", "--broker", broker, "--burst", "0")
	if got.code != 0 || !strings.Contains(got.stdout, "no warnings") || !strings.Contains(got.stdout, "delivers what its rules allow") {
		t.Errorf("exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
	}
}

func TestTopPrintsATableOnceWhereTheOutputIsNoTerminal(t *testing.T) {
	t.Parallel()
	store := startMemory(t)
	if got := tenure(t, "", nil, "set", "--broker", store, "press-7/active", "gateway-a:nonce", "--nex", "--px", "60s"); got.code != 0 {
		t.Fatal(got.stderr)
	}
	got := tenure(t, "", nil, "top", "--broker", store, "press-7/active", "press-8/active")
	if got.code != 0 || !strings.Contains(got.stdout, "press-7/active  gateway-a") || !strings.Contains(got.stdout, "press-8/active  no holder") || strings.Contains(got.stdout, "\x1b") {
		t.Errorf("exit code %d:\n%s%s", got.code, got.stdout, got.stderr)
	}
	got = tenure(t, "", nil, "top", "--broker", store, "press-7/active", "--json")
	var snapshot top.Snapshot
	if err := json.Unmarshal([]byte(got.stdout), &snapshot); err != nil || got.code != 0 || len(snapshot.Leases) != 1 || snapshot.Leases[0].Holder != "gateway-a" {
		t.Errorf("exit code %d, %v: %s%s", got.code, err, got.stdout, got.stderr)
	}
	for _, test := range []struct {
		code      int
		want      string
		arguments []string
	}{
		{exitUsage, "give --admin with", nil},
		{exitUsage, "twice", []string{"a", "a"}},
		{exitUsage, "--ttl -1s", []string{"a", "--ttl", "-1s"}},
		{exitUsage, "--admin: ", []string{"--admin", "ftp://x"}},
		{exitUnreachable, "status page does not answer", []string{"--admin", "127.0.0.1:1"}},
		{exitUnreachable, "connection refused", []string{"a", "--broker", "mqtt://127.0.0.1:1", "--timeout", "200ms"}},
		{exitUnreachable, "no state store answers", []string{"a", "--broker", "mqtt://" + mosquitto.Start(t, "").Address}},
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

func TestTopShowsAScreenUntilTheUserEndsIt(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there are no pseudo-terminals of this kind on Windows")
	}
	store := startMemory(t)
	for name, test := range map[string]struct {
		end  func(*exec.Cmd, *os.File) error
		code int
	}{
		"q":       {func(_ *exec.Cmd, screen *os.File) error { _, err := screen.WriteString("q"); return err }, 0},
		"Ctrl-C":  {func(_ *exec.Cmd, screen *os.File) error { _, err := screen.WriteString("\x03"); return err }, 0},
		"SIGTERM": {func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Signal(syscall.SIGTERM) }, exitSignal + 15},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(build(t), "top", "--broker", store, "press-7/active")
			cmd.Env = append(os.Environ(), "TERM=xterm", "LC_ALL=C.UTF-8")
			screen, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 90, Rows: 10})
			if err != nil {
				t.Fatal(err)
			}
			defer screen.Close()
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			until(t, screen, "press-7/active")
			if got := tenure(t, "", nil, "set", "--broker", store, "press-7/active", "gateway-"+name+":n"); got.code != 0 {
				t.Fatal(got.stderr)
			}
			until(t, screen, "gateway-"+name)
			if err := test.end(cmd, screen); err != nil {
				t.Fatal(err)
			}
			until(t, screen, "\x1b[?1049l") // the screen from before
			_ = await.Result(cmd.Wait)
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
		})
	}
}

// mosquitto 2.0.11 has as many messages in flight as the client allows; other brokers have a limit of their
// own, as the window here is one.
func TestDoctorMeasuresTheQueueOfABroker(t *testing.T) {
	t.Parallel()
	const defaults = "max_inflight_messages 20\nmax_queued_messages 1000\n" // mosquitto's
	onlyWrite, onlyRead := writeRules(t, "topic write #\n"), writeRules(t, "topic read #\ntopic write statestore/#\n")
	for name, test := range map[string]struct {
		settings string
		window   uint16 // 0: what an attached store announces
		burst    int
		want     doctor.Status
		found    string
	}{
		"as docs/attach.md has it":               {"", 20, 5000, doctor.OK, "kept a burst of 5000"},
		"the defaults of mosquitto":              {defaults, 20, 5000, doctor.Warning, "it threw away 39"},
		"a small burst":                          {defaults, 20, 900, doctor.OK, "kept a burst of 900"},
		"a queue bounded in bytes":               {"max_queued_bytes 100000\n", 20, 5000, doctor.Warning, "it threw away 4"},
		"a window that makes up for the queue":   {defaults, 0, 5000, doctor.OK, "kept a burst of 5000"},
		"rules that do not let the client read":  {"acl_file " + onlyWrite + "\n", 20, 5000, doctor.Skipped, "did not come back"},
		"rules that do not let the client write": {"acl_file " + onlyRead + "\n", 20, 5000, doctor.Skipped, "may not send itself messages"},
	} {
		t.Run(name, func(t *testing.T) {
			broker := mosquitto.Start(t, test.settings)
			report := doctor.Run(t.Context(), doctor.Options{
				Address: "mqtt://" + broker.Address, Burst: test.burst, Window: test.window, Timeout: 20 * time.Second,
			})
			last := report.Steps[len(report.Steps)-1]
			if last.Name != "queue" || last.Status != test.want || !strings.Contains(last.Found, test.found) {
				t.Errorf("%+v, want %s with %q", last, test.want, test.found)
			}
			if cured := strings.Contains(last.Cure, "max_queued_messages 10000"); cured != (test.want == doctor.Warning) {
				t.Errorf("the cure is %q", last.Cure)
			}
		})
	}
}

// writeRules writes rules for mosquitto, and returns the file.
func writeRules(t *testing.T, rules string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
