package supervise

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
	"github.com/tenurelock/tenure/internal/await"
)

// startTestGuard starts a guard, which has no supervisor but the test. close kills it.
func startTestGuard(t *testing.T, dog *watchdog.Dog, s start, program ...string) (g *guardProcess) {
	t.Helper()
	cmd := &exec.Cmd{Path: tenure, Args: append([]string{guardName, "free", program[0]}, program...), Stderr: os.Stderr}
	socket, theirs, err := connect(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if dog != nil {
		device, fd, err := duplicate(dog.File)
		if err != nil {
			t.Fatal(err)
		}
		theirs, s.Watchdog, s.Timeout = append(theirs, device), fd, dog.Timeout
	}
	if err := helpers.start(cmd, theirs...); err != nil {
		t.Fatal(err)
	}
	g = &guardProcess{cmd: cmd, socket: socket, encoder: json.NewEncoder(socket), reports: make(chan report), stopped: make(chan struct{})}
	g.tasks.Go(g.read)
	g.send(request{Start: &s})
	return g
}

func (g *guardProcess) kill() {
	await.Result(func() bool { g.killAndRead(func(report) {}); return true })
}

// The rest of the reports are these, in this order; numbers that a test cannot know are left out.
func checkReports(t *testing.T, g *guardProcess, want ...string) {
	t.Helper()
	for _, kind := range want {
		r := await.Receive(g.reports)
		got := map[bool]string{r.Made != 0: "made", r.Ended != nil: "ended", r.Gone: "gone", r.After != "": "after: " + r.After}[true]
		if got != kind {
			t.Fatalf("the guard reports %+v, want %s", r, kind)
		}
	}
}

func TestTheCommandAfterAProgramRunsWhenAllOfItIsGoneAndIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		program, after string
		grace          time.Duration
		want           []string
	}{
		"it sees that the program and what it left are gone": {
			`trap "" TERM; sleep 600 & exit 0`, `! flock -n "$LOCK" true || exit 7`, time.Second, []string{"made", "ended", "after: exit status 7", "gone"}},
		"success says nothing":       {"exit 3", "exit 0", await.Patience, []string{"made", "ended", "gone"}},
		"a failure is reported":      {"exit 0", "exit 5", await.Patience, []string{"made", "ended", "after: exit status 5", "gone"}},
		"it is killed after a while": {"exit 0", `trap "" TERM; sleep 600`, time.Second, []string{"made", "ended", "after: signal 9 (killed)", "gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			far := now() + time.Hour
			lock := filepath.Join(t.TempDir(), "lock")
			t.Setenv("LOCK", lock)
			g := startTestGuard(t, nil, start{Grace: test.grace, After: test.after, Bounds: bounds{Stop: far, Kill: far}},
				"/bin/sh", "-c", `exec 9>"$LOCK"; flock 9; `+test.program)
			defer g.kill()
			checkReports(t, g, test.want...)
		})
	}
}

func TestTheWatchdogIsFedUntilTheCommandAfterTheProgramHasEnded(t *testing.T) {
	for name, lasts := range map[string]time.Duration{"the lease lasts": time.Hour, "it does not last": time.Second} {
		t.Run(name, func(t *testing.T) {
			device, err := os.Create(filepath.Join(t.TempDir(), "watchdog"))
			if err != nil {
				t.Fatal(err)
			}
			defer device.Close()
			end := now() + lasts
			s := start{Grace: await.Patience, After: "sleep 0.2", Bounds: bounds{Stop: end, Kill: end}, Last: time.Second}
			g := startTestGuard(t, &watchdog.Dog{File: device, Timeout: 3 * time.Second}, s, "/bin/sh", "-c", "sleep 0.2")
			defer g.kill()
			checkReports(t, g, "made", "ended", "gone")
			got, err := os.ReadFile(device.Name())
			if fed := strings.Count(string(got), "\x00"); err != nil || (fed > 1) != (lasts == time.Hour) || !bytes.HasSuffix(got, []byte("V")) {
				t.Errorf("the device got %q, %v", got, err)
			}
		})
	}
}

// The device is not closed when the guard of a program is killed: the supervisor does that when the program is gone.
func TestAGuardThatIsKilledDoesNotStopTheWatchdog(t *testing.T) {
	device, err := os.Create(filepath.Join(t.TempDir(), "watchdog"))
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	far := now() + time.Hour
	g := startTestGuard(t, &watchdog.Dog{File: device, Timeout: time.Second}, start{Grace: time.Second, Bounds: bounds{Stop: far, Kill: far}}, "/bin/sh", "-c", "exec sleep 600")
	checkReports(t, g, "made")
	g.kill()
	if got, err := os.ReadFile(device.Name()); err != nil || strings.Contains(string(got), "V") {
		t.Errorf("the device got %q, %v", got, err)
	}
}
