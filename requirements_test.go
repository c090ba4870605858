package tenure_test

import (
	"os"
	"os/exec"
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
