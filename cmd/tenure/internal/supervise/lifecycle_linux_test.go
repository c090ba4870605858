package supervise

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
)

// dial returns a client of a server.
func dial(t *testing.T, broker string) *transport.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, broker, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Ctrl-C at any moment leaves no child and no lease: while tenure starts, connects, campaigns,
// starts its guard, and while the program runs.
func TestAnInterruptAtAnyMomentLeavesNoProgramAndNoLease(t *testing.T) {
	broker := server(t)
	client := dial(t, broker)
	for i, after := 0, time.Duration(0); after < 120*time.Millisecond; i++ {
		verb := []string{"run", "lock"}[i%2]
		n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "session", verb, "--ttl", "10s", "--grace", "100ms", "press")
		time.Sleep(after) // any moment is right
		n.signal(unix.SIGINT)
		code := n.awaitExit()
		if code != 130 && code != 137 { // the program ignores everything
			t.Errorf("%s: exit code %d after an interrupt at %v", verb, code, after)
		}
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		if entry, err := client.Get(ctx, "press"); err != nil || entry.Exists {
			t.Errorf("%s: after an interrupt at %v the store has %q: %v", verb, after, entry.Value, err)
		}
		cancel()
		// The lock of the file is free when the program and all that it started are gone.
		lock, err := os.OpenFile(n.lockFile, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("%s: after an interrupt at %v a process of the program lives: %v", verb, after, err)
		}
		_ = lock.Close()
		if after += 500 * time.Microsecond; after > 20*time.Millisecond {
			after += 10 * time.Millisecond
		}
	}
}

func TestTheCodeOfTheProgramIsKeptAndWhatItLeftIsEnded(t *testing.T) {
	broker := server(t)
	for _, role := range []string{"leaves", "headless leaves"} {
		for _, verb := range []string{"run", "lock"} {
			n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, role, verb, "--ttl", "2s", "--grace", "100ms", "press")
			n.awaitStart()
			n.awaitGone()
			if code := n.awaitExit(); code != 7 {
				t.Errorf("%s: exit code %d, want that of the program, 7", verb, code)
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
		for deadline := time.Now().Add(await.Patience); ; time.Sleep(time.Millisecond) {
			left, err := descendants(guard, nil)
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("%s: the program does not end: %v, %v", verb, left, err)
			}
			if len(left) == 2 { // the program itself is gone
				break
			}
		}
		if err := unix.Kill(guard, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.awaitGone()
		if code := n.awaitExit(); code != 7 {
			t.Errorf("%s: exit code %d, want that of the program, 7", verb, code)
		}
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "plain", "run", "press")
	n.awaitStart()
	for _, s := range []syscall.Signal{unix.SIGHUP, unix.SIGUSR1, unix.SIGTERM} {
		n.signal(s)
		if got := n.awaitLine("got "); got != s.String() {
			t.Errorf("the program got %q, want %q", got, s)
		}
	}
	if code := n.awaitExit(); code != 128+int(unix.SIGTERM) {
		t.Errorf("exit code %d, want that of a program that SIGTERM ended", code)
	}
}

func TestASecondInterruptKillsAProgramThatIgnoresTheFirst(t *testing.T) {
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "obstinate", "run", "--ttl", "10m", "--grace", "1m", "press")
	n.awaitStart()
	n.signal(unix.SIGINT)
	n.awaitLine("got interrupt")
	n.signal(unix.SIGINT)
	n.awaitGone()
	if code := n.awaitExit(); code != 128+int(unix.SIGKILL) {
		t.Errorf("exit code %d, want that of a program that was killed", code)
	}
	awaitFree(t, broker, "press", await.Patience)
}

