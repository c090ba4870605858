package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// parent is a tenure that other processes than its own are left to.
type parent struct {
	t   *testing.T
	cmd *exec.Cmd
	log logbuffer.Buffer
}

// startAfter starts a shell that starts a script, and then becomes tenure with these arguments.
func startAfter(t *testing.T, script string, arguments ...string) *parent {
	t.Helper()
	return startParent(t, nil, "{ "+script+`; } </dev/null >/dev/null 2>&1 & exec "$0" "$@"`, arguments)
}

// startAsInit starts tenure as the first process of a PID namespace, as a container does.
func startAsInit(t *testing.T, arguments ...string) *parent {
	t.Helper()
	return startParent(t, namespace(unix.CLONE_NEWPID|unix.CLONE_NEWNS), `mount -t proc proc /proc && exec "$0" "$@"`, arguments)
}

func startParent(t *testing.T, attributes *syscall.SysProcAttr, shell string, arguments []string) *parent {
	t.Helper()
	if attributes == nil {
		attributes = &syscall.SysProcAttr{}
	}
	attributes.Setpgid = true
	p := &parent{t: t, cmd: exec.Command("/bin/sh", append([]string{"-c", shell, tenure}, arguments...)...)}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = &p.log, &p.log, attributes
	if err := p.cmd.Start(); err != nil {
		if attributes.Cloneflags != 0 {
			prerequisite.Missing(t, fmt.Sprintf("there is no PID namespace: %v", err))
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(unix.SIGTERM)
		_ = await.Result(p.cmd.Wait)
		_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) // the script
		if t.Failed() {
			t.Logf("%q said:\n%s", p.cmd.Args, p.log.String())
		}
	})
	return p
}

// namespace returns the attributes of a process in namespaces of its own.
func namespace(flags uintptr) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Cloneflags: flags}
	if os.Getuid() != 0 {
		attributes.Cloneflags |= unix.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	return attributes
}

func (p *parent) awaitLog(text string) {
	p.t.Helper()
	await.Until(func() bool { return strings.Contains(p.log.String(), text) })
}

// children returns the children of tenure that are zombies, or that are not.
func (p *parent) children(zombies bool) (found []procEntry) {
	p.t.Helper()
	entries, err := descendants(p.cmd.Process.Pid, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range entries {
		if e.parent == p.cmd.Process.Pid && e.isZombie() == zombies {
			found = append(found, e)
		}
	}
	return found
}

// awaitOrphan waits until a process of this name was left to tenure.
func (p *parent) awaitOrphan(name string) (orphan procEntry) {
	p.t.Helper()
	await.Until(func() bool {
		for _, e := range p.children(false) {
			if e.name == name {
				orphan = e
			}
		}
		return orphan.pid != 0
	})
	return orphan
}

// mustLive fails the test if a process has ended.
func mustLive(t *testing.T, e procEntry) {
	t.Helper()
	if seen, ok := readProcess(e.pid); !ok || seen.started != e.started || seen.isZombie() {
		t.Errorf("%s, a process of others, was ended", e.name)
	}
}

// A shell may have children, and then become tenure. They are none of its business, and what they
// leave while checks of the health run is not.
func TestProcessesFromBeforeAreSpared(t *testing.T) {
	t.Parallel()
	broker := server(t)
	dir := t.TempDir()
	leave, checks := filepath.Join(dir, "leave"), filepath.Join(dir, "checks")
	p := startAfter(t, `while ! test -e `+leave+`; do sleep 0.01; done; sleep 1000 & exit`,
		"run", "--broker", broker, "--ttl", "1s", "--health", "echo >>"+checks, "--health-every", "10ms", "press", "--", "sh", "-c", "sleep 1000")
	p.awaitLog("the child starts")
	if err := os.WriteFile(leave, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	left := p.awaitOrphan("sleep")
	awaitMore(t, checks, 5)
	mustLive(t, left)
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.awaitLog("the child ended")
	mustLive(t, left)
}

// A container's first process gets what sessions of "docker exec" and the like leave. No check has
// started that, so none ends it. Its result is taken when it ends.
func TestAsTheFirstProcessTheOrphansOfOtherSessionsAreSpared(t *testing.T) {
	t.Parallel()
	enter := prerequisite.Program(t, "nsenter", "util-linux")
	broker := server(t)
	checks := filepath.Join(t.TempDir(), "checks")
	p := startAsInit(t, "run", "--broker", broker, "--ttl", "1s", "--health", "echo >>"+checks, "--health-every", "10ms",
		"press", "--", "sh", "-c", "sleep 1000; true")
	await.Until(func() bool {
		if strings.Contains(p.log.String(), "mount: ") {
			prerequisite.Missing(t, "there is no right to mount /proc")
		}
		return strings.Contains(p.log.String(), "the child starts")
	})
	flags := []string{"--target", strconv.Itoa(p.cmd.Process.Pid), "--pid"}
	if os.Getuid() != 0 {
		flags = append(flags, "--user", "--preserve-credentials")
	}
	session := exec.Command(enter, append(flags, "/bin/sh", "-c", ownSession("exec sleep 1000")+" </dev/null >/dev/null 2>&1 &")...)
	if out, err := session.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	left := p.awaitOrphan("sleep")
	awaitMore(t, checks, 5)
	mustLive(t, left)
	_ = unix.Kill(left.pid, unix.SIGKILL)
	await.Until(func() bool {
		seen, ok := readProcess(left.pid)
		return !ok || seen.started != left.started
	})
}

// The results of processes that are left to tenure are taken, whatever it does meanwhile. As zombies
// they would fill the machine, or reach the limit of a container.
func TestNoZombiesStayWhileTheLeaseIsAwaited(t *testing.T) {
	t.Parallel()
	broker, dir := server(t), t.TempDir()
	startNode(t, filepath.Join(dir, "lock"), broker, "polite", "lock", "held").awaitStart()
	begin, done := filepath.Join(dir, "begin"), filepath.Join(dir, "done")
	script := `while ! test -e ` + begin + `; do sleep 0.01; done; for i in 0 1 2 3 4 5 6 7 8 9; do (sleep 0.01 &); done; sleep 0.1; echo >` + done + `; exec sleep 1000`
	p := startAfter(t, script, "lock", "--broker", broker, "held", "--", "true")
	p.awaitLog("another holder has it")
	if err := os.WriteFile(begin, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitSize(t, done, 1)
	await.Until(func() bool { return len(p.children(true)) == 0 })
}

// A process that has ended may have forked a moment ago, and the look that sees it may have missed the child.
func TestALookThatSeesOneThatHasEndedIsNotTheLast(t *testing.T) {
	helpers.mu.Lock() // else the result is taken elsewhere
	defer helpers.mu.Unlock()
	process, err := os.StartProcess("/bin/true", []string{"true"}, new(os.ProcAttr))
	if err != nil {
		t.Fatal(err)
	}
	await.Until(func() bool { e, ok := readProcess(process.Pid); return ok && e.isZombie() })
	if reapLeft(0, helpers.pids) {
		t.Error("a look that saw a process says that none is left")
	}
	await.Until(func() bool { return reapLeft(0, helpers.pids) })
}
