package loglimit

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lines collects what is logged, without times.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text
	l.text = nil
	return text
}

func newTestLines(to io.Writer, level slog.Level) *Lines {
	return NewLines(slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), slog.LevelWarn, "refused")
}

func TestAFloodOfWarningsIsABurstAndThenALineASecondWithACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lines)
		l := newTestLines(log, slog.LevelWarn)
		defer l.Close()
		for i := range 10_000 { // 1,000 a second
			l.Log("remote", i)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		got := log.take()
		if len(got) < Burst+9 || len(got) > Burst+11 {
			t.Fatalf("%d lines of ten seconds: %q", len(got), got)
		}
		if got[0] != "level=WARN msg=refused remote=0" || got[Burst-1] != "level=WARN msg=refused remote=9" {
			t.Errorf("the burst is %q", got[:Burst])
		}
		l.Close()
		got = append(got, log.take()...)
		counted := len(got) - 1 // the last has the count only
		for _, line := range got[Burst:] {
			_, omitted, _ := strings.Cut(line, "omitted=")
			left, _ := strconv.Atoi(omitted)
			counted += left
		}
		if counted != 10_000 {
			t.Errorf("%d warnings are accounted for", counted)
		}
	})
}

func TestTheEndOfAFloodIsCountedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lines)
		l := newTestLines(log, slog.LevelWarn)
		defer l.Close()
		for i := range Burst + 5 {
			l.Log("remote", i)
		}
		synctest.Wait()
		if got := log.take(); len(got) != Burst {
			t.Errorf("at once there are %q", got)
		}
		time.Sleep(Interval)
		synctest.Wait()
		l.Log("remote", "last")
		if got := fmt.Sprint(log.take()); got != "[level=WARN msg=refused remote=last omitted=5]" {
			t.Errorf("a moment later there are %s", got)
		}
		time.Sleep(time.Minute)
		for range Burst {
			l.Log()
		}
		synctest.Wait()
		if got := log.take(); len(got) != Burst {
			t.Errorf("after a pause a burst is %q", got)
		}
	})
}