// A lease that was deleted may have another holder at once, so there is no time for a grace.
func TestAProgramWhoseLeaseWasTakenIsKilledAtOnce(t *testing.T) {
	broker := server(t)
	client := dial(t, broker)
	const grace = 3 * time.Second // much longer than a kill takes
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "obstinate", "lock", "--ttl", "20s", "--grace", grace.String(), "press")
	n.awaitStart()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for !strings.Contains(n.log.String(), "tenure has ended") { // it begins to watch its key a while after it was acquired
		if ctx.Err() != nil {
			t.Fatal("the tenure does not end")
		}
		if _, err := client.Del(ctx, "press", transport.DelOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	ended := now()
	if gone := n.awaitGone(); gone-ended >= grace {
		t.Errorf("the program was gone %v after its lease, and had its whole grace", gone-ended)
	}
	if code := n.awaitExit(); code != 66 || !strings.Contains(n.log.String(), "the lease was deleted") {
		t.Errorf("exit code %d, want 66 and the cause", code)
	}
}

func TestAHolderThatWasFrozenEndsLockWithItsCode(t *testing.T) {
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

func TestARunThatWasFrozenCampaignsAgain(t *testing.T) {
	broker := server(t)
	lock := filepath.Join(t.TempDir(), "lock")
	n := startNode(t, lock, broker, "daemon", "run", "--ttl", "1s", "--grace", "100ms", "press")
	n.awaitStart()
	n.signal(unix.SIGSTOP)
	n.awaitGone()
	n.signal(unix.SIGCONT)
	// Its next program has the same pipe, which this test no longer reads; the lease shows it.
	client := dial(t, broker)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for strings.Count(n.log.String(), "the child starts") < 2 {
		if ctx.Err() != nil {
			t.Fatal("it did not campaign again")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := client.Get(ctx, "press"); err != nil {
		t.Error(err)
	}
}

// With --instant the broker releases the lease when the connection of a killed supervisor closes.
func TestWithInstantTheProgramOfAKilledSupervisorIsKilledAtOnce(t *testing.T) {
	broker := server(t)
	lock := filepath.Join(t.TempDir(), "lock")
	for range *failovers {
		active := startNode(t, lock, broker, "daemon", "run", "--instant", "--ttl", "5s", "press")
		active.awaitStart()
		standby := startNode(t, lock, broker, "polite", "run", "--instant", "--ttl", "5s", "press")
		awaitLog(t, standby, "standing by")
		active.signal(unix.SIGKILL)
		gone := active.awaitGone()
		started := standby.awaitStart()
		t.Logf("the next program started %v after this test saw the end of the one before", started-gone)
		standby.signal(unix.SIGTERM)
		standby.awaitExit()
	}
}

// PR_SET_PDEATHSIG is what is left then. (What the program started can live on.)
func TestTheProgramDiesWithSupervisorAndGuard(t *testing.T) {
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "obstinate", "run", "press")
	n.awaitStart()
	guard := n.guard()
	if err := unix.Kill(guard, unix.SIGSTOP); err != nil { // it does not see the end of the supervisor
		t.Fatal(err)
	}
	n.signal(unix.SIGKILL)
	if err := unix.Kill(guard, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.awaitGone()
}

// A log that is not read stops the program, perhaps, but not its guard.
func TestAnUnreadLogKeepsNoProgramAlive(t *testing.T) {
	broker := server(t)
	unread, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unread.Close()
	n := startLogging(t, stderr, filepath.Join(t.TempDir(), "lock"), broker, "flood", "run", "--ttl", "10m", "--grace", "100ms", "press")
	_ = stderr.Close()
	n.awaitStart()
	time.Sleep(100 * time.Millisecond) // the pipe is full long before
	n.signal(unix.SIGKILL)
	n.awaitGone()
}

// A shell may have children, and then become tenure. They are none of its business, and what they
// leave while checks of the health run is not.
func TestProcessesFromBeforeAreSpared(t *testing.T) {
	broker := server(t)
	cmd := exec.Command("/bin/sh", "-c",
		`(sleep 0.2; sleep 1000 & echo $!) & exec "$0" run --broker `+broker+` --ttl 1s --health 'true' --health-every 10ms press -- sleep 1000`, built.path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var sleeper int
	if _, err := fmt.Fscan(out, &sleeper); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(sleeper, unix.SIGKILL)
	for deadline := time.Now().Add(await.Patience); !strings.Contains(log.String(), "the child starts"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the child does not start")
		}
	}
	parent := func() int {
		e, ok := readProcess(sleeper)
		if !ok || e.isZombie() {
			t.Error("a process that was there before tenure was ended")
			return cmd.Process.Pid
		}
		return e.parent
	}
	for deadline := time.Now().Add(await.Patience); parent() != cmd.Process.Pid; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the process was not left to tenure")
		}
	}
	for checks, deadline := 0, time.Now().Add(await.Patience); checks < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no check is seen")
		}
		entries, _ := descendants(cmd.Process.Pid, nil)
		if slices.ContainsFunc(entries, func(e procEntry) bool { return e.name == "sh" || e.name == "true" }) {
			checks++
		}
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e, ok := readProcess(sleeper); !ok || e.isZombie() {
		t.Error("a process that was there before tenure was ended")
	}
	_ = unix.Kill(sleeper, unix.SIGKILL) // it has the output, too
	_ = await.Result(cmd.Wait)
}

// The guard hears of renewals: a program outlives the first deadlines by far.
func TestAProgramRunsForManyTTLs(t *testing.T) {
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "polite", "lock", "--ttl", "500ms", "press")
	n.awaitStart()
	time.Sleep(2 * time.Second)
	n.signal(unix.SIGUSR1)
	n.awaitLine("got user defined signal 1")
	n.signal(unix.SIGTERM)
	if code := n.awaitExit(); code != 0 && code != 137 { // the grace is short on a busy machine
		t.Errorf("exit code %d, want that of the program, 0", code)
	}
}

