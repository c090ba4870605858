//go:build unix

package command

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/tenurelock/tenure/cmd/tenure/internal/doctor"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

// beginWithPage starts a store with a status page, and returns the address of the store and the URL of the page.
func beginWithPage(t *testing.T, arguments ...string) (r *running, store, page string) {
	t.Helper()
	r = begin(t, append(arguments, "--admin", "127.0.0.1:0")...)
	store = r.mustPrint(`(?:listening|attached|standing by) (?:on|to) (\S+).*`)
	return r, store, r.mustPrint("status page on (.*)/")
}

// pageState is what a test reads of a status page.
type pageState struct {
	activity.State
	Node struct {
		Role  string
		Ready bool
	}
}

// eventually asks a page until its state has a holder of a lease; empty: once.
func eventually(t *testing.T, page, name, holder string) (state pageState) {
	t.Helper()
	client := http.Client{Timeout: await.Patience}
	await.Until(func() bool {
		answer, err := client.Get(page + "/api/state")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		state = pageState{}
		if err := json.NewDecoder(answer.Body).Decode(&state); err != nil {
			t.Fatal(err)
		}
		for _, l := range state.Leases {
			if l.Name == name && l.Held && l.Holder == holder {
				return true
			}
		}
		return name == ""
	})
	return state
}

func TestTheStatusPageShowsLeasesOfServeAndEndsWithIt(t *testing.T) {
	t.Parallel()
	serve, address, page := beginWithPage(t, "serve", "--memory", "--addr", "127.0.0.1:0")
	first := acquireAs(t, dialTest(t, address, "gateway-a"), "press-7")
	state := eventually(t, page, "press-7", "gateway-a")
	if !state.Node.Ready || state.Node.Role != "active" || state.Info.Address != address || state.Info.Data != "memory only" || state.Info.Identity == "" || state.Info.Mode != "serve" {
		t.Errorf("the page shows %+v, %+v", state.Node, state.Info)
	}
	if state.Leases[0].Value != "" {
		t.Errorf("it shows the value %q", state.Leases[0].Value)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	acquireAs(t, dialTest(t, address, "gateway-b"), "press-7")
	state = eventually(t, page, "press-7", "gateway-b")
	if len(state.Timeline) == 0 || state.Timeline[0].From != "gateway-a" || state.Timeline[0].Cause != statestore.CauseReleased {
		t.Errorf("the timeline is %+v", state.Timeline)
	}
	serve.mustEndAfter(syscall.SIGTERM, 0, "stopped")
}

func TestTheStatusPageShowsTheLeasesOfAnAttachedStore(t *testing.T) {
	t.Parallel()
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	_, _, page := beginWithPage(t, "attach", broker, "--memory")
	acquireAs(t, dialTest(t, broker, "gateway-a"), "press-7")
	if state := eventually(t, page, "press-7", "gateway-a"); !state.Node.Ready || state.Info.Mode != "attach" || state.Info.Address != broker {
		t.Errorf("the page shows %+v, %+v", state.Node, state.Info)
	}
}

func TestHealthSaysWithItsExitCodeWhetherAStoreAnswers(t *testing.T) {
	t.Parallel()
	_, address, page := beginWithPage(t, "serve", "--memory", "--addr", "127.0.0.1:0")
	standby := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.RequestURI {
		case "/readyz":
			http.Error(w, "not ready: standby", http.StatusServiceUnavailable)
		case "/readyz?standby=ok":
			fmt.Fprintln(w, "ready: standby")
		case "/healthz":
			fmt.Fprintln(w, "ok")
		}
	}))
	defer standby.Close()
	silent := listen(t, func(net.Conn) {})
	for _, test := range []struct {
		admin string
		code  int
		want  string
	}{
		{page, 0, "ready: active"},
		{":" + page[strings.LastIndexByte(page, ':')+1:], 0, "ready: active"},
		{standby.URL, exitUnreachable, "not ready: standby"},
		{standby.URL + " --standby-ok", 0, "ready: standby"},
		{standby.URL + " --live", 0, "ok"},
		{"127.0.0.1:1", exitUnreachable, "does not answer"},
		{silent + " --timeout 100ms", exitUnreachable, "gave up after --timeout 100ms"},
		{strings.TrimPrefix(address, "mqtt://"), exitUnreachable, "the status page does not answer"},
	} {
		got := invoke(t, "", append([]string{"health", "--admin"}, strings.Fields(strings.TrimPrefix(test.admin, "http://"))...)...)
		if got.code != test.code || !strings.Contains(got.stdout+got.stderr, test.want) {
			t.Errorf("health --admin %s: %+v, want exit code %d and %q", test.admin, got, test.code, test.want)
		}
	}
}

