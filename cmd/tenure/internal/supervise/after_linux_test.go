package supervise

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
	"github.com/tenurelock/tenure/internal/await"
)

// startTestGuard starts a guard, and its program. It has no supervisor but the test.
func startTestGuard(t *testing.T, dog *watchdog.Dog, s start, program ...string) (g *guardProcess) {
	t.Helper()
	g = startWaitingGuard(t, dog, nil, s, program...)
	g.send(request{Arm: &bounds{Stop: s.Kill, Kill: s.Kill}})
	checkReports(t, g, "armed", "armed", "made")
	return g
}

// startWaitingGuard starts a guard, which waits for Arm.
func startWaitingGuard(t *testing.T, dog *watchdog.Dog, connection syscall.RawConn, s start, program ...string) (g *guardProcess) {
	t.Helper()
	g, err := startGuard(Options{Name: t.Name(), Path: program[0], Args: program, Watchdog: dog}, connection, s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// newDevice returns a file that stands for a watchdog.
func newDevice(t *testing.T) *os.File {
	t.Helper()
	device, err := os.Create(filepath.Join(t.TempDir(), "watchdog"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = device.Close() })
	return device
}

func (g *guardProcess) kill() {
	await.Result(func() bool { g.killAndRead(func(report) {}); return true })
}

// The next reports are these, in this order; numbers that a test cannot know are left out. It returns the last one.
func checkReports(t *testing.T, g *guardProcess, want ...string) (last report) {
	t.Helper()
	for _, kind := range want {
		r := await.Receive(g.reports)
		got := map[bool]string{r.Armed != 0: "armed", r.Made != 0: "made", r.Ended != nil: "ended", r.Gone: "gone", r.Clean != nil: "clean",
			r.After != "": "after: " + r.After}[true]
		if got != kind {
			t.Fatalf("the guard reports %+v, want %s", r, kind)
		}
		last = r
	}
	return last
}

func TestTheCommandAfterAProgramRunsWhenAllOfItIsGoneAndIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		program, after string
		grace          time.Duration
		want           []string
	}{
		"it sees that the program and what it left are gone": {
			`trap "" TERM; sleep 600 & exit 0`, `! flock -n "$LOCK" true || exit 7`, time.Second, []string{"ended", "clean", "after: exit status 7", "gone"}},
		"it has a standard input":    {"exit 0", "cat", await.Patience, []string{"ended", "clean", "gone"}},
		"success says nothing":       {"exit 3", "exit 0", await.Patience, []string{"ended", "clean", "gone"}},
		"a failure is reported":      {"exit 0", "exit 5", await.Patience, []string{"ended", "clean", "after: exit status 5", "gone"}},
		"it is killed after a while": {"exit 0", `trap "" TERM; sleep 600`, time.Second, []string{"ended", "clean", "after: signal 9 (killed)", "gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			far := now() + time.Hour
			lock := filepath.Join(t.TempDir(), "lock")
			t.Setenv("LOCK", lock)
			g := startTestGuard(t, nil, start{Grace: test.grace, After: test.after, Kill: far},
				"/bin/sh", "-c", `exec 9>"$LOCK"; flock 9; `+test.program)
			defer g.kill()
			checkReports(t, g, test.want...)
		})
	}
}

func TestTheWatchdogIsFedUntilTheCommandAfterTheProgramHasEnded(t *testing.T) {
	for name, lasts := range map[string]time.Duration{"the lease lasts": time.Hour, "it does not last": time.Second} {
		t.Run(name, func(t *testing.T) {
			device := newDevice(t)
			end := now() + lasts
			s := start{Grace: await.Patience, After: "sleep 0.2", Kill: end, Last: time.Second}
			g := startTestGuard(t, &watchdog.Dog{File: device, Timeout: 3 * time.Second}, s, "/bin/sh", "-c", "sleep 0.2")
			defer g.kill()
			checkReports(t, g, "ended", "clean", "gone")
			got, err := os.ReadFile(device.Name())
			if fed := strings.Count(string(got), "\x00"); err != nil || (fed > 1) != (lasts == time.Hour) || !bytes.HasSuffix(got, []byte("V")) {
				t.Errorf("the device got %q, %v", got, err)
			}
		})
	}
}

// The device is not closed when the guard of a program is killed: the supervisor does that when the program is gone.
func TestAGuardThatIsKilledDoesNotStopTheWatchdog(t *testing.T) {
	device := newDevice(t)
	far := now() + time.Hour
	g := startTestGuard(t, &watchdog.Dog{File: device, Timeout: time.Second}, start{Grace: time.Second, Kill: far}, "/bin/sh", "-c", "exec sleep 600")
	g.kill()
	if got, err := os.ReadFile(device.Name()); err != nil || strings.Contains(string(got), "V") {
		t.Errorf("the device got %q, %v", got, err)
	}
}

