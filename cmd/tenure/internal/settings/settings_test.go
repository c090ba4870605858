package settings

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// values are what the flags of the commands in these tests have.
type values struct {
	addr, broker, holder, cert string
	keys                       int
	packet                     uint32
	bytes                      int64
	after                      time.Duration
	memory, force              bool
	prefixes                   []string
}

// command returns a program with the commands serve and get. Each notes its values in v.
func command(v *values) *cobra.Command {
	root := &cobra.Command{Use: "tenure", SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return Bind(cmd) }}
	Register(root)
	run := func(*cobra.Command, []string) error { return nil }
	serve, get := &cobra.Command{Use: "serve", RunE: run}, &cobra.Command{Use: "get", RunE: run}
	for _, cmd := range []*cobra.Command{serve, get} {
		cmd.Flags().StringVar(&v.cert, "tls-cert", "", "")
	}
	serve.Flags().StringVar(&v.addr, "addr", "", "")
	serve.Flags().IntVar(&v.keys, "max-keys", 7, "")
	serve.Flags().Uint32Var(&v.packet, "max-packet-size", 1<<20, "")
	Bytes(serve.Flags(), &v.bytes, "max-bytes", "")
	serve.Flags().DurationVar(&v.after, "hold-off", 0, "")
	serve.Flags().BoolVar(&v.memory, "memory", false, "")
	serve.Flags().StringSliceVar(&v.prefixes, "lock-prefix", []string{"default"}, "")
	get.Flags().StringVar(&v.broker, "broker", "localhost", "")
	get.Flags().StringVar(&v.holder, "holder", "", "")
	get.Flags().BoolVar(&v.force, "force", false, "")
	CommandLineOnly(get.Flags(), "force")
	root.AddCommand(serve, get)
	return root
}

// run runs a command with a configuration file; an empty content means none.
func run(t *testing.T, content string, arguments ...string) (values, error) {
	t.Helper()
	if content != "" {
		file := filepath.Join(t.TempDir(), "tenure.yaml")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		arguments = append(arguments, "--config", file)
	}
	var v values
	root := command(&v)
	root.SetArgs(arguments)
	return v, root.ExecuteContext(t.Context())
}

