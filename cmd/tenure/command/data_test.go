package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/transport"
)

// A test that starts a store without --memory and without a directory of its own would write to
// the user's. Here the default cannot be made, so that such a test fails.
func TestMain(m *testing.M) {
	_ = os.Unsetenv("STATE_DIRECTORY")
	_ = os.Setenv("XDG_STATE_HOME", filepath.Join(os.DevNull, "give-a-test-its-own-directory"))
	status := testprocess.Run(m)
	built.Remove()
	os.Exit(status)
}

// where returns what the first line of a command says after "with data in ".
func where(t *testing.T, cmd *exec.Cmd, ready string) string {
	t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = await.Result(cmd.Wait)
	})
	line, err := bufio.NewReader(pipe).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, ready) {
		t.Fatalf("first line %q, %v", line, err)
	}
	_, where, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " with data in ")
	return where
}

func TestInvariant60TheFirstLineSaysWhereTheDataIs(t *testing.T) {
	t.Parallel()
	path := build(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	state := map[string]string{"linux": in("home/.local/state"), "darwin": in("home/Library/Application Support"), "windows": in("local")}[runtime.GOOS]
	if state == "" {
		state = in("home/.local/state")
	}
	environment := []string{"HOME=" + in("home"), "LocalAppData=" + in("local"), "XDG_STATE_HOME="}
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
		{"the user's state", []string{"XDG_STATE_HOME=" + in("xdg")}, []string{"serve"}, filepath.Join(cmp.Or(map[string]string{"darwin": state, "windows": state}[runtime.GOOS], in("xdg")), "tenure")},
		{"a relative path, which the specification forbids", []string{"XDG_STATE_HOME=xdg"}, []string{"serve"}, filepath.Join(state, "tenure")},
		{"attached, in memory", nil, []string{"attach", "--memory"}, "memory only"},
		{"attached, the directory of systemd", []string{"STATE_DIRECTORY=" + in("attached")}, []string{"attach"}, in("attached")},
		{"attached, the user's state", nil, []string{"attach"}, filepath.Join(state, "tenure", "attach", "127.0.0.1_PORT")},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ready string
			if test.arguments[0] == "serve" {
				test.arguments, ready = append(test.arguments, "--addr", "127.0.0.1:0"), "listening on mqtt://127.0.0.1:"
			} else {
				broker := mosquitto.Start(t, "").Address
				_, port, _ := strings.Cut(broker, ":")
				test.want = strings.ReplaceAll(test.want, "PORT", port)
				test.arguments, ready = append(test.arguments, "mqtt://"+broker), "attached to mqtt://"+broker
			}
			cmd := exec.Command(path, test.arguments...)
			cmd.Env = append(os.Environ(), environment...)
			cmd.Env = append(cmd.Env, test.environment...)
			if got := where(t, cmd, ready); got != test.want {
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

func TestABrokerHasOneFolderForItsData(t *testing.T) {
	for _, test := range []struct{ broker, want string }{
		{"mqtt://Gateway-7.local", "gateway-7.local_1883"},
		{"mqtts://gateway-7.local", "gateway-7.local_8883"},
		{"mqtt://[fe80::1]:1884", "fe80%3A%3A1_1884"},
		{"ws://host/mqtt", "host_80%2Fmqtt"},
		{"ws://host:80/", "host_80"},
		{"wss://host/../../etc", "host_443%2F..%2F..%2Fetc"},
	} {
		got, err := brokerFolder(test.broker)
		if want := filepath.Join("tenure", "attach", test.want); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", test.broker, got, err, want)
		}
	}
	if _, err := brokerFolder("http://localhost"); err == nil {
		t.Error("what is no address has a folder")
	}
}

func TestAStoreRefusesADirectoryThatItCannotUseAndNamesTheCure(t *testing.T) {
	t.Parallel()
	path, dir := build(t), t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newcomer := filepath.Join(dir, "newcomer") // a member of etcd that has not found the others
	if err := errors.Join(os.MkdirAll(filepath.Join(newcomer, "member"), 0o700),
		os.WriteFile(filepath.Join(newcomer, "member", "name"), []byte("a"), 0o600)); err != nil {
		t.Fatal(err)
	}
	inUse := filepath.Join(dir, "in-use")
	holder := exec.Command(path, "serve", "--addr", "127.0.0.1:0", "--data", inUse)
	launch(t, holder, "listening on ")
	for _, test := range []struct {
		name        string
		environment []string
		arguments   []string
		code        int
		want        string
	}{
		{"kept and not kept", nil, []string{"--memory", "--data", dir}, exitUsage, "give one of them"},
		{"an empty name", nil, []string{"--data", ""}, exitUsage, "--data is empty"},
		{"a user without a directory", []string{"HOME=", "LocalAppData=", "XDG_STATE_HOME="}, nil, exitUsage, "give --data, or --memory to keep nothing"},
		{"a file", nil, []string{"--data", file}, exitUsage, file},
		{"a directory in a file", nil, []string{"--data", filepath.Join(file, "below")}, exitUsage, filepath.Join(file, "below")},
		{"a directory of a member of etcd", nil, []string{"--data", newcomer}, exitUsage, "has a member of etcd"},
		{"a directory that another store uses", nil, []string{"--data", inUse}, exitFailure, fmt.Sprint(holder.Process.Pid)},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command(path, append([]string{"serve", "--addr", "127.0.0.1:0"}, test.arguments...)...)
			cmd.Env = append(os.Environ(), test.environment...)
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != test.code || !strings.Contains(string(out), test.want) || strings.Count(string(out), "\n") != 1 {
				t.Errorf("%v, want exit status %d, and a line with %q, in\n%s", err, test.code, test.want, out)
			}
		})
	}
}

