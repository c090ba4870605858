package command

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/transport"
)

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
	backup, garbage, cut := in("backup"), in("garbage"), in("cut")
	s.output("backup", s.dir, backup)
	content, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{garbage: []byte(strings.Repeat("garbage", 10_000)), cut: content[:len(content)/2]} {
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
		{"a directory without data", []string{"check", dir}, exitFailure, "give the directory of a durable store"},
		{"a file of another program", []string{"check", garbage}, exitFailure, garbage},
		{"half of a backup", []string{"check", cut}, exitFailure, "damaged"},
		{"half of a backup to export", []string{"export", cut}, exitFailure, "damaged"},
		{"half of a backup to restore", []string{"restore", cut, in("new")}, exitFailure, "damaged"},
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
		{[]string{"restore", filepath.Join(dir, "tenure.log"), restored}, "interrupted; nothing was left in " + restored},
	} {
		if _, _, err := run(ctx, test.arguments...); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %q", test.arguments[0], err, test.want)
		}
		if left, err := os.ReadDir(other); err != nil || len(left) > 0 {
			t.Errorf("%s left %v, %v", test.arguments[0], left, err)
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