func TestAFlagGoesBeforeItsVariableAndThatBeforeTheFile(t *testing.T) {
	const content = "max-keys: 1\naddr: file\nhold-off: 3s\nserve:\n  hold-off: 4s\n"
	t.Setenv("TENURE_MAX_KEYS", "2")
	t.Setenv("TENURE_ADDR", "environment")
	v, err := run(t, content, "serve", "--max-keys", "3")
	if err != nil || v.keys != 3 || v.addr != "environment" || v.after != 4*time.Second {
		t.Errorf("%+v, %v", v, err)
	}
	t.Setenv("TENURE_ADDR", "") // counts as not set
	if v, err = run(t, content, "serve"); err != nil || v.keys != 2 || v.addr != "file" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestTheFileHasListsBooleansAndSectionsForOneCommand(t *testing.T) {
	const content = `
# shared
tls-cert: shared.pem
broker: mqtt://broker
get: {tls-cert: client.pem}
serve:
  lock-prefix: [a/, "b,c/"]
  memory: true
`
	v, err := run(t, content, "serve")
	if err != nil || v.cert != "shared.pem" || !v.memory || !slices.Equal(v.prefixes, []string{"a/", "b,c/"}) {
		t.Errorf("serve: %+v, %v", v, err)
	}
	if v, err = run(t, content, "get"); err != nil || v.cert != "client.pem" || v.broker != "mqtt://broker" || v.memory {
		t.Errorf("get: %+v, %v", v, err)
	}
	if v, err = run(t, "serve:\n  # addr: a\nget:\nmax-keys: 8\n", "serve"); err != nil || v.keys != 8 {
		t.Errorf("sections with nothing but a comment: %+v, %v", v, err)
	}
	t.Setenv("TENURE_LOCK_PREFIX", "x/,y/")
	if v, err = run(t, content, "serve"); err != nil || !slices.Equal(v.prefixes, []string{"x/", "y/"}) {
		t.Errorf("a list in a variable: %+v, %v", v, err)
	}
}

// A command that the child of tenure run starts is not configured by what tenure run tells the
// child, and no file can say that a lease is to be broken.
func TestSomeFlagsHaveNoVariableAndNoKey(t *testing.T) {
	t.Setenv("TENURE_HOLDER", "parent")
	t.Setenv("TENURE_FORCE", "true")
	t.Setenv("TENURE_HELP", "true")
	t.Setenv("TENURE_OF_ANOTHER_PROGRAM", "x")
	if v, err := run(t, "", "get"); err != nil || v.holder != "" || v.force {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := run(t, "get: {holder: file}", "get"); err != nil || v.holder != "file" {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := run(t, "get: {force: true}", "get"); err == nil {
		t.Error("--force came from a file")
	}
}

func TestAnErrorNamesTheVariableOrTheFileAndTheLine(t *testing.T) {
	for _, test := range []struct{ name, content, want string }{
		{"a flag that no command has", "addr: x\nadress: y\n", ":2: adress is no command, and no setting of any"},
		{"a flag of another command", "serve:\n  addr: x\n  broker: y\n", ":3: broker is no setting of tenure serve"},
		{"a mistake in the section of another command", "get:\n  bro: x\n", ":2: bro is no setting of tenure get"},
		{"another file", "config: other.yaml\n", ":1: config is no command, and no setting"},
		{"a confirmation", "force: true\n", ":1: force is no command, and no setting"},
		{"a value of a command", "get: true\n", ":1: get is a command: write its settings below it, indented"},
		{"a value that the flag refuses", "\nhold-off: 10\n", `:2: hold-off: want a duration such as 5s, not "10"`},
		{"no number", "max-keys: many\n", `:1: max-keys: want a whole number, not "many"`},
		{"a number that is too large", "max-keys: 1000000000000000000000\n", "want a smaller number"},
		{"a number that is too small", "max-packet-size: -1\n", `want a whole number, not "-1"`},
		{"no number of bytes", "max-bytes: 12 apples\n", "want a number of bytes, like 536870912, 512MiB or 2GiB"},
		{"no value", "addr:\n", ":1: addr: want one value"},
		{"a list for one value", "addr: [a, b]\n", ":1: addr: want one value"},
		{"a list of lists", "lock-prefix: [[a]]\n", ":1: lock-prefix: want a list of values"},
		{"the same key twice", "addr: a\naddr: b\n", `line 2: mapping key "addr" already defined at line 1`},
		{"a list in place of a mapping", "- addr\n", "; write lines like max-keys: 1000"},
		{"no YAML", "addr: [\n", "yaml: line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := run(t, test.content, "serve")
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "tenure.yaml") {
				t.Errorf("%v, want the file and %q", err, test.want)
			}
		})
	}
	if _, err := run(t, "", "serve", "--hold-off", "5"); err == nil || err.Error() != `--hold-off: want a duration such as 5s, not "5"` {
		t.Errorf("a value on the command line: %v", err)
	}
	if _, err := run(t, "", "serve", "--config", "no.yaml"); err == nil || !strings.HasPrefix(err.Error(), "--config: ") {
		t.Errorf("a file that is not there: %v", err)
	}
	t.Setenv("TENURE_CONFIG", "no.yaml")
	if _, err := run(t, "", "serve"); err == nil || !strings.HasPrefix(err.Error(), "TENURE_CONFIG: ") {
		t.Errorf("a file that is not there, from the environment: %v", err)
	}
	t.Setenv("TENURE_CONFIG", "")
	t.Setenv("TENURE_MEMORY", "perhaps")
	if _, err := run(t, "", "serve"); err == nil || !strings.HasPrefix(err.Error(), "TENURE_MEMORY: want true or false") {
		t.Errorf("a variable that the flag refuses: %v", err)
	}
}

func FuzzFile(f *testing.F) {
	f.Add("addr: a\nserve: {hold-off: 1s, lock-prefix: [a, b]}\n")
	f.Add("a: &a [*a]\naddr: *a\n")
	f.Add("<<: {addr: x}\n")
	f.Fuzz(func(t *testing.T, content string) {
		_, _ = run(t, content, "serve") // it must neither panic nor hang
	})
}

// As with TENURE_FENCE="$TOKEN" where TOKEN is not set.
func TestAnEmptyVariableIsAnErrorWhereItWouldLiftAProtection(t *testing.T) {
	get, _, err := command(new(values)).Find([]string{"get"})
	if err != nil {
		t.Fatal(err)
	}
	NotEmpty(get.Flags(), "tls-cert")
	if err := Bind(get); err != nil {
		t.Errorf("without the variable: %v", err)
	}
	t.Setenv("TENURE_TLS_CERT", "")
	if err := Bind(get); err == nil || !strings.Contains(err.Error(), "TENURE_TLS_CERT is empty") {
		t.Errorf("an empty variable: %v", err)
	}
	t.Setenv("TENURE_TLS_CERT", "x")
	if err := Bind(get); err != nil || get.Flag("tls-cert").Value.String() != "x" {
		t.Errorf("%v, %v", get.Flag("tls-cert").Value, err)
	}
}

func TestAVariableThatIsNoSettingIsFound(t *testing.T) {
	for name, value := range map[string]string{
		"TENURE_BROKKER": "x", "TENURE_FORCE": "true", "TENURE_HOLDER": "10.0.0.7",
		"TENURE_BROKER": "x", "TENURE_CONFIG": "", "TENURE_ADDR": "of serve",
		// Kubernetes sets these in each container, for Services of the names tenure and tenure-store.
		"TENURE_SERVICE_HOST": "10.0.0.1", "TENURE_SERVICE_PORT": "1883", "TENURE_SERVICE_PORT_MQTT": "1883", "TENURE_PORT": "tcp://10.0.0.1:1883",
		"TENURE_PORT_1883_TCP": "x", "TENURE_PORT_1883_TCP_ADDR": "x", "TENURE_STORE_SERVICE_HOST": "10.0.0.2",
	} {
		t.Setenv(name, value)
	}
	var v values
	get, _, err := command(&v).Find([]string{"get"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"TENURE_BROKKER is not a setting", "TENURE_FORCE is not a setting"}
	if found := Unused(get); !slices.EqualFunc(found, want, strings.HasPrefix) {
		t.Errorf("found %q, want %q", found, want)
	}
}

func TestANumberOfBytesMayHaveAUnit(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "536870912": 512 << 20, "512MiB": 512 << 20, "64 KiB": 64 << 10, "100B": 100, "8191TiB": 8191 << 40, "9223372036854775807": 1<<63 - 1,
	} {
		var got byteSize
		if err := got.Set(text); err != nil || int64(got) != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
		var again byteSize
		if err := again.Set(got.String()); err != nil || again != got {
			t.Errorf("%q becomes %q, which is %d, %v", text, got.String(), again, err)
		}
	}
	for _, text := range []string{"", "MiB", "512MB", "0.5GiB", "-1", "-1MiB", "1 2", "9223372036854775808", "8388608TiB", "ten"} {
		if got := byteSize(7); got.Set(text) == nil || got != 7 {
			t.Errorf("%q: %d was accepted", text, got)
		}
	}
}

func TestAChoiceTakesItsValuesAndNamesThem(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	format, level := "text", ""
	Choice(flags, &format, "format", []string{"text", "json"}, "how to write")
	Choice(flags, &level, "level", []string{"debug", "info", "warn"}, "what to write")
	if err := flags.Parse([]string{"--level", "warn"}); err != nil || format != "text" || level != "warn" {
		t.Errorf("%q, %q, %v", format, level, err)
	}
	if err := flags.Set("format", "Text"); err == nil || !strings.Contains(err.Error(), "choose text or json") || format != "text" {
		t.Errorf("%v", err)
	}
	if help := flags.FlagUsages(); !strings.Contains(help, "how to write: text or json (default text)") || !strings.Contains(help, "what to write: debug, info or warn\n") {
		t.Errorf("the help is\n%s", help)
	}
}
