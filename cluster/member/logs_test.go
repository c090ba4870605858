package member

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// While a majority is lost, etcd repeats itself for as long as that lasts.
func TestWhatEtcdRepeatsIsLoggedSometimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written bytes.Buffer
		logger := zapLogger(slog.New(slog.NewTextHandler(&written, nil)), nil, new(phase))
		const hours = 3
		for began := time.Now(); time.Since(began) < hours*time.Hour; time.Sleep(500 * time.Millisecond) {
			logger.Warn("waiting for ReadIndex response took too long, retrying")
			logger.Error("something else")
		}
		intervals := int(hours * time.Hour / repetitionInterval)
		for _, message := range []string{"waiting for ReadIndex", "something else"} {
			if got, want := strings.Count(written.String(), message), perInterval*intervals; got != want {
				t.Errorf("%q was logged %d times, want %d", message, got, want)
			}
		}
	})
}

func TestWhatAPhaseExplainsIsNotLogged(t *testing.T) {
	var written bytes.Buffer
	phase := new(phase)
	logger := zapLogger(slog.New(slog.NewTextHandler(&written, nil)), nil, phase)
	logger.Error(beginning[0])
	logger.Info("etcd's own matters")
	logger.Warn(usual[0])
	if written.Len() > 0 {
		t.Errorf("a member that joins logged %s", written.String())
	}
	phase.ready.Store(true)
	logger.Error(beginning[0])
	if !strings.Contains(written.String(), "level=ERROR msg=\"etcd: "+beginning[0]) {
		t.Errorf("a member that has joined logged %q", written.String())
	}
	written.Reset()
	phase.closing.Store(true)
	logger.Error("use of closed network connection")
	if written.Len() > 0 {
		t.Errorf("a member that ends logged %s", written.String())
	}
}
