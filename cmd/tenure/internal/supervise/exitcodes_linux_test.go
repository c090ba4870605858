package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
)

func TestTheCodeOfTheProgramIsKeptAndWhatItLeftIsEnded(t *testing.T) {
	broker := server(t)
	for _, role := range []string{"leaves", "headless leaves"} {
		for _, verb := range []string{"run", "lock"} {
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, role, verb, "--ttl", "2s", "--grace", "100ms", "press")
			n.awaitStart()
			n.awaitGone()
			if code := n.awaitExit(); code != 7 {
				t.Errorf("%s: exit code %d, want the program's, 7", verb, code)
			}
			awaitFree(t, broker, "press", time.Second)
		}
	}
}

// A program that has ended does not run again because its guard is killed while that ends what the
// program left.
func TestTheCodeOfTheProgramOutlivesItsGuard(t *testing.T) {
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "leaves", verb, "--ttl", "10m", "--grace", "1m", "press")
		n.awaitStart()
		guard := n.guard()
		await.Until(func() bool {
			left, err := descendants(guard, nil)
			if err != nil {
				t.Fatal(err)
			}
			return len(left) == 2 // the program itself is gone
		})
		if err := unix.Kill(guard, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.awaitGone()
		if code := n.awaitExit(); code != 7 {
			t.Errorf("%s: exit code %d, want the program's, 7", verb, code)
		}
	}
}

func TestAHolderThatWasFrozenEndsLockWithItsCode(t *testing.T) {
	t.Parallel()
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "daemon", "lock", "--ttl", "1s", "--grace", "100ms", "press")
	n.awaitStart()
	n.signal(unix.SIGSTOP)
	n.awaitGone()
	n.signal(unix.SIGCONT)
	if code := n.awaitExit(); code != 66 {
		t.Errorf("exit code %d, want 66", code)
	}
}

func TestExitCodesOfRunAndLock(t *testing.T) {
	broker := server(t)
	held := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "polite", "lock", "held")
	held.awaitStart()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		want      string // in standard error
	}{
		{"success", []string{"lock", "free", "--", "true"}, 0, ""},
		{"the code of the program", []string{"lock", "free", "--", "sh", "-c", "exit 3"}, 3, ""},
		{"a signal ended the program", []string{"run", "free", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		{"held, tried once", []string{"lock", "--wait", "0", "held", "--", "true"}, 64, `held by "`},
		{"held, and the wait timed out", []string{"lock", "--wait", "100ms", "held", "--", "true"}, 65, "--wait 100ms"},
		{"no broker", []string{"lock", "--broker", "mqtt://127.0.0.1:1", "--timeout", "100ms", "free", "--", "true"}, 67, "127.0.0.1:1"},
		{"no name", []string{"run", "--", "true"}, 2, "NAME -- COMMAND"},
		{"a grace that does not fit", []string{"run", "--ttl", "1s", "--grace", "900ms", "free", "--", "true"}, 2, "--ttl 1s cannot carry --grace 900ms"},
		{"a TTL that carries no grace", []string{"run", "--ttl", "150ms", "free", "--", "true"}, 2, "make --ttl longer"},
		{"a grace that does not fit, and the cure", []string{"run", "--ttl", "5s", "--grace", "2s", "free", "--", "true"}, 2, "make --ttl longer, four times --grace"},
		{"the TTL of the cure", []string{"lock", "--ttl", "6.061s", "--grace", "2s", "free", "--", "true"}, 0, ""},
		{"the grace of the cure", []string{"lock", "--ttl", "5s", "--grace", "1.65s", "free", "--", "true"}, 0, ""},
		{"instant, with the default TTL", []string{"lock", "--instant", "free", "--", "true"}, 0, "the child ended"},
		{"instant, with a TTL that no keep-alive carries", []string{"run", "--instant", "--ttl", "48h", "free", "--", "true"}, 2, "make --ttl at most 27h18m"},
		{"taken by force from lock", []string{"lock", "--ttl", "1m", "taken", "--", tenure, "del", "--broker", broker, "taken"}, 66, "was lost while the child ran"},
		{"taken by force from run", []string{"run", "--ttl", "1m", "taken", "--", tenure, "del", "--broker", broker, "taken"}, 66, "was lost while the child ran"},
		{"the client id taken over from lock", []string{"lock", "--client-id", "one", "two", "--", "sh", "-c", tenure + " get --broker " + broker + " --client-id one x; exec sleep 1000"}, 66, "took over this client id"},
		{"the client id taken over from run", []string{"run", "--client-id", "one", "one", "--", "sh", "-c", tenure + " get --broker " + broker + " --client-id one x; exec sleep 1000"}, 66, "took over this client id"},
		{"no broker, and a shorter wait", []string{"lock", "--broker", "mqtt://127.0.0.1:1", "--wait", "50ms", "free", "--", "true"}, 67, "--wait 50ms"},
		{"no TTL", []string{"run", "--ttl", "0", "free", "--", "true"}, 2, "--ttl 0s must be positive"},
		{"a TTL that no store has", []string{"run", "--ttl", "1ms", "free", "--", "true"}, 2, "--ttl 1ms must be whole milliseconds, at least 50ms"},
		{"a program that is not there", []string{"run", "free", "--", "no-such-program"}, 127, "cannot start no-such-program: it was not found"},
		{"a program that cannot be executed", []string{"lock", "free", "--", text}, 126, "cannot start " + text},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, tenure, test.arguments...)
			cmd.Env = append(os.Environ(), "TENURE_BROKER="+broker)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.want) {
				t.Errorf("exit code %d, want %d and %q in\n%s", code, test.code, test.want, out)
			}
		})
	}
}

