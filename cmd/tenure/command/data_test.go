package command

import (
	"bufio"
	"cmp"
	"context"
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
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/lease"
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
