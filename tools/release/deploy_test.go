package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	environment, err := os.ReadFile("../../transport/env.go")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile("../../cmd/tenure/internal/settings/settings.go")
	if err != nil {
		t.Fatal(err)
	}
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

// units are the services, with the words of their command lines that systemd replaces.
var units = map[string]map[string]string{
	"tenure-serve.service":  {},
	"tenure-attach.service": {"${ATTACH_URL}": "mqtt://localhost:1883"},
	"tenure-run@.service":   {"%i": "poller", "$RUN_COMMAND": "/bin/true"},
}

func TestTheUnitsNameCommandsAndFlagsThatExist(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../deploy/systemd/*")
	if err != nil || len(files) != len(units) {
		t.Fatalf("%d files, %v; want %d", len(files), err, len(units))
	}
	for _, file := range files {
		name := filepath.Base(file)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		start := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/tenure (.*)$`).FindStringSubmatch(string(content))
		if start == nil {
			t.Errorf("%s starts something else than /usr/bin/tenure", name)
			continue
		}
		var arguments []string
		for word := range strings.FieldsSeq(start[1]) {
			if value, ok := units[name][word]; ok {
				word = value
			}
			if strings.ContainsAny(word, "$%") {
				t.Errorf("%s: what is %s?", name, word)
			}
			arguments = append(arguments, word)
		}
		checkCommand(t, name, arguments...)
		checkVariables(t, name, string(content), arguments[0])
		for _, page := range regexp.MustCompile(`blob/main/(\S+)`).FindAllStringSubmatch(string(content), -1) {
			if _, err := os.Stat(filepath.Join("../..", page[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// What the image runs can be reached from outside of its container, so it refuses to start without
// users, and says how.
func TestTheImageListensWhereOthersReachIt(t *testing.T) {
	content, err := os.ReadFile("../../deploy/docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
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

// systemd itself reads the units, and says how much a service could do if an attacker had taken it
// over: 0 is nothing, and 10 is everything.
func TestSystemdTakesTheUnits(t *testing.T) {
	analyze := prerequisite.Program(t, "systemd-analyze", "systemd")
	dir := t.TempDir()
	for name := range units {
		content, err := os.ReadFile(filepath.Join("../../deploy/systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, strings.Replace(name, "@", "@poller", 1))
		content = bytes.ReplaceAll(content, []byte("/usr/bin/tenure"), []byte(built.Path(t)))
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
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

// A container is the part of a manifest that is looked at here.
type container struct {
	Name          string
	Command, Args []string
	Env           []struct{ Name, Value string }
	Resources     map[string]map[string]string

	StartupProbe, ReadinessProbe, LivenessProbe *probe
}

type probe struct{ Exec struct{ Command []string } }

// UnmarshalYAML takes the names of fields as Kubernetes writes them.
func (c *container) UnmarshalYAML(node *yaml.Node) error {
	var all map[string]any
	if err := node.Decode(&all); err != nil {
		return err
	}
	text, err := json.Marshal(all) // which reads names in any case
	if err != nil {
		return err
	}
	type plain container
	return json.Unmarshal(text, (*plain)(c))
}

func TestTheManifestsNameFlagsThatExistAndBoundTheirMemory(t *testing.T) {
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		containers := 0
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
				containers++
				checkContainer(t, filepath.Base(name), c)
			}
		}
		if containers == 0 {
			t.Errorf("%s: no container is found", name)
		}
		checkImages(t, string(content))
	}
}

func checkContainer(t *testing.T, where string, c container) {
	t.Helper()
	arguments := c.Args
	if len(c.Command) > 0 {
		arguments = c.Command[1:]
	}
	checkCommand(t, where, arguments...)
	checkMemory(t, where, c, arguments)
	for _, variable := range c.Env {
		checkVariables(t, where, variable.Name, arguments[0])
	}
	for _, probe := range []*probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe != nil {
			checkCommand(t, where, probe.Exec.Command[1:]...)
		}
	}
}

// checkImages reports an error unless the manifests name the image that goreleaser makes.
func checkImages(t *testing.T, content string) {
	t.Helper()
	config, err := os.ReadFile("../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range regexp.MustCompile(`ghcr\.io/[^:\s]+`).FindAllString(content, -1) {
		if !bytes.Contains(config, []byte("images: ["+image+"]")) {
			t.Errorf(".goreleaser.yaml makes another image than %s", image)
		}
	}
}

const (
	pageMemory   = 143 << 20 // of the status page at worst: docs/security.md
	clientMemory = 640 << 10 // of --max-memory there is one client for so much: docs/security.md
	kernelMemory = 512 << 10 // of one connection, in buffers of the kernel: docs/security.md
	keyMemory    = 300       // of a key, besides its own bytes: docs/security.md
)

// checkMemory reports an error if a container may use more memory than it is given, at worst. The kernel
// would kill it.
func checkMemory(t *testing.T, where string, c container, arguments []string) {
	t.Helper()
	flag := func(name string) int64 {
		for _, argument := range arguments {
			if value, ok := strings.CutPrefix(argument, "--"+name+"="); ok {
				return bytesOf(t, where, value)
			}
		}
		t.Errorf("%s: %s needs --%s", where, c.Name, name)
		return 0
	}
	var used, buffers int64 // in Go's memory, and in the kernel's
	switch arguments[0] {
	case "serve":
		memory := flag("max-memory")
		used, buffers = memory+pageMemory, memory/clientMemory*kernelMemory
	case "attach":
		used, buffers = flag("max-bytes")+flag("max-keys")*keyMemory+pageMemory, kernelMemory
	default:
		return // its memory does not grow with what others send
	}
	limit := bytesOf(t, where, c.Resources["limits"]["memory"])
	if used+buffers > limit {
		t.Errorf("%s: %s may use %d MiB, and %d MiB of buffers; its limit is %d MiB", where, c.Name, used>>20, buffers>>20, limit>>20)
	}
	for _, variable := range c.Env {
		if variable.Name != "GOMEMLIMIT" {
			continue
		}
		if soft := bytesOf(t, where, variable.Value); soft < used || soft+buffers > limit {
			t.Errorf("%s: GOMEMLIMIT is %d MiB; it must be %d to %d MiB", where, soft>>20, used>>20, (limit-buffers)>>20)
		}
	}
}

// bytesOf reads a number of bytes as flags, Kubernetes and Go write it.
func bytesOf(t *testing.T, where, text string) int64 {
	t.Helper()
	digits := strings.TrimRight(text, "KMGiB")
	n, err := strconv.ParseInt(digits, 10, 64)
	units := map[string]int64{"": 1, "Mi": 1 << 20, "MiB": 1 << 20, "Gi": 1 << 30, "GiB": 1 << 30}
	unit, ok := units[text[len(digits):]]
	if err != nil || !ok {
		t.Errorf("%s: %q is no number of bytes", where, text)
	}
	return n * unit
}

// Other files of YAML in deploy, such as alert rules, have tests of their own; here they parse.
func TestAllYAMLParses(t *testing.T) {
	files := []string{"../../.goreleaser.yaml"}
	err := filepath.WalkDir("../../deploy", func(name string, entry fs.DirEntry, err error) error {
		if ext := filepath.Ext(name); ext == ".yaml" || ext == ".yml" || ext == ".json" {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		decoder := yaml.NewDecoder(bytes.NewReader(content))
		for {
			var value any
			if err := decoder.Decode(&value); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
}
