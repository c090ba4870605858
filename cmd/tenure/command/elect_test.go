//go:build unix

package command

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// recipes are how the programs of docs/elect.md are run, but for C#, whose SDK the gate does not have: each asks again and again, and prints what it does.
var recipes = map[string]struct{ program, packaged, file, main string }{
	"python": {"python3", "python3", "recipe.py", `
import sys
election = Election(sys.argv[1])
while True:
    state = election.act(lambda token, until: print("acts", token, until > time.clock_gettime(time.CLOCK_BOOTTIME), flush=True))
    print("leading" if state["leading"] else "draining" if state["draining"] else "standby", flush=True)
    time.sleep(0.02)
`},
	"js": {"node", "nodejs", "recipe.js", `
async function main() {
  for (;;) {
    const state = await act(process.argv[2], async (token, left) => console.log("acts", token, left > 0 ? "True" : "False"));
    console.log(state.leading ? "leading" : state.draining ? "draining" : "standby");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
main();
`},
}

// Two nodes with the recipe of each language: the first one leads and acts, and drains when it is ended; then the
// second one acts with a newer token.
func TestEachRecipeOfAWarmStandbyActsDrainsAndFollows(t *testing.T) {
	document, err := os.ReadFile("../../../docs/elect.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range regexp.MustCompile("(?s)```(python|js)\n(.*?)```").FindAllSubmatch(document, -1) {
		found++
		language, code := string(block[1]), string(block[2])
		t.Run(language, func(t *testing.T) {
			recipe := recipes[language]
			interpreter := prerequisite.Program(t, recipe.program, recipe.packaged)
			store := startMemory(t)
			file := write(t, recipe.file, code+recipe.main)
			socket := func(node string) string { return filepath.Join(t.TempDir(), node) }
			a, b := socket("a"), socket("b")
			elect := func(node, path string) *running {
				return begin(t, "elect", "press", "--broker", store, "--client-id", node, "--listen", "unix:"+path,
					"--ttl", "4s", "--warn", "1s")
			}
			first := elect("a", a)
			await.Until(func() bool { _, err := os.Stat(a); return err == nil })
			programOfA := start(t, exec.Command(interpreter, file, a))
			token := mustAct(t, programOfA)
			elect("b", b)
			await.Until(func() bool { _, err := os.Stat(b); return err == nil })
			programOfB := start(t, exec.Command(interpreter, file, b))
			programOfB.mustPrint("standby")
			first.signal(syscall.SIGTERM)
			for line := ""; line != "draining"; {
				line, _ = await.Next(programOfA.lines)
			}
			if after := mustAct(t, programOfB); after == token {
				t.Errorf("both nodes act with the token %s", token)
			}
		})
	}
	if found != len(recipes) {
		t.Errorf("docs/elect.md has %d programs, want %d", found, len(recipes))
	}
}

// mustAct waits until a program acts in time, and returns its token.
func mustAct(t *testing.T, r *running) string {
	t.Helper()
	for line, open := await.Next(r.lines); open; line, open = await.Next(r.lines) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "acts" && fields[2] == "True" {
			return fields[1]
		}
	}
	t.Fatalf("the program has ended: %s", r.stderr)
	return ""
}

func TestElectRefusesWhatCannotServeOrRunOut(t *testing.T) {
	file := write(t, "file", "")
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{nil, "listen"},
		{[]string{"--listen", "0.0.0.0:80"}, "other machines"},
		{[]string{"--listen", "unix:" + file}, "no socket"},
		{[]string{"--listen", "127.0.0.1:0", "--ttl", "2s", "--warn", "1900ms"}, "--warn"},
		{[]string{"--listen", "127.0.0.1:0", "--ttl", "2s", "--watchdog", "/dev/watchdog"}, "3s"},
	} {
		got := invoke(t, "", append([]string{"elect", "press", "--broker", "mqtt://127.0.0.1:1"}, test.flags...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%q: code %d, %q; want %q", test.flags, got.code, got.stderr, test.want)
		}
	}
}

func TestRunRefusesAnAfterThatOutlastsTheWatchdog(t *testing.T) {
	got := invoke(t, "", "run", "press", "--broker", "mqtt://127.0.0.1:1", "--watchdog", "/dev/watchdog", "--ttl", "7.9s",
		"--grace", "1s", "--after", "true", "--", "true")
	if got.code != exitUsage || !strings.Contains(got.stderr, "shorter than 1s") {
		t.Errorf("code %d, %q", got.code, got.stderr)
	}
}

// --after runs at the start, on a node that may only stand by, and after the child, whose token it has.
func TestAfterRunsAtTheStartAndWhenTheChildIsGone(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run := begin(t, "run", "cleaned", "--broker", startMemory(t), "--after", `echo "after $TENURE_NAME $TENURE_TOKEN" >>`+log, "--",
		"/bin/sh", "-c", `echo "child $TENURE_TOKEN" >>`+log)
	_ = await.Result(run.cmd.Wait)
	written, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for scanner := bufio.NewScanner(strings.NewReader(string(written))); scanner.Scan(); {
		lines = append(lines, strings.TrimSpace(scanner.Text()))
	}
	if len(lines) != 3 || lines[0] != "after cleaned" || !strings.HasPrefix(lines[1], "child ") ||
		lines[2] != fmt.Sprintf("after cleaned %s", strings.TrimPrefix(lines[1], "child ")) {
		t.Errorf("the log is %q; standard error: %s", lines, run.stderr)
	}
}
