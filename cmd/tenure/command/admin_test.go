package command

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// launchWithPage starts a command with a status page, and returns the addresses of the page and, from
// the line that begins with ready, of the store.
func launchWithPage(t *testing.T, cmd *exec.Cmd, ready string) (page, store string, stdout *bufio.Scanner) {
	t.Helper()
	cmd.Args = append(cmd.Args, "--admin", "127.0.0.1:0")
	store, stdout = launch(t, cmd, ready)
	stdout.Scan()
	page, ok := strings.CutPrefix(stdout.Text(), "status page on ")
	if !ok {
		t.Fatalf("second line %q", stdout.Text())
	}
	return strings.TrimSuffix(page, "/"), store, stdout
}

// pageState is what a test reads of a status page.
type pageState struct {
	activity.State
	Node struct {
		Role  string
		Ready bool
	}
}

func stateOf(t *testing.T, page string) (state pageState) {
	t.Helper()
	client := http.Client{Timeout: await.Patience}
	answer, err := client.Get(page + "/api/state")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&state); err != nil {
		t.Fatal(err)
	}
	return state
}

// eventually asks the page until ok is true of its state.
func eventually(t *testing.T, page string, ok func(pageState) bool) pageState {
	t.Helper()
	deadline := time.Now().Add(await.Patience)
	for {
		state := stateOf(t, page)
		if ok(state) {
			return state
		}
		if time.Now().After(deadline) {
			t.Fatalf("the page shows %+v", state)
		}
		time.Sleep(20 * time.Millisecond) // between two questions; the deadline bounds the wait
	}
}

func isHeldBy(name, holder string) func(pageState) bool {
	return func(state pageState) bool {
		for _, l := range state.Leases {
			if l.Name == name {
				return l.Held && l.Holder == holder
			}
		}
		return false
	}
}

