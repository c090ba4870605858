package supervise

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
)

func TestTheCodeOfTheProgramIsKeptAndWhatItLeftIsEnded(t *testing.T) {
	t.Parallel()
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "leaves", verb, "--ttl", "2s", "--grace", "100ms", "press")
		n.awaitStart()
		n.awaitGone()
		if code := n.awaitExit(); code != 7 {
			t.Errorf("%s: exit code %d, want the program's, 7", verb, code)
		}
		awaitFree(t, broker, "press", time.Second)
	}
}

// A program that has ended does not run again because its guard is killed while that ends what the
// program left.
func TestTheCodeOfTheProgramOutlivesItsGuard(t *testing.T) {
	t.Parallel()
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

func TestAHolderThatWasFrozenEndsLockAndLetsRunCampaignAgain(t *testing.T) {
	t.Parallel()
	broker := server(t)
	for _, verb := range []string{"run", "lock"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "daemon", verb, "--ttl", "1s", "--grace", "100ms", verb)
			n.awaitStart()
			n.signal(unix.SIGSTOP)
			n.awaitGone()
			n.signal(unix.SIGCONT)
			if verb == "run" {
				awaitLogs(t, n, "the child starts", 2)
				n.signal(unix.SIGTERM)
				n.awaitExit()
			} else if code := n.awaitExit(); code != 102 {
				t.Errorf("exit code %d, want 102", code)
			}
		})
	}
}

func TestExitCodesOfRunAndLock(t *testing.T) {
	t.Parallel()
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
		{"held, tried once", []string{"lock", "--wait", "0", "held", "--", "true"}, 100, `held by "`},
		{"held, and the wait timed out", []string{"lock", "--wait", "100ms", "held", "--", "true"}, 101, "--wait 100ms"},
		{"timed out, with a code of the caller's", []string{"lock", "-E", "75", "--wait", "100ms", "held", "--", "true"}, 75, "--wait 100ms"},
		{"no broker", []string{"lock", "-E", "75", "--broker", "mqtt://127.0.0.1:1", "--timeout", "100ms", "free", "--", "true"}, 103, "127.0.0.1:1"},
		{"held for longer than the program runs", []string{"lock", "--at-least", "100ms", "short", "--", "sh", "-c", "exit 3"}, 3, ""},
		{"a TTL that carries no grace", []string{"run", "--ttl", "150ms", "free", "--", "true"}, 2, "make --ttl longer"},
		{"a grace that does not fit, and the cure", []string{"run", "--ttl", "5s", "--grace", "2s", "free", "--", "true"}, 2, "make --ttl longer, four times --grace"},
		{"instant, with the default TTL", []string{"lock", "--instant", "free", "--", "true"}, 0, "the child ended"},
		{"instant, with a TTL that no keep-alive carries", []string{"run", "--instant", "--ttl", "48h", "free", "--", "true"}, 2, "--instant, for two thirds of --ttl: 32h0m0s is not"},
		{"taken by force from lock", []string{"lock", "--ttl", "1m", "taken", "--", tenure, "del", "--broker", broker, "taken"}, 102, "was lost while the child ran"},
		{"the client id taken over from lock", []string{"lock", "--client-id", "one", "two", "--", "sh", "-c", tenure + " get --broker " + broker + " --client-id one x; exec sleep 1000"}, 102, "took over this client id"},
		{"the client id taken over from run", []string{"run", "--client-id", "one", "one", "--", "sh", "-c", tenure + " get --broker " + broker + " --client-id one x; exec sleep 1000"}, 102, "took over this client id"},
		{"no broker, and a shorter wait", []string{"lock", "--broker", "mqtt://127.0.0.1:1", "--wait", "50ms", "free", "--", "true"}, 103, "--wait 50ms"},
		{"no TTL", []string{"run", "--ttl", "0", "free", "--", "true"}, 2, "--ttl 0s must be positive"},
		{"a TTL that no store has", []string{"run", "--ttl", "1ms", "free", "--", "true"}, 2, "--ttl 1ms must be whole milliseconds, at least 50ms"},
		{"a program that is not there", []string{"run", "free", "--", "no-such-program"}, 127, `"no-such-program": executable file not found`},
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
