package integration_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// The client of docs/conformance.py has nothing of this repository: Python, paho-mqtt, and the rows as
// docs/conformance.json has them.
func TestAClientInPythonFindsWhatTheProtocolSays(t *testing.T) {
	t.Parallel() // most of it is waiting for keys to expire
	python := pythonWithPaho(t)
	const table = "../../docs/conformance.json"
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Rows []struct {
			Section, Sentence string
			Options           struct {
				statestore.Options
				Dialect string
			}
		}
	}
	if err := json.Unmarshal(text, &document); err != nil || len(document.Rows) == 0 {
		t.Fatalf("%d rows: %v", len(document.Rows), err)
	}
	command := exec.CommandContext(t.Context(), python, "../../docs/conformance.py", table)
	dialects := map[string]statestore.Dialect{"": statestore.Auto}
	for _, dialect := range []statestore.Dialect{statestore.Deployed, statestore.Documented} {
		dialects[dialect.String()] = dialect
	}
	denies := testsupport.Rules{Key: func(identity access.Identity, _ statestore.Verb, _ string) bool {
		return !strings.HasSuffix(identity.Client, "-denied")
	}}
	for i, row := range document.Rows {
		options := row.Options.Options
		options.Dialect = dialects[row.Options.Dialect]
		address := testsupport.Start(t, server.Options{Store: options, Authorizer: denies})
		command.Args = append(command.Args, fmt.Sprintf("%d=%s", i, address))
	}
	output, err := command.CombinedOutput()
	checked := 0
	for line := range strings.Lines(string(output)) {
		number, result, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i, wrong := strconv.Atoi(number); wrong != nil || i >= len(document.Rows) {
			t.Errorf("%s", line)
		} else if checked++; result != "ok" {
			t.Errorf("%s: %s: %s", document.Rows[i].Section, document.Rows[i].Sentence, result)
		}
	}
	if err != nil || checked != len(document.Rows) {
		t.Errorf("%d of %d rows were checked: %v", checked, len(document.Rows), err)
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
