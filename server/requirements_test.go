package server_test

import (
	"os"
	"regexp"
	"slices"
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
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var required []string
	for _, match := range regexp.MustCompile(`(?m)^(?:require |\t)(\S+) v\S+$`).FindAllStringSubmatch(string(text), -1) {
		required = append(required, match[1]) // lines that end with "// indirect" do not match
	}
	slices.Sort(required)
	if !slices.Equal(required, allowed) {
		t.Errorf("go.mod requires\n%q, want\n%q", required, allowed)
	}
}
