package command

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestWrongUsageEndsWithTheCodeForItAndNamesTheCure(t *testing.T) {
	empty, dir := write(t, "empty", "\n"), t.TempDir()
	member := filepath.Join(t.TempDir(), "member") // of etcd, that has not found the others
	if err := os.Mkdir(member, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", "")
	t.Setenv("USERPROFILE", "")
	t.Setenv("STATE_DIRECTORY", "")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("LocalAppData", "")
	for _, test := range []struct{ line, want string }{
		{"get", "usage: tenure get KEY"},
		{"sreve", `unknown command "sreve"`},
		{"set k v --nx --nex", "give --nx or --nex, not both"},
		{"set k v --px 1us", "whole milliseconds"},
		{"set k v --px 5", `--px: want a duration such as 5s, not "5"`},
		{"set k v --fence _", `--fence: want a token`},
		{"del k --fence 7", `--fence: want a token such as 1795363097601:1:StateStore, not "7"`},
		{"get k --broker http://localhost", "like mqtt://host:1883"},
		{"get k --broker mqtt://user:secret-word@localhost", "credentials are options"},
		{"get k --broker mqtts://localhost --tls-cert c.pem", "set both or neither"},
		{"get k --log-level loud", "choose debug, info, warn or error"},
		{"release lease", "give --yes"},
		{"release lease --yes --reason " + strings.Repeat("x", 257), "--reason is longer than 256 bytes"},
		{"run l --ttl 2s --grace 1s -- true", "make --ttl longer"},
		{"run l --ttl 0s -- true", "--ttl 0s must be positive"},
		{"run l --rank -1 -- true", "cannot be negative"},
		{"run l --health-every 1s -- true", "need --health"},
		{"run l --ttl 7.9s --grace 1s --after true --watchdog /dev/watchdog -- true", "shorter than 1s"},
		{"elect l", "listen"},
		{"elect l --listen unix:" + empty, "no socket"},
		{"elect l --listen 127.0.0.1:0 --ttl 2s --warn 1900ms", "cannot carry --warn 1.9s"},
		{"elect l --listen 127.0.0.1:0 --ttl 2s --watchdog /dev/watchdog", "3s"},
		{"run l --watchdog yes -- true", "--watchdog: give off, a device such as /dev/watchdog, or auto:/dev/watchdog"},
		{"lock --wait -1s l -- true", "--wait -1s or --at-least 0s is negative"},
		{"lock -E 256 l -- true", "want a smaller number"},
		{"health --admin a/b", "--admin: write the address of a status page like 127.0.0.1:8080"},
		{"top", "--admin: write the address of a status page like 127.0.0.1:8080"},
		{"serve --hold-off -1s", "cannot be negative; 0: none"},
		{"serve --max-memory 1MiB", "--max-memory 1048576 is below 33554432"},
		{"serve --max-memory 512MB", "like 536870912, 512MiB or 2GiB"},
		{"serve --addr 0.0.0.0:0", "or say --insecure"},
		{"serve --addr localhost:mqttt", "write it like :1883"},
		{"serve --lock-prefix locks/", "--lock-prefix needs --strict"},
		{"serve --tls-cert no.pem --tls-key no.key", "--tls-cert: open no.pem"},
		{"serve --auth no.yaml", "--auth: access: open no.yaml"},
		{"serve --admin 0.0.0.0:0", "--admin-insecure"},
		{"serve --admin 8080", "is not host:port"},
		{"serve --memory --data " + dir, "give one of them"},
		{"serve --data " + filepath.Dir(member), "has a member of etcd"},
		{"serve --max-keys 1", "give --data, or --memory to keep nothing"},
		{"attach", "give the URL of the broker, like mqtt://localhost:1883"},
		{"attach mqtt://store:secret-word@localhost", "like mqtt://host:1883"},
		{"attach mqtt://localhost --password-file " + empty, "is empty"},
		{"run web ls", "usage: tenure run [flags] NAME -- COMMAND"},
		{"attach mqtts://localhost --tls-cert x.pem", "both --tls-cert and --tls-key"},
		{"attach mqtts://localhost --tls-cert no.pem --tls-key no.key", "--tls-cert: open no.pem"},
		{"backup /var/lib/tenure", "usage: tenure backup DIR FILE"},
		{"export " + dir, "give the directory of a durable store"},
	} {
		arguments := strings.Fields(test.line)
		for i, argument := range arguments {
			if argument == "_" {
				arguments[i] = ""
			}
		}
		if arguments[0] == "serve" && !slices.Contains(arguments, "--addr") {
			arguments = append(arguments, "--addr", "127.0.0.1:0")
		}
		stores := strings.Contains(test.line, "--data") || strings.Contains(test.want, "--data")
		if (arguments[0] == "serve" || arguments[0] == "attach") && !stores {
			arguments = append(arguments, "--memory")
		}
		t.Run(test.line, func(t *testing.T) {
			got := invoke(t, "", arguments...)
			if got.code != exitUsage || !strings.Contains(got.stderr, test.want) {
				t.Errorf("%+v, want exit code 2 and a line with %q", got, test.want)
			}
			if got.stdout != "" || strings.Contains(got.stderr, "secret-word") {
				t.Errorf("it said too much: %+v", got)
			}
		})
	}
}

func TestAnAddressThatIsNoneMakesNoDirectory(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	invoke(t, "", "serve", "--data", data, "--addr", "localhost:mqttt")
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the data: %v", err)
	}
}

func TestAnAddressThatAnotherProgramHasEndsAStore(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, flag := range []string{"--addr", "--admin"} {
		got := invoke(t, "", "serve", "--memory", "--addr", "127.0.0.1:0", flag, taken.Addr().String())
		if got.code != exitFailure || !strings.Contains(got.stderr, "already in use by another process: stop that, or give another address") {
			t.Errorf("%s: %+v", flag, got)
		}
	}
}

// What completion prints becomes a part of a shell.
func TestHelpAndCompletionRefuseWhatTheyDoNotKnow(t *testing.T) {
	for _, test := range []struct{ line, stdout, stderr string }{
		{"nope", "", `unknown command "nope" for "tenure"`},
		{"help --nope", "", "unknown flag: --nope"},
		{"completion zhs", "", `unknown command "zhs" for "tenure completion"`},
		{"completion zsh bash", "", `unknown command "bash" for "tenure completion zsh"`},
		{"help", "Available Commands:", ""},
		{"help serve", "--addr", ""},
		{"completion", "  zsh ", ""},
		{"completion bash", "tenure", ""},
		{"__complete rel", "release", "Completion ended"},
	} {
		want := exitUsage
		if test.stdout != "" {
			want = 0
		}
		got := invoke(t, "", strings.Fields(test.line)...)
		if got.code != want || !strings.Contains(got.stdout, test.stdout) || !strings.Contains(got.stderr, test.stderr) {
			t.Errorf("%s: %+v, want exit code %d, %q and %q", test.line, got, want, test.stdout, test.stderr)
		}
		if test.stdout == "" && got.stdout != "" || test.stderr == "" && got.stderr != "" {
			t.Errorf("%s: it said too much: %+v", test.line, got)
		}
	}
}

func TestEachFlagOfAnOptionExists(t *testing.T) {
	commands := Program{Name: "tenure"}.Command().Commands()
	for option, flags := range optionFlags {
		name, _, _ := strings.Cut(flags, ",") // of several, the first one
		if !slices.ContainsFunc(commands, func(cmd *cobra.Command) bool { return cmd.Flags().Lookup(name) != nil }) {
			t.Errorf("%s: there is no flag --%s", option, name)
		}
	}
}