// The guard holds the connection open, so that the broker cannot release the lease before the
// program is gone, however late the guard is.
func TestWithInstantTheLeaseIsNotReleasedBeforeALateGuardHasActed(t *testing.T) {
	broker := server(t)
	lock := filepath.Join(t.TempDir(), "lock")
	active := startNode(t, lock, broker, "daemon", "run", "--instant", "--ttl", "5s", "press")
	active.awaitStart()
	standby := startNode(t, lock, broker, "polite", "run", "--instant", "--ttl", "5s", "press")
	awaitLog(t, standby, "standing by")
	guard := active.guard()
	if err := unix.Kill(guard, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	active.signal(unix.SIGKILL)
	time.Sleep(300 * time.Millisecond) // how late the guard is
	if err := unix.Kill(guard, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	active.awaitGone()
	standby.awaitStart() // it fails the test if the lock of the file was taken
}

func awaitLog(t *testing.T, n *node, text string) {
	t.Helper()
	awaitLogs(t, n, text, 1)
}

// awaitLogs waits until the log has a text so often.
func awaitLogs(t *testing.T, n *node, text string, times int) {
	t.Helper()
	for deadline := time.Now().Add(await.Patience); strings.Count(n.log.String(), text) < times; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say %q %d times", text, times)
		}
	}
}

func TestTheProgramKnowsItsLease(t *testing.T) {
	broker := server(t)
	out, err := exec.Command(built.path, "lock", "--broker", broker, "--ttl", "20s", "--holder", "10.0.0.7:80", "press-7/active", "--",
		"/bin/sh", "-c", `echo "$TENURE_NAME $TENURE_TOKEN $TENURE_HOLDER $TENURE_DEADLINE"`).Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(out))
	if len(fields) != 4 || fields[0] != "press-7/active" || fields[2] != "10.0.0.7:80" {
		t.Fatalf("the program has %q", out)
	}
	if token, err := hlc.ParseToken(fields[1]); err != nil || token.IsZero() {
		t.Errorf("token %q: %v", fields[1], err)
	}
	deadline, err := time.Parse(time.RFC3339Nano, fields[3])
	if left := time.Until(deadline); err != nil || left <= 0 || left > 20*time.Second || !strings.HasSuffix(fields[3], "Z") {
		t.Errorf("deadline %q, %v from now: %v", fields[3], left, err)
	}
}

