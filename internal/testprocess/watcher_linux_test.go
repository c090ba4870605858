package testprocess

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func TestMain(m *testing.M) { os.Exit(Run(m)) }

// endEnv makes TestAsAnotherProcess start processes and end in this way.
const endEnv = "TESTPROCESS_END"

// started is what TestAsAnotherProcess starts: a child, a descendant without a parent, and one in a session
// of its own. Each says which process it is.
const started = `(sh -c 'echo pid $$; exec sleep 1000' &) ; trap '' INT TERM HUP; echo pid $$; sleep 1000; true`

// TestAsAnotherProcess is a test process that leaves processes behind. The other test runs it.
func TestAsAnotherProcess(t *testing.T) {
	how := os.Getenv(endEnv)
	if how == "" {
		return
	}
	for _, attributes := range []*syscall.SysProcAttr{{}, {Setpgid: true}, {Setsid: true}} {
		cmd := exec.Command("/bin/sh", "-c", started)
		cmd.Stdout, cmd.SysProcAttr = os.Stdout, attributes
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	_ = await.Result(func() error { _, err := os.Stdin.Read(make([]byte, 1)); return err }) // until all said so
	switch how {
	case "panic":
		panic("on purpose")
	case "exit":
		os.Exit(0)
	case "interrupt":
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "return":
		return
	}
	time.Sleep(2 * await.Patience) // -test.timeout is shorter
}

func TestWhatATestStartsEndsWithTheTestProcess(t *testing.T) {
	for _, how := range []string{"return", "panic", "exit", "interrupt", "kill", "timeout"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			bystander := exec.Command("sleep", "1000")
			if err := bystander.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = bystander.Process.Kill(), await.Result(bystander.Wait) }()
			test := exec.Command(os.Args[0], "-test.run=^TestAsAnotherProcess$", "-test.timeout="+map[bool]string{true: "3s", false: "1m"}[how == "timeout"])
			// Like the first test process of a user, it has no mark.
			test.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, mark+"=") })
			test.Env = append(test.Env, endEnv+"="+how)
			stdin, err := test.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			output, err := test.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := test.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = test.Process.Kill() }()
			var pids []int
			for lines := bufio.NewScanner(output); len(pids) < 6 && lines.Scan(); {
				var pid int
				if _, err := fmt.Sscanf(lines.Text(), "pid %d", &pid); err == nil {
					pids = append(pids, pid)
				}
			}
			if len(pids) != 6 {
				t.Fatalf("the test process started %d processes", len(pids))
			}
			_ = stdin.Close()
			_ = await.Result(test.Wait)
			for _, pid := range pids {
				await.Until(func() bool { return !lives(pid) })
			}
			if !lives(bystander.Process.Pid) {
				t.Error("a process that the test process did not start was killed")
			}
		})
	}
}

// lives reports whether there is a process and it is not a zombie.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}