func TestTopShowsTheLeasesOnceOrUntilTheUserEndsIt(t *testing.T) {
	t.Parallel()
	_, store, page := beginWithPage(t, "serve", "--memory", "--addr", "127.0.0.1:0")
	page = strings.TrimPrefix(page, "http://")
	acquireAs(t, dialTest(t, store, "gateway-a"), "press-7/active")
	acquireAs(t, dialTest(t, store, "gateway-b"), "press-8/active\x1b[2J")
	waits := dialTest(t, store, "gateway-d")
	watch, err := waits.WatchWaiting("press-7/active")
	if err != nil {
		t.Fatal(err)
	}
	await.Receive(watch.Changes())
	var got outcome
	shows := func(columns string) {
		t.Helper()
		shown := regexp.MustCompile(`press-7/active +gateway-a +\d+s +(1m0|5\d)\S* +` + columns + `\n`)
		await.Until(func() bool { // the page learns of a lease a moment later
			got = invoke(t, "", "top", "--admin", page)
			return shown.MatchString(got.stdout)
		})
	}
	shows("1")
	_ = waits.Close()
	shows(`0: no standby \(gateway-d gone since 20.*\)`)
	if got.code != 0 || !strings.Contains(got.stdout, `press-8/active\x1b[2J`) {
		t.Errorf("%+v", got)
	}
	got = invoke(t, "", "top", "--admin", page, "press-7/active", "no-such-lease")
	if got.code != 0 || !strings.Contains(got.stdout, "press-7/active") || strings.Contains(got.stdout, "press-8/active") {
		t.Errorf("two names: %+v", got)
	}
	if got := invoke(t, "", "top", "--admin", strings.TrimPrefix(store, "mqtt://")); got.code != exitUnreachable || !strings.Contains(got.stderr, "status page does not answer") {
		t.Errorf("%+v", got)
	}
	cmd := exec.Command(built.Path(t), "top", "--admin", page)
	screen, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 90, Rows: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	until(t, screen, "\x1b[H\x1b[J")
	until(t, screen, "no standby")
	acquireAs(t, dialTest(t, store, "gateway-c"), "press-9/active")
	until(t, screen, "gateway-c")
	if _, err := screen.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if err := await.Result(cmd.Wait); err != nil {
		t.Error(err)
	}
}

func TestDoctorEndsWithTheCodeOfTheFirstFailureAndItsCure(t *testing.T) {
	t.Parallel()
	store := startMemory(t)
	const service = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
	withoutStore := "mqtt://" + mosquitto.Start(t, "").Address
	// The client may send requests, and may not read its replies, which mosquitto 2 does not say.
	rules := write(t, "replies", "topic write "+service+"/command/invoke\n\nuser store\ntopic readwrite #\n")
	noReplies := "mqtt://" + mosquitto.Start(t, "acl_file "+rules+"\n").Address
	startAttached(t, noReplies, "--username", "store")
	for _, test := range []struct {
		line     string
		code     int
		out, err string // what the output and the error have
	}{
		{"--broker " + store, 0, "The store can be used", ""},
		{"--read-only --broker " + store, 0, "because of --read-only", ""},
		{"--broker mqtt://127.0.0.1:1", exitUnreachable, "tenure serve", "connection: connection refused"},
		{"--broker " + withoutStore, exitUnreachable, "tenure attach " + withoutStore, "no store is subscribed"},
		{"--timeout 2s --broker " + noReplies, exitUnreachable, "docs/attach.md", "no reply came within 2s"},
		{"--broker http://localhost", exitUsage, "correct --broker", "write it like"},
	} {
		got := invoke(t, "", append([]string{"doctor"}, strings.Fields(test.line)...)...)
		if got.code != test.code || !strings.Contains(got.stdout, test.out) || !strings.Contains(got.stderr, test.err) || strings.Contains(got.stdout, "\x1b") {
			t.Errorf("doctor %s: exit code %d, want %d; %q in\n%s\n%q in\n%s", test.line, got.code, test.code, test.out, got.stdout, test.err, got.stderr)
		}
	}
	got := invoke(t, "", "doctor", "--broker", withoutStore, "--json")
	var report doctor.Report
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil || got.code != exitUnreachable || report.FirstFailure() == nil || report.FirstFailure().Name != "store" {
		t.Errorf("exit code %d, %v: %s", got.code, err, got.stdout)
	}
}