// A node whose health check fails does not campaign, and one that becomes unhealthy hands over.
// What a check leaves behind is ended.
func TestAnUnhealthyNodeHandsOver(t *testing.T) {
	broker := server(t)
	dir := t.TempDir()
	lock, healthy := filepath.Join(dir, "lock"), filepath.Join(dir, "healthy")
	check := `setsid sh -c 'exec sleep 1000' & test -e ` + healthy
	sick := startNode(t, lock, broker, "polite", "run", "--ttl", "1s", "--health", check, "--health-every", "20ms", "press")
	awaitLog(t, sick, "--health: exit status 1")
	if err := os.WriteFile(healthy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sick.awaitStart()
	other := startNode(t, lock, broker, "polite", "run", "--ttl", "1s", "press")
	if err := os.Remove(healthy); err != nil {
		t.Fatal(err)
	}
	sick.awaitGone()
	other.awaitStart()
	if left, _ := descendants(sick.cmd.Process.Pid, nil); len(left) > 2 {
		t.Errorf("checks have left %d processes: %v", len(left), left)
	}
}

// The program of a check that hangs is killed, with what it started.
func TestACheckThatHangsIsKilled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := Check(ctx, `echo "it hangs"; setsid sleep 1000 & sleep 1000`, os.Environ())
	if err == nil || !strings.Contains(err.Error(), "killed") || !strings.Contains(err.Error(), "it hangs") {
		t.Errorf("%v, want killed, and what it said", err)
	}
	for deadline := time.Now().Add(await.Patience); ; helpers.sweep(0) {
		left, _ := descendants(os.Getpid(), nil)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it has left %v", left)
		}
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
		{"no command", []string{"run", "free", "--"}, 2, "give a command after free --"},
		{"no dashes", []string{"run", "free", "true"}, 2, "free -- COMMAND"},
		{"an argument too many", []string{"lock", "free", "too", "--", "true"}, 2, `"too" is one argument too many`},
		{"a grace that does not fit", []string{"run", "--ttl", "1s", "--grace", "900ms", "free", "--", "true"}, 2, "--ttl 1s cannot carry --grace 900ms"},
		{"a TTL that carries no grace", []string{"run", "--ttl", "200ms", "free", "--", "true"}, 2, "make --ttl at least 442ms"},
		{"a grace that does not fit, and the cure", []string{"run", "--ttl", "5s", "--grace", "1s", "free", "--", "true"}, 2, "make --ttl at least 6.123s, or --grace at most 816ms"},
		{"the TTL of the cure", []string{"lock", "--ttl", "6.123s", "--grace", "1s", "free", "--", "true"}, 0, ""},
		{"the grace of the cure", []string{"lock", "--ttl", "5s", "--grace", "816ms", "free", "--", "true"}, 0, ""},
		{"a negative grace", []string{"run", "--grace", "-1s", "free", "--", "true"}, 2, "is negative"},
		{"a wait that is none", []string{"lock", "--wait", "soon", "free", "--", "true"}, 2, "30s, 0, or forever"},
		{"a check's flags without a check", []string{"run", "--health-every", "1s", "free", "--", "true"}, 2, "need --health"},
		{"instant, with the default TTL", []string{"lock", "--instant", "free", "--", "true"}, 0, "the child ended"},
		{"instant, with a TTL that no keep-alive carries", []string{"run", "--instant", "--ttl", "48h", "free", "--", "true"}, 2, "make --ttl at most 27h18m"},
		{"taken by force from lock", []string{"lock", "--ttl", "1m", "taken", "--", built.path, "del", "--broker", broker, "taken"}, 66, "was lost while the child ran"},
		{"taken by force from run", []string{"run", "--ttl", "1m", "taken", "--", built.path, "del", "--broker", broker, "taken"}, 66, "was lost while the child ran"},
		{"the client id taken over from lock", []string{"lock", "--client-id", "one", "two", "--", "sh", "-c", built.path + " get --broker " + broker + " --client-id one x; exec sleep 1000"}, 66, "took over this client id"},
		{"the client id taken over from run", []string{"run", "--client-id", "one", "one", "--", "sh", "-c", built.path + " get --broker " + broker + " --client-id one x; exec sleep 1000"}, 66, "took over this client id"},
		{"no broker, and a shorter wait", []string{"lock", "--broker", "mqtt://127.0.0.1:1", "--wait", "50ms", "free", "--", "true"}, 67, "--wait 50ms"},
		{"no name of a program", []string{"run", "free", "--", ""}, 2, "the name of the command is empty"},
		{"no TTL", []string{"run", "--ttl", "0", "free", "--", "true"}, 2, "--ttl 0s is not positive"},
		{"a TTL that no store has", []string{"run", "--ttl", "1ms", "free", "--", "true"}, 2, "--ttl 1ms must be whole milliseconds, at least 50ms"},
		{"a negative rank", []string{"run", "--rank", "-1", "free", "--", "true"}, 2, "the best rank is 0"},
		{"a program that is not there", []string{"run", "free", "--", "no-such-program"}, 127, "cannot start no-such-program: it was not found"},
		{"a program that cannot be executed", []string{"lock", "free", "--", text}, 126, "cannot start " + text},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, built.path, test.arguments...)
			cmd.Env = append(os.Environ(), "TENURE_BROKER="+broker)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.want) {
				t.Errorf("exit code %d, want %d and %q in\n%s", code, test.code, test.want, out)
			}
		})
	}
}

