package attach

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnOutageIsLoggedOnceAndThenNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(strings.Builder)
		o := newOutage(slog.New(slog.NewTextHandler(log, nil)), "b")
		lines := func() (got []string) {
			got = strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
			log.Reset()
			return got
		}
		refused := errors.New("connection refused")
		port := 0
		down := func() error { // a new local port each time
			port++
			return fmt.Errorf("no connection: %w", &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{Port: port}, Err: refused})
		}
		for range 8 {
			o.failed(down())
			time.Sleep(500 * time.Millisecond)
		}
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], "not attached; will try again") || !strings.Contains(got[0], "connection refused") {
			t.Errorf("four seconds are logged as %q", got)
		}
		for range 24 * 720 { // a day
			o.failed(down())
			time.Sleep(5 * time.Second)
		}
		if got := lines(); len(got) < 90 || len(got) > 110 || !strings.Contains(got[0], "not attached; will try again") || !strings.Contains(got[0], "attempts=15 for=34s") {
			t.Errorf("a day is logged in %d lines, the first is %q", len(got), got[0])
		}
		o.failed(errors.New("bad certificate"))
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], "bad certificate") {
			t.Errorf("another reason is logged as %q", got)
		}
		o.over()
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], "attached after an outage") || !strings.Contains(got[0], "attempts=17289 outage=24h0m4s") {
			t.Errorf("the end is logged as %q", got)
		}
		o.over()
		if log.Len() > 0 {
			t.Errorf("an end without an outage is logged as %q", lines())
		}
		o.failed(down())
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], "not attached; will try again") {
			t.Errorf("the next outage is logged as %q", got)
		}
	})
}
