package supervise

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

func TestTheProgramKnowsItsLease(t *testing.T) {
	broker := server(t)
	out, err := exec.Command(tenure, "lock", "--broker", broker, "--ttl", "20s", "--holder", "10.0.0.7:80", "press-7/active", "--",
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

// A program gets its arguments and its environment as they are: large ones, and bytes that are
// not UTF-8. A variable of an outer lease does not hide the variable of this one. It also has the descriptors
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
		line, open := start(tenure, verb, "--broker", broker, "inner\xff", "--", program)
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

// With the /proc of another PID namespace no process of the program would be found, so there is none.
func TestAProcOfAnotherNamespaceIsRefused(t *testing.T) {
	broker := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for _, verb := range []string{"run", "lock"} {
		cmd := exec.CommandContext(ctx, tenure, verb, "--broker", broker, "press", "--", "true")
		cmd.SysProcAttr = namespace(unix.CLONE_NEWPID)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			prerequisite.Missing(t, fmt.Sprintf("there is no PID namespace: %v", err))
		}
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "/proc") || !strings.Contains(string(out), "unshare --mount-proc") {
			t.Errorf("%s: exit code %d, want 1 and the cure in\n%s", verb, code, out)
		}
	}
}
