package server_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A program that embeds a server inherits these modules. The command line, metrics and
// whatever else only the command tenure needs belong to the module cmd/tenure.
func TestTheModuleRequiresOnlyWhatAServerNeeds(t *testing.T) {
	allowed := []string{
		"github.com/cenkalti/backoff/v4",  // the attached store's retries
		"github.com/eclipse/paho.golang",  // the attached store's connection
		"github.com/mochi-mqtt/server/v2", // the broker
		"github.com/tenurelock/tenure",    // the rules of the store
		"go.yaml.in/yaml/v3",              // the file of users and rules
		"golang.org/x/crypto",             // bcrypt, for their passwords
	}
	list := exec.Command("go", "list", "-m", "-f", "{{if not .Indirect}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "all")
	list.Env = append(list.Environ(), "GOWORK=off")
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	required := strings.Fields(string(out))
	slices.Sort(required)
	if !slices.Equal(required, allowed) {
		t.Errorf("go.mod requires\n%q, want\n%q", required, allowed)
	}
}