// A process that ends before it becomes the program has no code of the program's: 2 would say that another try
// is no use.
func TestTheEndOfAProcessThatDidNotBecomeTheProgramIsAFailure(t *testing.T) {
	for name, test := range map[string]struct {
		program string
		signal  unix.Signal // before it may become the program; 0: it may
		failed  bool
		code    int
	}{
		"its runtime ended it":      {"true", unix.SIGQUIT, true, 2}, // as when it gets no thread
		"it was killed":             {"true", unix.SIGKILL, true, -1},
		"the program ends":          {"exit 2", 0, false, 2},
		"the program cannot be run": {"", 0, false, CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			path := "/bin/sh"
			if test.program == "" {
				path = filepath.Join(t.TempDir(), "no-program")
			}
			cmd := &exec.Cmd{Path: tenure, Args: []string{guardName, "free", path, "sh", "-c", test.program}}
			socket, theirs, err := connect(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if err := helpers.start(cmd, theirs...); err != nil {
				t.Fatal(err)
			}
			g := &guardProcess{cmd: cmd, socket: socket, encoder: json.NewEncoder(socket), reports: make(chan report), stopped: make(chan struct{})}
			g.tasks.Go(g.read)
			defer await.Result(func() bool { g.kill(); return true })
			latest := now() + 10*await.Patience
			g.send(request{Start: &start{Grace: time.Second, Bounds: bounds{Stop: latest, Kill: latest}}})
			made := await.Receive(g.reports)
			if made.Made == 0 {
				t.Fatalf("%+v", made)
			}
			if test.signal != 0 {
				await.Until(func() bool { // before that, SIGQUIT has its usual effect
					line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", made.Made))
					caught, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", made.Made))
					return err == nil && strings.HasPrefix(string(line), starterName) && catchesQuit(string(caught))
				})
				_ = unix.Kill(made.Made, test.signal)
			} else {
				g.send(request{Run: true})
			}
			ended := await.Receive(g.reports)
			if ended.Ended == nil || ended.Ended.Code != test.code || (ended.Failed != "") != test.failed {
				t.Errorf("%+v, failed %q", ended.Ended, ended.Failed)
			}
			if r := await.Receive(g.reports); !r.Gone {
				t.Errorf("%+v", r)
			}
		})
	}
}

// catchesQuit reports whether a process catches SIGQUIT, by its status in /proc.
func catchesQuit(status string) bool {
	_, line, _ := strings.Cut(status, "SigCgt:")
	line, _, _ = strings.Cut(strings.TrimSpace(line), "\n")
	caught, err := strconv.ParseUint(line, 16, 64)
	return err == nil && caught&(1<<(unix.SIGQUIT-1)) != 0
}

// starterOf returns the process of a supervisor that becomes the program, 0 if there is none.
func starterOf(supervisor int) int {
	find := func(parent int, name string) int {
		task := fmt.Sprintf("/proc/%d/task", parent)
		threads, _ := os.ReadDir(task)
		for _, thread := range threads {
			children, _ := os.ReadFile(filepath.Join(task, thread.Name(), "children"))
			for _, child := range strings.Fields(string(children)) {
				arguments, _ := os.ReadFile("/proc/" + child + "/cmdline")
				if pid, err := strconv.Atoi(child); err == nil && strings.HasPrefix(string(arguments), name) {
					return pid
				}
			}
		}
		return 0
	}
	if guard := find(supervisor, guardName); guard != 0 {
		return find(guard, starterName)
	}
	return 0
}

// The process is killed as soon as it can be seen. Often it is the program by then, so there are many tries.
func TestALockWhoseProgramDidNotStartFailsAndReleasesTheLease(t *testing.T) {
	broker := server(t)
	for range 100 {
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "plain", "lock", "--ttl", "10m", "--grace", "1m", "press")
		starter := 0
		await.Until(func() bool { // or it ran, and was not seen
			starter = starterOf(n.cmd.Process.Pid)
			return starter != 0 || len(n.lines) > 0
		})
		if starter == 0 {
			n.signal(unix.SIGTERM)
		} else {
			_ = unix.Kill(starter, unix.SIGKILL)
		}
		code := n.awaitExit()
		awaitFree(t, broker, "press", await.Patience)
		if strings.Contains(n.log.String(), "before it became the program") {
			if code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			return
		}
	}
	t.Error("no process that was killed at its start counts as one that did not become the program")
}