func acquireAs(t *testing.T, client *transport.Client, name string) *lease.Tenure {
	t.Helper()
	l, err := lease.New(client, name, lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	tenure, err := l.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

func TestTheStatusPageShowsLeasesOfServeAndEndsWithIt(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(build(t), "serve", "--memory", "--addr", "127.0.0.1:0")
	page, address, lines := launchWithPage(t, cmd, "listening on ")
	first := acquireAs(t, dialTest(t, address, "gateway-a"), "press-7")
	state := eventually(t, page, isHeldBy("press-7", "gateway-a"))
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
	state = eventually(t, page, isHeldBy("press-7", "gateway-b"))
	if len(state.Timeline) == 0 || state.Timeline[0].From != "gateway-a" || state.Timeline[0].Cause != statestore.CauseReleased {
		t.Errorf("the timeline is %+v", state.Timeline)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var rest []string
	for lines.Scan() {
		rest = append(rest, lines.Text())
	}
	if err := await.Result(cmd.Wait); err != nil || strings.Join(rest, "\n") != "stopped" {
		t.Errorf("%v; said %q", err, rest)
	}
}

func TestTheStatusPageShowsTheLeasesAndTheRoleOfAttachedStores(t *testing.T) {
	t.Parallel()
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	path := build(t)
	page, _, _ := launchWithPage(t, exec.Command(path, "attach", broker, "--memory"), "attached to ")
	acquireAs(t, dialTest(t, broker, "gateway-a"), "press-7")
	if state := eventually(t, page, isHeldBy("press-7", "gateway-a")); !state.Node.Ready || state.Info.Mode != "attach" || state.Info.Address != broker {
		t.Errorf("the page shows %+v, %+v", state.Node, state.Info)
	}
	spare, _, _ := launchWithPage(t, exec.Command(path, "attach", broker, "--wait"), "standing by on ")
	if state := stateOf(t, spare); state.Node.Ready || state.Node.Role != "standby" {
		t.Errorf("the page of the spare shows %+v", state.Node)
	}
}

func TestAFlagOfTheStatusPageThatIsWrongIsRefused(t *testing.T) {
	path := build(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		want      string
	}{
		{"an address that others reach", []string{"--admin", "0.0.0.0:0"}, exitUsage, "--admin-insecure"},
		{"no address", []string{"--admin", "8080"}, exitUsage, "is not the address of a status page"},
		{"an address that is taken", []string{"--admin", taken.Addr().String()}, exitFailure, "choose another with --admin"},
		{"values without a page", []string{"--admin-values"}, exitUsage, "give --admin too"},
		{"a name without a page", []string{"--admin-host", "x"}, exitUsage, "give --admin too"},
	} {
		for _, command := range [][]string{{"serve", "--memory", "--addr", "127.0.0.1:0"}, {"attach", "mqtt://127.0.0.1:1", "--memory"}} {
			t.Run(test.name+"/"+command[0], func(t *testing.T) {
				cmd := exec.Command(path, append(command, test.arguments...)...)
				out, err := cmd.CombinedOutput()
				if code := cmd.ProcessState.ExitCode(); err == nil || code != test.code || !strings.Contains(string(out), test.want) {
					t.Errorf("exit code %d, want %d and %q in\n%s", code, test.code, test.want, out)
				}
			})
		}
	}
}

// A pod, a unit or a shell has one TENURE_ADMIN for the process and the commands that ask it.
func TestOneAddressOfTheStatusPageIsForAllCommands(t *testing.T) {
	t.Parallel()
	path := build(t)
	for _, form := range []string{"127.0.0.1:%s", "http://127.0.0.1:%s", "http://localhost:%s/", ":%s"} {
		t.Run(form, func(t *testing.T) {
			free, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := net.SplitHostPort(free.Addr().String())
			_ = free.Close()
			environment := append(os.Environ(), "TENURE_ADMIN="+fmt.Sprintf(form, port), "HTTP_PROXY=http://127.0.0.1:1")
			serve := exec.Command(path, "serve", "--memory", "--addr", "127.0.0.1:0", "--admin-insecure")
			serve.Env = environment
			launch(t, serve, "listening on ")
			for _, test := range []struct {
				want      string
				arguments []string
			}{
				{"ready: active", []string{"health"}},
				{"ok", []string{"health", "--live"}},
				{"serve active memory only", []string{"top"}},
			} {
				cmd := exec.Command(path, test.arguments...)
				cmd.Env = environment
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.Contains(string(out), test.want) {
					t.Errorf("%q: %v, not %q: %s", test.arguments, err, test.want, out)
				}
			}
		})
	}
}

func TestHealthSaysWithItsExitCodeWhetherAStoreAnswers(t *testing.T) {
	t.Parallel()
	path := build(t)
	page, address, _ := launchWithPage(t, exec.Command(path, "serve", "--memory", "--addr", "127.0.0.1:0"), "listening on ")
	page = strings.TrimPrefix(page, "http://")
	_, port, _ := net.SplitHostPort(page)
	broker := "mqtt://" + mosquitto.Start(t, "").Address // without a store
	spare, _, _ := launchWithPage(t, exec.Command(path, "attach", attachedBroker(t, path), "--wait"), "standing by on ")
	spare = strings.TrimPrefix(spare, "http://")
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := closed.Addr().String()
	_ = closed.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	other := otherPage(t)
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		want      string
	}{
		{"a page that is ready", []string{"--admin", page}, 0, "ready: active"},
		{"the same by the address of all interfaces", []string{"--admin", ":" + port}, 0, "ready: active"},
		{"a page of a standby", []string{"--admin", spare}, exitUnreachable, "not ready: standby"},
		{"a standby that is allowed", []string{"--admin", spare, "--standby-ok"}, 0, "ready: standby"},
		{"a standby that works", []string{"--admin", spare, "--live"}, 0, "ok"},
		{"no page", []string{"--admin", unused}, exitUnreachable, "does not answer"},
		{"a page that hangs", []string{"--admin", silent.Addr().String(), "--timeout", "100ms"}, exitUnreachable, "no answer within --timeout 100ms"},
		{"a broker in place of a page", []string{"--admin", strings.TrimPrefix(address, "mqtt://")}, exitUnreachable, "the status page of tenure?"},
		{"another page", []string{"--admin", other}, exitUnreachable, "is that the status page of tenure?"},
		{"a store", []string{"--broker", address}, 0, "ready: the store answers"},
		{"no broker", []string{"--broker", "mqtt://" + unused, "--timeout", "300ms"}, exitUnreachable, ""},
		{"a broker without a store", []string{"--broker", broker, "--timeout", "2s"}, exitUnreachable, ""},
		{"no address", []string{"--admin", "8080"}, exitUsage, "is not the address of a status page"},
		{"a standby without a page", []string{"--standby-ok"}, exitUsage, "need --admin"},
		{"life without a page", []string{"--live"}, exitUsage, "need --admin"},
		{"life of a standby", []string{"--live", "--standby-ok", "--admin", page}, exitUsage, "give one of them"},
		{"no time", []string{"--timeout", "0s"}, exitUsage, "not positive"},
		{"JSON", []string{"--admin", page, "--json"}, 0, `{"healthy":true,"answer":"ready: active"}`},
		{"JSON of the store", []string{"--broker", address, "--json"}, 0, `{"healthy":true,"answer":"ready: the store answers"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command(path, append([]string{"health"}, test.arguments...)...)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.want) {
				t.Errorf("exit code %d, want %d and %q in\n%s", code, test.code, test.want, out)
			}
			if strings.Count(string(out), "\n") != 1 {
				t.Errorf("not one line:\n%s", out)
			}
		})
	}
	// A script has the reason as JSON, and an operator has it on standard error.
	got := tenure(t, "", nil, "health", "--admin", spare, "--json")
	if got.code != exitUnreachable || !strings.HasPrefix(got.stdout, `{"healthy":false,"answer":"not ready: standby: `) || !strings.HasPrefix(got.stderr, "tenure: not ready: standby: ") {
		t.Errorf("a standby as JSON: %+v", got)
	}
}

// attachedBroker returns the URL of a broker with a store.
func attachedBroker(t *testing.T, path string) string {
	t.Helper()
	broker := "mqtt://" + mosquitto.Start(t, "").Address
	launch(t, exec.Command(path, "attach", broker, "--memory"), "attached to ")
	return broker
}

// otherPage returns the address of a server that says 200 to everything.
func otherPage(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "welcome") })}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		_ = await.Receive(done)
	})
	return listener.Addr().String()
}
