package supervise

import (
	"context"
	"fmt"
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
	t.Parallel()
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
	dir := filepath.Join(t.TempDir(), "\xff\xfe")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	script := `#!/bin/sh
echo "$1 ${#2} $LATIN ${#LARGE_0} ${#LARGE_6} $TENURE_NAME"; echo three >&3; echo nine >&9; ls /proc/self/fd
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	inherited, err := os.Create(filepath.Join(dir, "inherited"))
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	start := func(name string, arguments ...string) (line, open string) {
		cmd := exec.CommandContext(ctx, name, append(arguments, "caf\xe9", large)...)
		cmd.Env = append(os.Environ(), "LATIN=\xe9t\xe9", "TENURE_NAME=outer")
		for i := range 7 {
			cmd.Env = append(cmd.Env, fmt.Sprintf("LARGE_%d=%s", i, large))
		}
		cmd.ExtraFiles = []*os.File{inherited, nil, nil, nil, nil, nil, inherited} // 3 and 9
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		line, open, _ = strings.Cut(string(out), "\n")
		return line, open
	}
	alone, openAlone := start(program)
	line, open := start(tenure, "run", "--broker", broker, "inner\xff", "--", program)
	if want := strings.Replace(alone, "outer", "inner\xff", 1); line != want || !strings.HasPrefix(line, "caf\xe9 120000 \xe9t\xe9 120000 120000 ") {
		t.Errorf("the program has %q, want %q", line, want)
	}
	if open != openAlone {
		t.Errorf("the program has the descriptors %q, want %q", open, openAlone)
	}
	if text, err := os.ReadFile(inherited.Name()); err != nil || string(text) != strings.Repeat("three\nnine\n", 2) {
		t.Errorf("the program wrote %q to inherited descriptors: %v", text, err)
	}
}

// With the /proc of another PID namespace no process of the program would be found, so there is none.
func TestAProcOfAnotherNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	broker := server(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, tenure, "run", "--broker", broker, "press", "--", "true")
	cmd.SysProcAttr = namespace(unix.CLONE_NEWPID)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		prerequisite.Missing(t, fmt.Sprintf("there is no PID namespace: %v", err))
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "unshare --mount-proc") {
		t.Errorf("exit code %d, want 1 and the cure in\n%s", code, out)
	}
}
