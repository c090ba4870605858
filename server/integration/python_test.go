package integration_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// The client of docs/conformance.py has nothing of this repository: Python, paho-mqtt, and the rows as
// statestore/statestoretest/conformance.json has them.
func TestAClientInPythonFindsWhatTheProtocolSays(t *testing.T) {
	t.Parallel() // most of it is waiting for keys to expire
	const table = "../../statestore/statestoretest/conformance.json"
	command := exec.CommandContext(t.Context(), pythonWithPaho(t), "../../docs/conformance.py", table)
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	var documented struct {
		Rows []struct {
			Section, Sentence string
			Options           struct {
				statestore.Options
				Dialect string
			}
		}
	}
	if err := json.Unmarshal(text, &documented); err != nil {
		t.Fatal(err)
	}
	allows := testsupport.Rules{Key: func(identity access.Identity, _ statestore.Verb, _ string) bool {
		return !strings.HasSuffix(identity.Client, "-denied")
	}}
	dialects := map[string]statestore.Dialect{"deployed": statestore.Deployed, "documented": statestore.Documented}
	for i, row := range documented.Rows {
		options := row.Options.Options
		options.Dialect = dialects[row.Options.Dialect]
		address := testsupport.Start(t, server.Options{Store: options, Authorizer: allows})
		command.Args = append(command.Args, fmt.Sprintf("%d=%s", i, address))
	}
	output, err := command.CombinedOutput()
	results := strings.Split(strings.TrimSpace(string(output)), "\n")
	if len(results) != len(documented.Rows) {
		t.Fatalf("%d rows, %v:\n%s", len(documented.Rows), err, output)
	}
	for i, row := range documented.Rows {
		if results[i] != fmt.Sprintf("%d ok", i) {
			t.Errorf("%s: %s: %s", row.Section, row.Sentence, results[i])
		}
	}
}

// pythonWithPaho returns a Python that has paho-mqtt. The first in PATH may be another than Debian's.
func pythonWithPaho(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import paho.mqtt.client").Run() == nil {
			return python
		}
	}
	prerequisite.Missing(t, "Python has no paho-mqtt: apt-get install python3-paho-mqtt, or pip install paho-mqtt")
	return ""
}
