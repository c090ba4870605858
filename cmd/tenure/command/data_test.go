package command

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/transport"
)

func TestInvariant60TheFirstLineSaysWhereTheDataIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	ofUser := func(xdg string) []string {
		return []string{"STATE_DIRECTORY=", "HOME=" + in("home"), "LocalAppData=" + in("home/.local/state"), "XDG_STATE_HOME=" + xdg}
	}
	for _, test := range []struct {
		name        string
		environment []string
		arguments   []string
		want        string
	}{
		{"in memory", nil, []string{"serve", "--memory"}, "memory only"},
		{"a directory", nil, []string{"serve", "--data", in("given")}, in("given")},
		{"--data, and a directory of systemd", []string{"STATE_DIRECTORY=" + in("systemd")}, []string{"serve", "--data", in("other")}, in("other")},
		{"the directory of systemd", []string{"STATE_DIRECTORY=" + in("unit")}, []string{"serve"}, in("unit")},
		{"several directories of systemd", []string{"STATE_DIRECTORY=" + in("first") + string(filepath.ListSeparator) + in("second")}, []string{"serve"}, in("first")},
		{"the home directory", ofUser("a/relative/path"), []string{"serve"}, in("home/.local/state/tenure")},
		{"the user's directory for state", ofUser(in("xdg")), []string{"serve"}, map[bool]string{false: in("xdg/tenure"), true: in("home/.local/state/tenure")}[runtime.GOOS == "windows"]},
		{"attached, the home directory", ofUser("a/relative/path"), []string{"attach"}, in("home/.local/state/tenure/attach/BROKER")},
		{"attached, in memory", nil, []string{"attach", "--memory"}, "memory only"},
		{"attached, the directory of systemd", []string{"STATE_DIRECTORY=" + in("attached")}, []string{"attach"}, in("attached")},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ready string
			if test.arguments[0] == "serve" {
				test.arguments, ready = append(test.arguments, "--addr", "127.0.0.1:0"), `listening on mqtt://127\.0\.0\.1:\d+`
			} else {
				broker := mosquitto.Start(t, "").Address
				test.want = strings.ReplaceAll(test.want, "BROKER", url.QueryEscape(broker))
				test.arguments, ready = append(test.arguments, "mqtt://"+broker), "attached to mqtt://"+regexp.QuoteMeta(broker)
			}
			cmd := exec.Command(built.Path(t), test.arguments...)
			cmd.Env = append(os.Environ(), test.environment...)
			if got := start(t, cmd).mustPrint(ready + " with data in (.*)"); got != test.want {
				t.Errorf("the data is in %q, want %q", got, test.want)
			}
			if test.want == inMemory {
				return
			}
			info, err := os.Stat(test.want)
			if err != nil {
				t.Fatal(err)
			}
			if mode := info.Mode().Perm(); mode != 0o700 && runtime.GOOS != "windows" {
				t.Errorf("the directory has mode %o, want 700", mode)
			}
		})
	}
}

func TestAnInterruptWhileTheDataIsLoadedEndsTheStoreAtOnce(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if got := invokeWith(t, ctx, "", "serve", "--addr", "127.0.0.1:0", "--data", emptyData(t)); got.code != 0 || got.stdout != "stopped\n" {
		t.Errorf("%+v", got)
	}
}

func TestTheDataOfAStoreIsCheckedBackedUpRestoredAndExported(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	dir, file := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "backup")
	store := begin(t, "serve", "--addr", "127.0.0.1:0", "--data", dir)
	address := store.mustPrint(`listening on (\S+) .*`)
	client := dialTest(t, address, "writer")
	mustSet(t, client, "press-7/setpoint", "42")
	mustSet(t, client, "\x00\xff", "\xfe")
	output := func(arguments ...string) string {
		t.Helper()
		got := invoke(t, "", arguments...)
		if got.code != 0 || got.stderr != "" {
			t.Fatalf("%q: %+v", arguments, got)
		}
		return got.stdout
	}
	report := func(arguments ...string) (report journal.Report) {
		t.Helper()
		if err := json.Unmarshal([]byte(output(append(arguments, "--json")...)), &report); err != nil {
			t.Fatal(err)
		}
		return report
	}
	checked := report("check", dir)
	if !checked.Online || checked.Keys != 2 || checked.Identity == "" {
		t.Errorf("check of the data of a running store: %+v", checked)
	}
	if out := output("backup", dir, file); !strings.HasPrefix(out, file+" is a sound backup (a store is running on it)\n") {
		t.Errorf("backup said\n%s", out)
	}
	for _, source := range []string{dir, file} {
		exported := output("export", source)
		for _, want := range []string{`"kind":"key","key":"press-7/setpoint","value":"42"`, `"kind":"key","keyBase64":"AP8=","valueBase64":"/g=="`} {
			if !strings.Contains(exported, want) {
				t.Errorf("the export of %s has no %s:\n%s", source, want, exported)
			}
		}
	}
	mustSet(t, client, "press-7/setpoint", "lost with the disk")
	store.mustEndAfter(os.Kill, 137)
	if out := output("check", dir); !strings.Contains(out, " is sound\n") {
		t.Errorf("check of the data of a killed store said\n%s", out)
	}
	if got := invoke(t, "", "restore", file, dir); got.code != exitFailure || !strings.Contains(got.stderr, "it exists already") {
		t.Errorf("over data: %+v", got)
	}
	restored := filepath.Join(t.TempDir(), "restored", "data")
	if got := report("restore", file, restored); got.Keys != 2 || got.Identity == checked.Identity || got.Identity == "" {
		t.Errorf("restore: %+v, want another identity than %q", got, checked.Identity)
	}
	begin(t, "serve", "--addr", strings.TrimPrefix(address, "mqtt://"), "--data", restored).mustPrint("listening on .*")
	other := dialTest(t, address, "other")
	if entry, err := other.Get(ctx, "press-7/setpoint"); err != nil || string(entry.Value) != "42" {
		t.Errorf("restored: %+v, %v", entry, err)
	}
}

func TestALeaseAndAFenceSurviveTheEndOfTheStore(t *testing.T) {
	t.Parallel()
	arguments := []string{"serve", "--addr", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data")}
	store := begin(t, arguments...)
	address := store.mustPrint(`listening on (\S+) .*`)
	client := dialTest(t, address, "holder")
	old := hlc.Token(mustSet(t, client, "press-6", ""))
	token, err := acquireAs(t, client, "press-7").Token()
	if err != nil {
		t.Fatal(err)
	}
	guard := func(client *transport.Client, token hlc.Token) error {
		_, err := client.Set(t.Context(), "setpoint", []byte("1"), transport.SetOptions{FencingToken: token})
		return err
	}
	if err := guard(client, token); err != nil {
		t.Fatal(err)
	}
	store.mustEndAfter(os.Kill, 137)
	arguments[2] = strings.TrimPrefix(address, "mqtt://")
	begin(t, arguments...).mustPrint("listening on .*")
	other := dialTest(t, address, "other")
	if err := guard(other, old); !errors.Is(err, transport.ErrFencingTokenLower) {
		t.Errorf("a write with an older token: %v", err)
	}
	if err := guard(other, token); err != nil {
		t.Errorf("a write with the token of the tenure: %v", err)
	}
	if got := invoke(t, "", "holder", "--broker", address, "press-7"); got.stdout != "holder\n" {
		t.Errorf("the lease: %+v", got)
	}
}

// emptyData returns a directory with the data of a store that has not started.
func emptyData(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	data, err := journal.Open(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := data.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}
