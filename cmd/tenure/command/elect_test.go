//go:build unix

package command

import (
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
	t.Parallel()
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
