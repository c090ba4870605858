package tenure_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A team that embeds a lease in a gateway audits its dependencies. So the server, the
// command and the examples are modules of their own.
func TestTheModuleImportsThreeOthersTestsIncluded(t *testing.T) {
	allowed := []string{"github.com/cenkalti/backoff/v4", "github.com/eclipse/paho.golang", "golang.org/x/sync"}
	list := exec.Command("go", "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...")
	list.Env = append(list.Environ(), "GOWORK=off")
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
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
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := strings.Fields(string(out)); len(got) != 3 {
		t.Errorf("go.mod requires %q", got)
	}
}

// The README's commands must not have to download and compile etcd, and what we are measured
// against: only modules outside of go.work may require it.
func TestNoModuleOfTheWorkspaceRequiresEtcd(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.GoMod}}").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
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

// make race leaves out the rooms of SEQUENTIAL in the Makefile. One that starts a goroutine must not be
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
	statement := regexp.MustCompile(`(?m)^\s*go (func\b|[\w.]+\()`)
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
			if found := statement.Find(content); found != nil {
				t.Errorf("%s has %q", file, found)
			}
		}
	}
}
