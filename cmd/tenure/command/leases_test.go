package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestHolderFollowsEachChange(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	text, interrupt := here(t, "holder", "press-7/active", "--watch", "--broker", address)
	text.mustPrint(moment + " none")
	a := acquireAs(t, dialTest(t, address, "gateway-a"), "press-7/active")
	text.mustPrint(moment + " gateway-a")
	asJSON, _ := here(t, "holder", "press-7/active", "--watch", "--json", "--broker", address)
	asJSON.mustPrint(`{"time":"` + moment + `","name":"press-7/active","held":true,"holder":"gateway-a","value":"gateway-a:[^"]+","version":"` + versionPattern + `"}`)
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	text.mustPrint(moment + " none")
	if code := interrupt(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestReleaseEndsTheTenureThatWasShownAndNoOther(t *testing.T) {
	t.Parallel()
	serve := begin(t, "serve", "--memory", "--addr", "127.0.0.1:0", "--strict", "--lock-prefix", "strict/")
	address := serve.mustPrint(`listening on (\S+) .*`)
	holder, operator := dialTest(t, address, "gateway-a"), dialTest(t, address, "operator")
	const name = "press-7/active"
	release := func(answer io.Reader) (outcome, error) {
		cmd := releaseCommand()
		var stdout, stderr bytes.Buffer
		cmd.SetIn(answer)
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		cmd.SetContext(t.Context())
		err := (&releaseFlags{reason: "a test"}).run(cmd, operator, []string{name})
		return outcome{stdout: stdout.String(), stderr: stderr.String()}, err
	}
	held := acquireAs(t, holder, name)
	for _, answer := range []string{"", "n\n", "perhaps\n"} {
		said, err := release(strings.NewReader(answer))
		if err == nil || said.stdout != "" || !strings.Contains(said.stderr, `Take the lease from "gateway-a"? [y/N]`) {
			t.Errorf("answer %q: %+v, %v", answer, said, err)
		}
	}
	if _, err := held.Token(); err != nil {
		t.Errorf("after the answer no: %v", err)
	}
	// While the command asks, the lease passes to another tenure.
	var second *lease.Tenure
	said, err := release(readerFunc(func(p []byte) (int, error) {
		if err := held.Release(t.Context()); err != nil {
			return 0, err
		}
		second = acquireAs(t, holder, name)
		return copy(p, "y\n"), nil
	}))
	if exitCode(err) != exitMissing || !strings.Contains(err.Error(), "has another holder since") {
		t.Errorf("another tenure than the one shown: %+v, %v", said, err)
	}
	if _, err := second.Token(); err != nil {
		t.Errorf("the later tenure: %v", err)
	}
	got := invoke(t, "", "release", name, "--yes", "--broker", address, "--reason", "gateway-a lost its\ndisk")
	if got.code != 0 || got.stdout != "released press-7/active, which gateway-a held\n" {
		t.Errorf("%+v", got)
	}
	await.Receive(second.Context().Done())
	if cause := context.Cause(second.Context()); !errors.Is(cause, lease.ErrDeleted) {
		t.Errorf("the tenure ended with %v", cause)
	}
	await.Until(func() bool { return strings.Contains(serve.stderr.String(), "gateway-a lost its") }) // the log has a writer of its own

	locked := acquireAs(t, holder, "strict/active")
	got = invoke(t, "", "release", "strict/active", "--yes", "--broker", address)
	if got.code != exitRefused || !strings.Contains(got.stderr, "lets only the holder release it; stop the holder") {
		t.Errorf("a lock of a strict store: %+v", got)
	}
	if _, err := locked.Token(); err != nil {
		t.Error(err)
	}
}

// readerFunc is a function as an io.Reader.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestSwitchoverMovesARunningChildToTheNamedHolder(t *testing.T) {
	t.Parallel()
	address := startMemory(t)
	const name = "press-7/active"
	node := func(holder string) *running {
		return begin(t, "run", "--broker", address, "--holder", holder, "--ttl", "2s", name, "--", "sh", "-c", "echo "+holder+" works; exec sleep 600")
	}
	a := node("gateway-a")
	a.mustPrint("gateway-a works")
	node("gateway-b")
	c := node("gateway-c")
	switchover := func(flags ...string) outcome {
		return invoke(t, "", append([]string{"switchover", name, "--broker", address}, flags...)...)
	}
	await.Until(func() bool { // until the candidate waits, none is ready
		got := switchover("--to", "gateway-c")
		if got.code == 0 && !regexp.MustCompile(`\Agateway-c leads; gateway-a handed over, and none led for [0-9.]+(µs|ms|s)\n\z`).MatchString(got.stdout) {
			t.Errorf("%+v", got)
		}
		return got.code == 0
	})
	c.mustPrint("gateway-c works")
	if got := switchover("--to", "gateway-c"); got.code != 0 || got.stdout != "gateway-c leads already\n" {
		t.Errorf("%+v", got)
	}
	got := switchover("--to", "gateway-x", "--wait", "2500ms")
	if got.code != exitTimeout || !strings.Contains(got.stderr, `"gateway-c" leads on`) || !strings.Contains(got.stderr, `"gateway-x" does not lead yet: does a candidate`) {
		t.Errorf("%+v", got)
	}
}

func TestACommandInTheChildDoesNotEndTheConnectionOfItsParent(t *testing.T) {
	t.Parallel()
	environment := []string{"TENURE_BROKER=" + startMemory(t), "TENURE_CLIENT_ID=gateway-a"}
	got := tenure(t, "", environment, "lock", "jobs", "--", built.Path(t), "holder", "jobs")
	if got.code != 0 || got.stdout != "gateway-a\n" {
		t.Errorf("%+v", got)
	}
}

func TestATTLOfFourTimesTheGraceCarriesIt(t *testing.T) {
	for grace := time.Millisecond; grace < time.Hour; grace = grace*5/4 + time.Microsecond {
		flags := holdFlags{ttl: max(4*grace, 500*time.Millisecond).Round(time.Millisecond), grace: grace}
		if _, err := flags.leaseOptions(); err != nil {
			t.Errorf("--grace %v: %v", grace, err)
		}
	}
}

// Without a terminal, as under cron, lock writes nothing where there is nothing to do about.
func TestLockIsQuietWithoutATerminal(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("SKIPPED: Windows has no lock")
	}
	address := startMemory(t)
	acquireAs(t, dialTest(t, address, "gateway-a"), "held")
	for _, test := range []struct {
		line string
		says bool
	}{
		{"--wait 0 free -- true", false},
		{"--wait 0 -E 0 held -- true", false},
		{"--log-level info free -- true", true},
		{"--quiet=false free -- true", true},
	} {
		got := tenure(t, "", nil, append([]string{"lock", "--broker", address}, strings.Fields(test.line)...)...)
		if got.code != 0 || got.stdout != "" || (got.stderr != "") != test.says {
			t.Errorf("lock %s: %+v", test.line, got)
		}
	}
}

// The lease is renewed until then, for many TTLs. A signal before, or the loss of the lease, ends that.
func TestTheLeaseOfAShortJobIsHeldAtLeastForSoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, _ := store.Client(t, "gateway-a", transport.ClientOptions{})
		tenure := acquireAs(t, client, "jobs/nightly")
		began := time.Now()
		if err := outlast(t.Context(), tenure, time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := tenure.Token(); err != nil {
			t.Errorf("after an hour with a TTL of a minute: %v", err)
		}
		stopped, stop := context.WithCancelCause(t.Context())
		stop(&interruptedError{signal: syscall.SIGINT})
		if err := outlast(stopped, tenure, time.Hour); err != context.Cause(stopped) {
			t.Errorf("after a signal: %v", err)
		}
		if err := outlast(stopped, tenure, 0); err != nil {
			t.Errorf("after a signal that came late enough: %v", err)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := outlast(t.Context(), tenure, time.Hour); !errors.Is(err, lease.ErrReleased) {
			t.Errorf("after the end of the lease: %v", err)
		}
	})
}
