package watchdog

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fake makes a file that stands for a device, which waits for shortest seconds at least.
func fake(t *testing.T, shortest int) (device string) {
	t.Helper()
	set := setTimeout
	t.Cleanup(func() { setTimeout = set })
	setTimeout = func(_ *os.File, seconds int) (int, error) { return max(seconds, shortest), nil }
	device = filepath.Join(t.TempDir(), "watchdog")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return device
}

func TestADeviceIsFedWhileTheLeaseOutlastsItAndClosedWithTheLetterV(t *testing.T) {
	device := fake(t, 1)
	dog, err := open(device, 10*time.Second)
	if err != nil || dog.Timeout != 2*time.Second {
		t.Fatalf("%+v, %v", dog, err)
	}
	for _, left := range []time.Duration{10 * time.Second, 2 * time.Second, 2*time.Second - 1, 0, -1} {
		if err := dog.Feed(left); err != nil {
			t.Error(err)
		}
	}
	if err := dog.Close(); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(device); err != nil || string(got) != "\x00\x00V" {
		t.Errorf("the device got %q, %v", got, err)
	}
}

func TestADeviceThatWouldComeTooLateIsRefusedAndStopped(t *testing.T) {
	device := fake(t, 6)
	if dog, err := open(device, 10*time.Second); err == nil || !strings.Contains(err.Error(), "twice that") {
		t.Errorf("%+v, %v", dog, err)
	}
	if got, err := os.ReadFile(device); err != nil || string(got) != "V" {
		t.Errorf("the device got %q, %v", got, err)
	}
}

func TestWhatIsNoDeviceIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{file, file + "-that-is-missing"} {
		if dog, err := open(device, LeastTTL); err == nil {
			t.Errorf("%+v", dog)
		}
	}
}

func TestTheFlagNamesADeviceWhichIsRequiredUnlessItIsAutomatic(t *testing.T) {
	device := fake(t, 1)
	missing := device + "-that-is-missing"
	for _, test := range []struct {
		text            string
		has, fails, log bool
	}{
		{"off", false, false, false}, {device, true, false, false}, {"auto:" + device, true, false, false},
		{missing, false, true, false}, {"auto:" + missing, false, false, true},
	} {
		s, log := Setting{Device: "before"}, new(strings.Builder)
		if err := s.Set(test.text); err != nil {
			t.Errorf("%s: %v", test.text, err)
		}
		dog, err := s.Open(LeastTTL, slog.New(slog.NewTextHandler(log, nil)))
		if (dog != nil) != test.has || (err != nil) != test.fails || strings.Contains(log.String(), "leading without a watchdog") != test.log {
			t.Errorf("%s: %v, %v, and the log is %q", test.text, dog, err, log)
		}
	}
	for _, text := range []string{"", "on", "auto:", "auto"} {
		if new(Setting).Set(text) == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
