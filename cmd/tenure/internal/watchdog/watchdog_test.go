package watchdog

import (
	"errors"
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
	dog, required, err := (&Setting{Device: device}).Open(10 * time.Second)
	if err != nil || !required || dog.Timeout != 2*time.Second {
		t.Fatalf("%+v, %v, %v", dog, required, err)
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
	for ttl, want := range map[time.Duration]string{10 * time.Second: "twice that", time.Second: "too short"} {
		if dog, _, err := (&Setting{Device: device}).Open(ttl); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("TTL %v: %+v, %v", ttl, dog, err)
		}
	}
	if got, err := os.ReadFile(device); err != nil || string(got) != "V" {
		t.Errorf("the device got %q, %v", got, err)
	}
}

func TestADeviceThatIsMissingIsAnErrorUnlessItIsAutomatic(t *testing.T) {
	for _, automatic := range []bool{false, true} {
		missing := &Setting{Device: filepath.Join(t.TempDir(), "none"), Automatic: automatic}
		if dog, required, err := missing.Open(LeastTTL); dog != nil || required == automatic || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("automatic %v: %v, %v, %v", automatic, dog, required, err)
		}
	}
	if dog, required, err := new(Setting).Open(0); dog != nil || required || err != nil {
		t.Errorf("off: %v, %v, %v", dog, required, err)
	}
}

func TestAFileThatIsNoDeviceIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if dog, _, err := (&Setting{Device: file}).Open(LeastTTL); err == nil {
		t.Errorf("%+v", dog)
	}
}

func TestTheFlagNamesADevice(t *testing.T) {
	for text, want := range map[string]Setting{
		"off": {}, "/dev/watchdog": {Device: "/dev/watchdog"}, "auto:/dev/watchdog1": {Device: "/dev/watchdog1", Automatic: true},
	} {
		var got Setting
		if err := got.Set(text); err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v (%s), %v", text, got, &got, err)
		}
	}
	for _, text := range []string{"", "on", "auto:", "auto"} {
		if err := new(Setting).Set(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
