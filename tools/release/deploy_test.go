package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
)

// built is the command tenure.
var built = compiled.Program{Folder: "../../cmd/tenure"}

func TestMain(m *testing.M) {
	status := testprocess.Run(m)
	built.Remove()
	os.Exit(status)
}

// checkCommand reports an error unless tenure takes these arguments. With --help at their end it reads
// all of them, and does nothing.
func checkCommand(t *testing.T, where string, arguments ...string) {
	t.Helper()
	before, after := arguments, []string(nil)
	if end := slices.Index(arguments, "--"); end >= 0 {
		before, after = arguments[:end], arguments[end:]
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, built.Path(t), slices.Concat(before, []string{"--help"}, after)...)
	cmd.Env = nil
	out, err := cmd.CombinedOutput()
	// The root command answers --help for a command that it does not have.
	if name := arguments[0]; err != nil || !strings.Contains(string(out), "tenure "+name) {
		t.Errorf("%s: tenure %s: %v\n%.300s", where, strings.Join(arguments, " "), err, out)
	}
}

// checkVariables reports an error unless each TENURE_ variable in a text is a flag of the command, and
// each AIO_ variable one that package transport reads. The variables that run gives its child may be
// named, and not be set.
func checkVariables(t *testing.T, where, text, command string) {
	t.Helper()
	help := shell{}.run(t, built.Path(t), command, "--help")
	environment := read(t, "../../transport/env.go")
	settings := read(t, "../../cmd/tenure/internal/settings/settings.go")
	ofChild := regexp.MustCompile(`childVariables = .*`).FindString(string(settings))
	for _, name := range regexp.MustCompile(`\b(?:TENURE|AIO)_[A-Z][A-Z_]*[A-Z]\b`).FindAllString(text, -1) {
		if strings.Contains(ofChild, `"`+name+`"`) {
			if regexp.MustCompile(name + `=|name: +` + name).MatchString(text) {
				t.Errorf("%s: %s is no setting: run gives it to its child", where, name)
			}
		} else if rest, ok := strings.CutPrefix(name, "TENURE_"); ok {
			flag := "--" + strings.ReplaceAll(strings.ToLower(rest), "_", "-")
			if !regexp.MustCompile(flag + `\b[^-]`).MatchString(help) {
				t.Errorf("%s: %s: tenure %s has no flag %s", where, name, command, flag)
			}
		} else if !bytes.Contains(environment, []byte(`"`+name+`"`)) {
			t.Errorf("%s: %s: transport.FromEnv does not read it", where, name)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// write makes a file of a directory.
func write(t *testing.T, dir, name string, content []byte) (path string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// units are the services, with the words of their command lines that systemd replaces.
var units = map[string]map[string]string{
	"tenure-serve.service":  {},
	"tenure-attach.service": {"${ATTACH_URL}": "mqtt://localhost:1883"},
	"tenure-run@.service":   {"%i": "poller", "$RUN_COMMAND": "/bin/true"},
}

// systemd itself reads the units, and says how much a service could do if an attacker had taken it
// over: 0 is nothing, and 10 is everything.
func TestTheUnitsNameWhatExistsAndSystemdTakesThem(t *testing.T) {
	t.Parallel()
	analyze := prerequisite.Program(t, "systemd-analyze", "systemd")
	dir := t.TempDir()
	for name, words := range units {
		content := string(read(t, filepath.Join("../../deploy/systemd", name)))
		_, line, _ := strings.Cut(content, "\nExecStart=/usr/bin/tenure ")
		line, _, _ = strings.Cut(line, "\n")
		arguments := strings.Fields(line)
		for i, word := range arguments {
			if value, ok := words[word]; ok {
				arguments[i] = value
			} else if strings.ContainsAny(word, "$%") {
				t.Errorf("%s: what is %s?", name, word)
			}
		}
		checkCommand(t, name, arguments...)
		checkVariables(t, name, content, arguments[0])
		for _, page := range regexp.MustCompile(`blob/main/(\S+)`).FindAllStringSubmatch(content, -1) {
			if _, err := os.Stat(filepath.Join("../..", page[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		content = strings.ReplaceAll(content, "/usr/bin/tenure", built.Path(t))
		file := write(t, dir, strings.Replace(name, "@", "@poller", 1), []byte(content))
		out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
		if err != nil || strings.Contains(string(out), dir) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if name == "tenure-run@.service" {
			continue // what the program may do is not known here
		}
		if out, err := exec.Command(analyze, "security", "--offline=yes", "--threshold=20", "--no-pager", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// What the image runs can be reached from outside of its container, so it refuses to start without
// users, and says how.
func TestTheImageListensWhereOthersReachIt(t *testing.T) {
	content := read(t, "../../deploy/docker/Dockerfile")
	var arguments []string
	command := regexp.MustCompile(`(?m)^CMD (.*)$`).FindSubmatch(content)
	if command == nil || json.Unmarshal(command[1], &arguments) != nil {
		t.Fatalf("no CMD: %s", content)
	}
	checkCommand(t, "Dockerfile", arguments...)
	cmd := exec.CommandContext(t.Context(), built.Path(t), append(arguments, "--memory")...)
	cmd.Env = nil
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "--insecure") {
		t.Errorf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

// A container is the part of a manifest that is looked at here.
type container struct {
	Name          string
	Command, Args []string
	Env           []struct{ Name, Value string }

	Startup   probe `yaml:"startupProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Liveness  probe `yaml:"livenessProbe"`
}

type probe struct{ Exec struct{ Command []string } }

func TestTheManifestsNameFlagsThatExist(t *testing.T) {
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	goreleaser := read(t, "../../.goreleaser.yaml")
	for _, name := range files {
		content := read(t, name)
		for decoder := yaml.NewDecoder(bytes.NewReader(content)); ; {
			var o struct {
				Spec struct {
					Template struct {
						Spec struct{ Containers []container }
					}
				}
			}
			if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			for _, c := range o.Spec.Template.Spec.Containers {
				checkContainer(t, filepath.Base(name), c)
			}
		}
		for _, image := range regexp.MustCompile(`ghcr\.io/[^:\s]+`).FindAll(content, -1) {
			if !bytes.Contains(goreleaser, []byte("images: ["+string(image)+"]")) {
				t.Errorf(".goreleaser.yaml makes another image than %s", image)
			}
		}
	}
}

func checkContainer(t *testing.T, where string, c container) {
	t.Helper()
	arguments := c.Args
	if len(c.Command) > 0 {
		arguments = c.Command[1:]
	}
	checkCommand(t, where, arguments...)
	for _, variable := range c.Env {
		checkVariables(t, where, variable.Name, arguments[0])
	}
	for _, p := range []probe{c.Startup, c.Readiness, c.Liveness} {
		if command := p.Exec.Command; len(command) > 0 {
			checkCommand(t, where, command[1:]...)
		}
	}
}