// The clean-up ends before the lease can pass, also where the program was killed late. If the lease is gone, the
// clean-up has its time, and the watchdog is not fed, whatever renewal comes late.
func TestTheCommandAfterAProgramHasTheTimeThatIsLeftOfTheLease(t *testing.T) {
	const grace = await.Patience
	for name, lost := range map[string]bool{"the lease lasts": false, "the lease is lost": true} {
		t.Run(name, func(t *testing.T) {
			device := newDevice(t)
			at := now()
			s := start{Grace: grace, Kill: at + time.Hour, Last: grace + time.Second, After: "exec sleep 600"}
			g := startTestGuard(t, &watchdog.Dog{File: device, Timeout: time.Second}, s, "/bin/sh", "-c", "exec sleep 600")
			defer g.kill()
			if !lost {
				late := at - grace/2
				g.send(request{Arm: &bounds{Stop: late, Kill: late}})
				if kill := checkReports(t, g, "armed", "ended", "clean").Clean.Kill; kill != late+grace {
					t.Errorf("it is killed %v after the latest time", kill-late-grace)
				}
				return
			}
			g.send(request{Stop: &stop{Signal: terminateSignal, Kill: at, Lost: true}})
			if kill := checkReports(t, g, "ended", "clean").Clean.Kill; kill < at+grace {
				t.Errorf("it is killed %v early", at+grace-kill)
			}
			g.send(request{Arm: &bounds{Stop: at + time.Hour, Kill: at + time.Hour}})
			checkReports(t, g, "armed")
			if fed := feeds(t, device); fed > 0 {
				t.Errorf("the device was fed %d times", fed)
			}
		})
	}
}

// A guard that waits for Arm feeds: no program acts.
func TestTheWatchdogIsFedBeforeTheProgramStarts(t *testing.T) {
	device := newDevice(t)
	s := start{Grace: time.Second, Kill: now() + time.Hour}
	g := startWaitingGuard(t, &watchdog.Dog{File: device, Timeout: time.Second}, nil, s, "/bin/sh", "-c", "exec sleep 600")
	defer g.kill()
	checkReports(t, g, "armed")
	await.Until(func() bool { return feeds(t, device) > 0 })
}

// feeds returns how often a device is fed in a while.
func feeds(t *testing.T, device *os.File) int {
	t.Helper()
	size := func() int64 {
		info, err := device.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	time.Sleep(200 * time.Millisecond)
	return int(size() - before)
}

// The command would undo what a program needs that still works on this machine, under its guard or another supervisor.
// Where its guard is killed while it runs, it is cut, and runs again.
func TestTheCommandAfterAProgramIsCompletedWithoutItsGuard(t *testing.T) {
	t.Parallel()
	broker, ran := server(t), filepath.Join(t.TempDir(), "ran")
	start := func(name string) *node {
		return startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "polite", "run", "--ttl", "5m", "--grace", "10s",
			"--after", `sleep 0.2; echo "$TENURE_TOKEN" >>`+ran+`; test -z "$TENURE_TOKEN" || test $(wc -l <`+ran+`) -gt 2 || exec sleep 600`, name)
	}
	lines := func() int {
		text, _ := os.ReadFile(ran)
		return strings.Count(string(text), "\n")
	}
	n := start(t.Name())
	n.awaitStart()
	awaitLog(t, start(t.Name()), "another run of this lease works on this machine")
	if lines() != 1 {
		t.Errorf("it ran %d times, once for each start", lines())
	}
	guard := n.guard()
	n.signal(unix.SIGTERM)
	await.Until(func() bool { return lines() == 2 })
	if err := unix.Kill(guard, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.awaitExit()
	if lines() != 3 {
		t.Errorf("it ran %d times, with the start and the one that was cut", lines())
	}
}

// remains is a lease that is not renewed.
type remains time.Duration

func (r remains) Remaining() time.Duration { return time.Duration(r) }

// The device would reset the machine only after the lease has passed; it is stopped.
func TestAProgramDoesNotStartWhereTheWatchdogOutlastsTheLease(t *testing.T) {
	device := newDevice(t)
	dog := &watchdog.Dog{File: device, Timeout: 3 * time.Second}
	o := Options{Path: "/bin/sh", Args: []string{"sh", "-c", "exit 3"}, TTL: 10 * time.Second, Grace: time.Second, Watchdog: dog}
	status, err := Run(t.Context(), remains(2*time.Second), o)
	if err != nil || !status.NeverStarted() {
		t.Errorf("%v, %v", status, err)
	}
	if got, err := os.ReadFile(device.Name()); err != nil || string(got) != "V" {
		t.Errorf("the device got %q, %v", got, err)
	}
}
