package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
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
var built = compiled.Program{Folder: "../cmd/tenure"}

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
	environment, err := os.ReadFile("../transport/env.go")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile("../cmd/tenure/internal/settings/settings.go")
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
	files, err := filepath.Glob("../deploy/systemd/*")
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
			if _, err := os.Stat(filepath.Join("..", page[1])); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// What the image runs can be reached from outside of its container, so it refuses to start without
// users, and says how.
func TestTheImageListensWhereOthersReachIt(t *testing.T) {
	content, err := os.ReadFile("../deploy/docker/Dockerfile")
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
		content, err := os.ReadFile(filepath.Join("../deploy/systemd", name))
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

// The parts of manifests that are used here. A field that these types do not have is an error, so a
// typing mistake is noticed.
type (
	object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
		Spec       yaml.Node
	}
	metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	selector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	deployment struct {
		Replicas int
		Strategy struct {
			Type          string
			RollingUpdate struct {
				MaxSurge       int `yaml:"maxSurge"`
				MaxUnavailable int `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		}
		Selector selector
		Template struct {
			Metadata metadata
			Spec     pod
		}
	}
	pod struct {
		ServiceAccountName            string `yaml:"serviceAccountName"`
		AutomountServiceAccountToken  *bool  `yaml:"automountServiceAccountToken"`
		EnableServiceLinks            *bool  `yaml:"enableServiceLinks"`
		TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
		SecurityContext               struct {
			RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
			User           int                   `yaml:"runAsUser"`
			Group          int                   `yaml:"runAsGroup"`
			FSGroup        int                   `yaml:"fsGroup"`
			SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
		} `yaml:"securityContext"`
		TopologySpreadConstraints []struct {
			MaxSkew           int      `yaml:"maxSkew"`
			TopologyKey       string   `yaml:"topologyKey"`
			WhenUnsatisfiable string   `yaml:"whenUnsatisfiable"`
			LabelSelector     selector `yaml:"labelSelector"`
		} `yaml:"topologySpreadConstraints"`
		Containers []container
		Volumes    []struct {
			Name                  string
			PersistentVolumeClaim struct {
				ClaimName string `yaml:"claimName"`
			} `yaml:"persistentVolumeClaim"`
			Secret struct {
				SecretName  string `yaml:"secretName"`
				DefaultMode int    `yaml:"defaultMode"`
			}
			ConfigMap struct{ Name string } `yaml:"configMap"`
			Projected struct {
				Sources []struct {
					ServiceAccountToken struct {
						Path, Audience    string
						ExpirationSeconds int `yaml:"expirationSeconds"`
					} `yaml:"serviceAccountToken"`
				}
			}
		}
	}
	container struct {
		Name, Image   string
		Command, Args []string
		Env           []struct {
			Name, Value string
			ValueFrom   struct {
				FieldRef struct {
					FieldPath string `yaml:"fieldPath"`
				} `yaml:"fieldRef"`
			} `yaml:"valueFrom"`
		}
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe    *probe `yaml:"startupProbe"`
		ReadinessProbe  *probe `yaml:"readinessProbe"`
		LivenessProbe   *probe `yaml:"livenessProbe"`
		Resources       map[string]map[string]string
		SecurityContext struct {
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop []string }
		} `yaml:"securityContext"`
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	probe struct {
		Exec             struct{ Command []string }
		PeriodSeconds    int `yaml:"periodSeconds"`
		TimeoutSeconds   int `yaml:"timeoutSeconds"`
		FailureThreshold int `yaml:"failureThreshold"`
	}
	service struct {
		Selector map[string]string
		Ports    []struct {
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
	}
	claim struct {
		AccessModes []string `yaml:"accessModes"`
		Resources   map[string]map[string]string
	}
)

// decode decodes a YAML value into a type that must have all its fields.
func decode(t *testing.T, where string, node *yaml.Node, into any) {
	t.Helper()
	text, err := yaml.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		t.Errorf("%s: %v", where, err)
	}
}

func TestTheManifestsAreConsistentAndNameFlagsThatExist(t *testing.T) {
	files, err := filepath.Glob("../deploy/kubernetes/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			content, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			decoder := yaml.NewDecoder(bytes.NewReader(content))
			decoder.KnownFields(true)
			labels, ports, claims, accounts := map[string]string(nil), []string(nil), []string(nil), []string{""}
			deployments := 0
			for {
				var o object
				if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				where := o.Kind + " " + o.Metadata.Name
				switch o.APIVersion + " " + o.Kind {
				case "v1 ServiceAccount":
					accounts = append(accounts, o.Metadata.Name)
				case "v1 PersistentVolumeClaim":
					var c claim
					decode(t, where, &o.Spec, &c)
					claims = append(claims, o.Metadata.Name)
				case "v1 Service":
					var s service
					decode(t, where, &o.Spec, &s)
					if !maps.Equal(s.Selector, labels) || len(s.Ports) != 1 || !slices.Contains(ports, s.Ports[0].TargetPort) {
						t.Errorf("%s leads to no port of the pods", where)
					}
				case "apps/v1 Deployment":
					var d deployment
					decode(t, where, &o.Spec, &d)
					deployments++
					labels = d.Template.Metadata.Labels
					for _, port := range d.Template.Spec.Containers[0].Ports {
						ports = append(ports, port.Name)
					}
					if !maps.Equal(d.Selector.MatchLabels, labels) {
						t.Errorf("%s: the selector does not match its pods", where)
					}
					checkPod(t, where, d, claims, accounts)
				default:
					t.Errorf("%s %s: add its type to this test", o.APIVersion, o.Kind)
				}
			}
			if deployments != 1 {
				t.Errorf("%d deployments", deployments)
			}
			checkImages(t, string(content))
		})
	}
}

// checkImages reports an error unless the manifests name the image that goreleaser makes.
func checkImages(t *testing.T, content string) {
	t.Helper()
	config, err := os.ReadFile("../.goreleaser.yaml")
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

func checkPod(t *testing.T, where string, d deployment, claims, accounts []string) {
	t.Helper()
	p := d.Template.Spec
	if !slices.Contains(accounts, p.ServiceAccountName) {
		t.Errorf("%s: there is no service account %s", where, p.ServiceAccountName)
	}
	if !p.SecurityContext.RunAsNonRoot || p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		t.Errorf("%s: the pod has rights that it does not need", where)
	}
	volumes := make(map[string]bool) // whether a container mounts it
	for _, volume := range p.Volumes {
		volumes[volume.Name] = false
		if name := volume.PersistentVolumeClaim.ClaimName; name != "" {
			if !slices.Contains(claims, name) {
				t.Errorf("%s: there is no claim %s", where, name)
			}
			// Two pods with one volume would fight for the data.
			if d.Replicas != 1 || d.Strategy.Type != "Recreate" {
				t.Errorf("%s has data, %d replicas and the strategy %s", where, d.Replicas, d.Strategy.Type)
			}
		}
	}
	for _, c := range p.Containers {
		mounted := func(path string) bool {
			for _, mount := range c.VolumeMounts {
				if strings.HasPrefix(path, mount.MountPath+"/") || path == mount.MountPath {
					return true
				}
			}
			return false
		}
		for _, mount := range c.VolumeMounts {
			if _, ok := volumes[mount.Name]; !ok {
				t.Errorf("%s: there is no volume %s", where, mount.Name)
			}
			volumes[mount.Name] = true
		}
		arguments := c.Args
		if len(c.Command) > 0 {
			arguments = c.Command[1:]
		}
		checkCommand(t, where, arguments...)
		checkMemory(t, where, c, arguments)
		for _, argument := range arguments {
			if _, path, ok := strings.Cut(argument, "=/"); ok && !mounted("/"+path) {
				t.Errorf("%s: %s is in no volume", where, argument)
			}
		}
		for _, variable := range c.Env {
			checkVariables(t, where, variable.Name, arguments[0])
			if strings.HasPrefix(variable.Value, "/") && !mounted(variable.Value) {
				t.Errorf("%s: %s=%s is in no volume", where, variable.Name, variable.Value)
			}
		}
		for _, probe := range []*probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if probe != nil {
				checkCommand(t, where, probe.Exec.Command[1:]...)
			}
		}
	}
	for name, used := range volumes {
		if !used {
			t.Errorf("%s: nothing mounts %s", where, name)
		}
	}
}

// Other files of YAML in deploy, such as alert rules, have tests of their own; here they parse.
func TestAllYAMLParses(t *testing.T) {
	files := []string{"../.goreleaser.yaml"}
	err := filepath.WalkDir("../deploy", func(name string, entry fs.DirEntry, err error) error {
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