func TestAnInterruptWhileTheDataIsLoadedEndsTheStoreAtOnce(t *testing.T) {
	dir := emptyData(t)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	root := Program{Name: "tenure"}.Command()
	var stdout strings.Builder
	root.SetOut(&stdout)
	root.SetErr(io.Discard)
	root.SetArgs([]string{"serve", "--addr", "127.0.0.1:0", "--data", dir})
	if err := root.ExecuteContext(ctx); err != nil || stdout.String() != "stopped\n" {
		t.Errorf("%v, said %q", err, stdout.String())
	}
}

// A durableStore is a store with its data in a directory, at an address that it keeps: tenure
// serve, or tenure attach if there is a broker.
type durableStore struct {
	t             *testing.T
	path, dir     string
	broker        string
	address, host string
	cmd           *exec.Cmd
	stdout        *bufio.Scanner
}

func startDurable(t *testing.T) *durableStore {
	t.Helper()
	s := &durableStore{t: t, path: build(t), dir: filepath.Join(t.TempDir(), "data"), host: "127.0.0.1:0"}
	s.start()
	return s
}

func (s *durableStore) start(flags ...string) {
	s.t.Helper()
	if s.broker != "" {
		s.cmd = exec.Command(s.path, append([]string{"attach", s.broker, "--data", s.dir}, flags...)...)
		s.address, s.stdout = launch(s.t, s.cmd, "attached to ")
		return
	}
	s.cmd = exec.Command(s.path, append([]string{"serve", "--addr", s.host, "--data", s.dir}, flags...)...)
	s.address, s.stdout = launch(s.t, s.cmd, "listening on ")
	s.host = strings.TrimPrefix(s.address, "mqtt://")
}

// end sends a signal and waits for the end of the process.
func (s *durableStore) end(signal os.Signal) error {
	s.t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
	for s.stdout.Scan() {
	}
	return await.Result(s.cmd.Wait)
}

