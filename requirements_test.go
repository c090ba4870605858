package tenure_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// A team that embeds a lease in a gateway audits its dependencies. So the server, the
// command and the examples are modules of their own.
func TestTheModuleImportsThreeOthersTestsIncluded(t *testing.T) {
	allowed := []string{"github.com/cenkalti/backoff/v4", "github.com/eclipse/paho.golang", "golang.org/x/sync"}
	list := exec.Command("go", "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...")
	list.Env = append(list.Environ(), "GOWORK=off")
	list.Stderr = t.Output() // go says there what it downloads
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var imported []string
	for module := range strings.FieldsSeq(string(out)) {
		if module != "github.com/tenurelock/tenure" && !slices.Contains(imported, module) {
			imported = append(imported, module)
		}
	}
	slices.Sort(imported)
	if !slices.Equal(imported, allowed) {
		t.Errorf("the module imports\n%q, want\n%q", imported, allowed)
	}
}

// A consumer sees these in its own go.mod.
func TestTheModuleRequiresThreeOthersDirectly(t *testing.T) {
	list := exec.Command("go", "list", "-m", "-f", "{{if not .Indirect}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "all")
	list.Env = append(list.Environ(), "GOWORK=off")
	list.Stderr = t.Output() // go says there what it downloads
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(out)); len(got) != 3 {
		t.Errorf("go.mod requires %q", got)
	}
}

// The README's commands must not have to download and compile etcd, and what we are measured
// against: only modules outside of go.work may require it.
func TestNoModuleOfTheWorkspaceRequiresEtcd(t *testing.T) {
	list := exec.Command("go", "list", "-m", "-f", "{{.GoMod}}")
	list.Stderr = t.Output()
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(string(out))
	if len(files) < 4 {
		t.Fatalf("the workspace has %q", files)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, heavy := range []string{"go.etcd.io/etcd/", "google.golang.org/grpc", "github.com/nats-io/", "github.com/redis/"} {
			if strings.Contains(string(content), heavy) {
				t.Errorf("%s requires %s: leave the module out of go.work, and give it a workspace such as cluster/go.work or bench/go.work", file, heavy)
			}
		}
	}
}

// make race leaves out the packages of SEQUENTIAL in the Makefile. One that starts a goroutine must not be
// among them; those that only start programs may read their output in one.
func TestRoomsThatTheRaceDetectorSkipsStartNoGoroutine(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^SEQUENTIAL := (.*)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("the Makefile has no SEQUENTIAL")
	}
	for room := range strings.FieldsSeq(string(line[1])) {
		files, err := filepath.Glob(filepath.Join(room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s has no Go files: %v", room, err)
		}
		for _, file := range files {
			if room == "release" && strings.HasSuffix(file, "_test.go") {
				continue
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, start := range startsOfGoroutines(t, file, content) {
				t.Errorf("%s: it starts a goroutine, so the room cannot be in SEQUENTIAL of the Makefile", start)
			}
		}
	}
}

// startsOfGoroutines returns where a file has a go statement, or a call that stands for one: Go of a
// sync.WaitGroup or an errgroup.Group, AfterFunc, and Parallel and RunParallel of a test.
func startsOfGoroutines(t *testing.T, name string, content []byte) (positions []token.Position) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, content, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.GoStmt:
			positions = append(positions, files.Position(node.Pos()))
		case *ast.SelectorExpr:
			if slices.Contains([]string{"Go", "AfterFunc", "Parallel", "RunParallel"}, node.Sel.Name) {
				positions = append(positions, files.Position(node.Sel.Pos()))
			}
		}
		return true
	})
	return positions
}

func TestTheStartOfAGoroutineIsFound(t *testing.T) {
	for _, row := range []struct {
		statement string
		want      int
	}{
		{"go func() { run() }()", 1},
		{"go s.serve(ctx)", 1},
		{"go run[int](1)", 1},
		{"if ok { go run() }", 1},
		{"tasks.Go(func() error { return nil })", 1},
		{"s.waiting.Go(s.serve)", 1},
		{"start := tasks.Go; start(run)", 1},
		{"defer context.AfterFunc(ctx, cancel)()", 1},
		{"t.Parallel()", 1},
		{"b.RunParallel(run)", 1},
		{"list := exec.Command(`go`, `list`) // go func()", 0},
		{"waiting.Wait()", 0},
	} {
		content := "package p\nfunc f() {\n" + row.statement + "\n}\n"
		if got := startsOfGoroutines(t, "f.go", []byte(content)); len(got) != row.want {
			t.Errorf("%s: %v", row.statement, got)
		}
	}
}