// A program gets its arguments and its environment as they are: large ones, and bytes that are no
// UTF-8. A variable of an outer lease does not hide that of this one. It also has the descriptors
// that tenure has inherited.
func TestTheProgramGetsWhatTenureWasGiven(t *testing.T) {
	broker := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	large := strings.Repeat("x", 120_000)
	for _, verb := range []string{"run", "lock"} {
		dir := filepath.Join(t.TempDir(), "\xff\xfe")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "program")
		script := `#!/bin/sh
echo "$1 ${#2} $LATIN ${#LARGE_0} ${#LARGE_6} $TENURE_NAME"; echo three >&3; echo four >&4; echo nine >&9
echo $(ls /proc/self/fd)
`
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		start := func(name string, arguments ...string) (line, open string) {
			cmd := exec.CommandContext(ctx, name, append(arguments, "caf\xe9", large)...)
			cmd.Env = append(os.Environ(), "LATIN=\xe9t\xe9", "TENURE_NAME=outer")
			for i := range 7 {
				cmd.Env = append(cmd.Env, fmt.Sprintf("LARGE_%d=%s", i, large))
			}
			cmd.ExtraFiles = []*os.File{write, write, nil, nil, nil, nil, write} // 3, 4 and 9
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%s: %v\n%s", verb, err, out)
			}
			line, open, _ = strings.Cut(string(out), "\n")
			return line, open
		}
		alone, openAlone := start(program)
		line, open := start(built.path, verb, "--broker", broker, "inner\xff", "--", program)
		if want := strings.Replace(alone, "outer", "inner\xff", 1); line != want || !strings.HasPrefix(line, "caf\xe9 120000 \xe9t\xe9 120000 120000 ") {
			t.Errorf("%s: the program has %q, want %q", verb, line, want)
		}
		if open != openAlone {
			t.Errorf("%s: the program has the descriptors %q, want %q", verb, open, openAlone)
		}
		_ = write.Close()
		text, err := io.ReadAll(read)
		if want := strings.Repeat("three\nfour\nnine\n", 2); err != nil || string(text) != want {
			t.Errorf("%s: the program wrote %q to inherited descriptors, want %q: %v", verb, text, want, err)
		}
	}
}

// What fits tenure alone may not fit with the variables of the lease. That is final.
func TestAnEnvironmentThatIsTooLargeEndsTenure(t *testing.T) {
	broker := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	command := func(verb string, size int) *exec.Cmd {
		cmd := exec.CommandContext(ctx, built.path, verb, "--broker", broker, "press", "--", "true")
		cmd.Env = os.Environ()
		for i := 0; size > 0; i++ {
			part := min(size, 100_000)
			cmd.Env = append(cmd.Env, fmt.Sprintf("PAD_%02d=%s", i, strings.Repeat("x", part)))
			size -= part
		}
		return cmd
	}
	for _, verb := range []string{"run", "lock"} {
		tooLarge := sort.Search(8<<20, func(size int) bool {
			cmd := command(verb, size)
			if err := cmd.Start(); err != nil {
				return true
			}
			_ = cmd.Process.Kill()
			_ = await.Result(cmd.Wait)
			return false
		})
		cmd := command(verb, tooLarge-1)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 126 || !strings.Contains(string(out), "too large") {
			t.Errorf("%s: exit code %d, want 126 and the cause in\n%s", verb, code, out)
		}
	}
}

// With the /proc of another PID namespace no process of the program would be found, so there is none.
func TestAProcOfAnotherNamespaceIsRefused(t *testing.T) {
	broker := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for _, verb := range []string{"run", "lock"} {
		cmd := exec.CommandContext(ctx, built.path, verb, "--broker", broker, "press", "--", "true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Skipf("no PID namespace can be made here: %v", err)
		}
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "/proc") || !strings.Contains(string(out), "unshare --mount-proc") {
			t.Errorf("%s: exit code %d, want 1 and the cure in\n%s", verb, code, out)
		}
	}
}

// A connection that is dead and says nothing is replaced, though the guard has it, too; and an
// interrupt ends tenure meanwhile.
func TestWithInstantADeadConnectionIsReplaced(t *testing.T) {
	broker := server(t)
	network := startProxy(t, broker)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), network.address(), "polite", "run", "--instant", "--ttl", "2s", "press")
	n.awaitStart()
	network.awaitTraffic(t, 6) // renewals: a read that waits now began after the guard got the connection
	network.freeze()
	n.awaitGone()
	awaitLogs(t, n, "the child starts", 2)
	network.awaitTraffic(t, 6)
	network.freeze()
	n.signal(unix.SIGTERM)
	n.awaitExit()
}

// A second process with the client id of a holder ends its connection, so the broker releases the
// lease, though the holder's process is stopped. Its guard sees the end.
func TestWithInstantTheGuardSeesThatTheClientIDWasTakenOver(t *testing.T) {
	broker := server(t)
	n := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "daemon", "run", "--instant", "--client-id", "node", "--ttl", "5m", "press")
	n.awaitStart()
	n.signal(unix.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	other, err := transport.Dial(ctx, broker, transport.Options{ClientID: "node"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	n.awaitGone() // long before the guard would act on the deadline
}