func (s *durableStore) dial(ctx context.Context) *transport.Client {
	s.t.Helper()
	client, err := transport.Dial(ctx, s.address, transport.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestAValueAFenceAndALeaseSurviveTheEndOfTheStore(t *testing.T) {
	t.Parallel()
	path := build(t)
	for _, test := range []struct {
		name     string
		attached bool
		signal   os.Signal
	}{
		{"a server, killed", false, os.Kill},
		{"a server, stopped", false, syscall.SIGTERM},
		{"an attached store, killed", true, os.Kill},
		{"an attached store, stopped", true, syscall.SIGTERM},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			s := &durableStore{t: t, path: path, dir: filepath.Join(t.TempDir(), "data"), host: "127.0.0.1:0"}
			if test.attached {
				s.broker = "mqtt://" + mosquitto.Start(t, "").Address
			}
			s.start()
			client := s.dial(ctx)
			version, err := client.Set(ctx, "k", []byte("v\x00\xff"), transport.SetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			active := func(client *transport.Client) *lease.Lease {
				l, err := lease.New(client, "press-7/active", lease.Options{TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			earlier, err := active(client).Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			old, err := earlier.Token()
			if err != nil {
				t.Fatal(err)
			}
			if err := earlier.Release(ctx); err != nil {
				t.Fatal(err)
			}
			tenure, err := active(client).Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			token, err := tenure.Token()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.Set(ctx, "setpoint", []byte("1"), transport.SetOptions{FencingToken: token}); err != nil {
				t.Fatal(err)
			}

			if err := s.end(test.signal); (err == nil) != (test.signal == syscall.SIGTERM) {
				t.Errorf("the store ended with %v", err)
			}
			s.start()

			other := s.dial(ctx)
			entry, err := other.Get(ctx, "k")
			if err != nil || string(entry.Value) != "v\x00\xff" || entry.Version != version {
				t.Errorf("the key is %+v, %v, want version %v", entry, err, version)
			}
			if _, err := other.Set(ctx, "setpoint", []byte("0"), transport.SetOptions{FencingToken: old}); !errors.Is(err, transport.ErrFencingTokenLower) {
				t.Errorf("a write with the token of an earlier tenure: %v, want ErrFencingTokenLower", err)
			}
			if _, err := active(other).TryAcquire(ctx); !errors.Is(err, lease.ErrHeld) {
				t.Errorf("the lease of a holder that lives: %v, want ErrHeld", err)
			}
			if later, err := other.Set(ctx, "new", nil, transport.SetOptions{}); err != nil || later.Compare(version) <= 0 {
				t.Errorf("a later version is %v, %v, not above %v", later, err, version)
			}
			// The holder's own client connects again, and notices nothing else.
			_, err = client.Set(ctx, "setpoint", []byte("2"), transport.SetOptions{FencingToken: token})
			for (errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNoStore)) && ctx.Err() == nil {
				_, err = client.Set(ctx, "setpoint", []byte("2"), transport.SetOptions{FencingToken: token})
			}
			if err != nil {
				t.Errorf("a write of the holder: %v", err)
			}
			if now, err := tenure.Token(); err != nil || now != token {
				t.Errorf("the tenure has token %v, %v, want %v", now, err, token)
			}
			if err := tenure.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// output runs a command of tenure, which must succeed.
func (s *durableStore) output(arguments ...string) string {
	s.t.Helper()
	cmd := exec.Command(s.path, arguments...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || stderr.Len() > 0 {
		s.t.Fatalf("%q: %v, standard error %q", arguments, err, stderr.String())
	}
	return string(out)
}

// A report is what --json prints, as far as the tests need it.
type report struct {
	File     string `json:"file"`
	Online   bool   `json:"online"`
	Keys     int    `json:"keys"`
	Identity string `json:"identity"`
}

func (s *durableStore) report(arguments ...string) (got report) {
	s.t.Helper()
	out := s.output(append(arguments, "--json")...)
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		s.t.Fatalf("%v in\n%s", err, out)
	}
	return got
}

func TestTheDataOfAStoreIsCheckedBackedUpRestoredAndExported(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	s := startDurable(t)
	client := s.dial(ctx)
	for key, value := range map[string]string{"press-7/setpoint": "42", "\x00\xff": "\xfe"} {
		if _, err := client.Set(ctx, key, []byte(value), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "backup")

	checked := s.report("check", s.dir)
	if !checked.Online || checked.Keys != 2 || checked.Identity == "" {
		t.Errorf("check of the data of a running store: %+v", checked)
	}
	if out := s.output("backup", s.dir, file); !strings.HasPrefix(out, file+" is a sound backup (a store is running on it)\n") {
		t.Errorf("backup said\n%s", out)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 && runtime.GOOS != "windows" {
		t.Errorf("the backup: %v, %v, want mode 600", info, err)
	}
	for _, source := range []string{s.dir, file} {
		lines := strings.Split(strings.TrimSpace(s.output("export", source)), "\n")
		var keys []string
		for _, line := range lines {
			var record struct {
				Kind, Key, Value string
				KeyBase64        []byte `json:"keyBase64"`
				ValueBase64      []byte `json:"valueBase64"`
			}
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			var fields map[string]any
			_ = json.Unmarshal([]byte(line), &fields) // it was read above
			for field := range fields {
				if !camelCase.MatchString(field) {
					t.Errorf("%q in %s, want camelCase as in all JSON", field, line)
				}
			}
			if record.Kind == "key" {
				keys = append(keys, record.Key+string(record.KeyBase64)+"="+record.Value+string(record.ValueBase64))
			}
		}
		if got := strings.Join(keys, " "); got != "\x00\xff=\xfe press-7/setpoint=42" && got != "press-7/setpoint=42 \x00\xff=\xfe" {
			t.Errorf("the export of %s has the keys %q", source, got)
		}
	}

	last, err := client.Set(ctx, "press-7/setpoint", []byte("lost with the disk"), transport.SetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lease.New(client, "press-7/active", lease.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := l.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.end(os.Kill); err == nil {
		t.Error("a killed server ended without an error")
	}
	lost := s.dir
	if out := s.output("check", lost); !strings.HasPrefix(out, filepath.Join(lost, "")) || !strings.Contains(out, " is sound\n") {
		t.Errorf("check of the data of a killed store said\n%s", out)
	}

	s.dir = filepath.Join(t.TempDir(), "restored", "data")
	if got := s.report("restore", file, s.dir); got.Keys != 2 || got.Identity == checked.Identity || got.Identity == "" {
		t.Errorf("restore: %+v, want another identity than %q", got, checked.Identity)
	}
	s.start()
	entry, err := s.dial(ctx).Get(ctx, "press-7/setpoint")
	if err != nil || string(entry.Value) != "42" {
		t.Errorf("restored: %+v, %v", entry, err)
	}
	if later, err := s.dial(ctx).Set(ctx, "press-7/setpoint", []byte("43"), transport.SetOptions{}); err != nil || later.Compare(last) <= 0 {
		t.Errorf("after the restore a version is %v, %v, want above %v, which was lost", later, err, last)
	}
	select {
	case <-tenure.Context().Done():
		if cause := context.Cause(tenure.Context()); !errors.Is(cause, lease.ErrStoreReplaced) {
			t.Errorf("the tenure of the lost data ended with %v", cause)
		}
	case <-ctx.Done():
		t.Error("the tenure of the lost data goes on")
	}
}

func TestCommandsRefuseWhatTheyCannotUseAndNameTheCure(t *testing.T) {
	s := startDurable(t)
	if err := s.end(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	backup, garbage, cut, damaged := in("backup"), in("garbage"), in("cut"), t.TempDir()
	s.output("backup", s.dir, backup)
	content, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{garbage: []byte(strings.Repeat("garbage", 10_000)), cut: content[:len(content)/2],
		filepath.Join(damaged, "tenure.log"): content[:len(content)/2]} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		want      string
	}{
		{"no directory", []string{"check"}, exitUsage, "give the directory of the data, or the file of a backup: tenure check DIR"},
		{"an empty argument", []string{"check", ""}, exitUsage, "an argument is empty"},
		{"two directories", []string{"check", dir, dir}, exitUsage, "one argument too many"},
		{"no file", []string{"backup", s.dir}, exitUsage, "give the file for the backup: tenure backup DIR FILE"},
		{"no directory for the restore", []string{"restore", backup}, exitUsage, "give the directory for the data: tenure restore FILE DIR"},
		{"nothing to export", []string{"export"}, exitUsage, "give the directory of the data"},
		{"a directory that is not there", []string{"check", in("no")}, exitUsage, in("no")},
		{"a backup of what is not there", []string{"backup", in("no"), in("new")}, exitUsage, in("no")},
		{"a backup of a backup", []string{"backup", backup, in("new")}, exitUsage, "give a directory"},
		{"an export of what is not there", []string{"export", in("no")}, exitUsage, in("no")},
		{"a directory without data", []string{"check", dir}, exitUsage, "give the directory of a durable store"},
		{"an export of a directory without data", []string{"export", dir}, exitUsage, "give the directory of a durable store"},
		{"a file of another program", []string{"check", garbage}, exitFailure, garbage},
		{"half of a journal", []string{"check", damaged}, exitFailure, "; stop the store, and restore a backup into an empty directory"},
		{"half of a journal to export", []string{"export", damaged}, exitFailure, `; stop the store, and restore a backup`},
		{"half of a backup", []string{"check", cut}, exitFailure, "; this backup cannot be used: take another one"},
		{"half of a backup to export", []string{"export", cut}, exitFailure, "; this backup cannot be used: take another one"},
		{"half of a backup to restore", []string{"restore", cut, in("new")}, exitFailure, "; this backup cannot be used: take another one"},
		{"a backup over a file", []string{"backup", s.dir, backup}, exitFailure, "it exists already"},
		{"a backup into nowhere", []string{"backup", s.dir, in("no/backup")}, exitFailure, in("no")},
		{"a restore over data", []string{"restore", backup, s.dir}, exitFailure, "it exists already"},
		{"a restore from nowhere", []string{"restore", in("no"), in("other")}, exitUsage, in("no")},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command(s.path, test.arguments...)
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != test.code || !strings.Contains(string(out), test.want) || strings.Count(string(out), "\n") != 1 {
				t.Errorf("%v, want exit status %d, and a line with %q, in\n%s", err, test.code, test.want, out)
			}
		})
	}
	s.start() // none of it harmed the data
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

// run runs a command of tenure in this process.
func run(ctx context.Context, arguments ...string) (stdout, stderr string, err error) {
	var out, log strings.Builder
	root := Program{Name: "tenure"}.Command()
	root.SetOut(&out)
	root.SetErr(&log)
	root.SetArgs(arguments)
	err = root.ExecuteContext(ctx)
	return out.String(), log.String(), err
}

func TestAnInterruptedCommandSaysWhatItLeft(t *testing.T) {
	dir, other := emptyData(t), t.TempDir()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	backup, restored := filepath.Join(other, "backup"), filepath.Join(other, "restored")
	for _, test := range []struct {
		arguments []string
		want      string
	}{
		{[]string{"backup", dir, backup}, "interrupted; there is no " + backup},
		{[]string{"restore", filepath.Join(dir, "tenure.log"), restored}, "interrupted; no data was left in " + restored},
	} {
		if _, _, err := run(ctx, test.arguments...); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %q", test.arguments[0], err, test.want)
		}
	}
	for _, left := range []string{backup, filepath.Join(restored, "tenure.log"), filepath.Join(restored, "tenure.log.new")} {
		if _, err := os.Lstat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("there is %s: %v", left, err)
		}
	}
}

// A warning is beside the report, and does not fail the command.
func TestACheckWarnsOfRights(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no mode bits")
	}
	dir := emptyData(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := run(t.Context(), "check", dir)
	if err != nil || !strings.Contains(stdout, " is sound\n") || strings.Count(stderr, "\n") != 1 ||
		!strings.HasPrefix(stderr, "tenure: warning: "+dir+": ") || !strings.Contains(stderr, "chmod go-w") {
		t.Errorf("%v, standard output %q, standard error %q", err, stdout, stderr)
	}
	stdout, _, err = run(t.Context(), "check", "--json", dir)
	var report journal.Report
	if decoded := json.Unmarshal([]byte(stdout), &report); err != nil || decoded != nil || len(report.Warnings) != 1 {
		t.Errorf("%v, %v, the warnings of the report are %q", err, decoded, report.Warnings)
	}
	if _, _, err := run(t.Context(), "serve", "--addr", "127.0.0.1:0", "--data", dir); !errors.Is(err, journal.ErrUnsafe) {
		t.Errorf("serve has error %v", err)
	}
}

func TestHelpOfTheCommandsForDataShowsAnExample(t *testing.T) {
	path := build(t)
	for _, name := range []string{"check", "backup", "restore", "export"} {
		out, err := exec.Command(path, name, "--help").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Examples:\n  tenure "+name+" ") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if len(strings.TrimSuffix(line, "\n")) > 80 && !strings.Contains(line, "--") {
				t.Errorf("%s: a line is longer than 80 bytes: %s", name, line)
			}
		}
	}
}

func TestATerminalShowsHowFarALongCommandIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shown []string
		progress := percentage(func(text string) { shown = append(shown, text) }, "checking")
		progress(1, 4) // it has just begun
		time.Sleep(2 * progressInterval)
		progress(1, 0) // no total is known
		progress(1, 4)
		progress(2, 4) // too early
		time.Sleep(2 * progressInterval)
		progress(5, 4)
		if got := strings.Join(shown, ", "); got != "checking: 25%, checking: 100%" {
			t.Errorf("it shows %q", got)
		}
	})
}
