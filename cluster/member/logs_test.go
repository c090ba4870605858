package member

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/tenurelock/tenure/internal/logbuffer"
)

// While a majority is lost, etcd repeats itself for as long as that lasts.
func TestWhatEtcdRepeatsIsLoggedSometimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written logbuffer.Buffer
		logger := zapLogger(written.Logger(), nil, new(atomic.Bool))
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

func TestTheLogHasEtcdsWarningsAndNotWhatIsUsual(t *testing.T) {
	var written logbuffer.Buffer
	quiet := new(atomic.Bool)
	logger := zapLogger(slog.New(slog.NewTextHandler(&written, nil)), nil, quiet).With(zap.String("member", "m0"))
	logger.Info("etcd's own matters")
	logger.Warn(usual[0])
	logger.Error("a fault", zap.Int("times", 2))
	quiet.Store(true)
	logger.Error("use of closed network connection")
	if got := written.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=ERROR msg="etcd: a fault" member=m0 times=2`) {
		t.Errorf("the log has\n%s", got)
	}
}
