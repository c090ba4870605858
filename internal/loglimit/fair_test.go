package loglimit

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/logbuffer"
)

// A client that takes leases by force without end does not hide which client has taken the lease of another one.
func TestEachSourceHasLinesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buffer := new(logbuffer.Buffer)
		log := NewFair(buffer.Logger(), slog.LevelWarn, "took a lease")
		for i := range 5000 {
			log.Log(fmt.Sprint("c", i), "mallory", "reason", "nothing")
		}
		log.Log("c", "ana", "reason", "the node hangs")
		if got := buffer.String(); !strings.Contains(got, `reason="the node hangs"`) || strings.Count(got, "\n") != Burst+1 {
			t.Errorf("the log has %d lines", strings.Count(got, "\n"))
		}
		for i := range maxSources + 5 {
			log.Log("c", fmt.Sprint("user-", i), "reason", "nothing")
		}
		if len(log.sources) != maxSources {
			t.Errorf("%d sources have Lines", len(log.sources))
		}
		time.Sleep(quietFor + time.Second)
		log.Log("c", "later", "reason", "nothing")
		if len(log.sources) != 1 || log.sources["user later"] == nil {
			t.Errorf("after a quiet time %d sources have Lines", len(log.sources))
		}
		log.Close()
	})
}

// Where clients do not authenticate, those that go on do not hide one that comes once.
func TestClientsThatGoOnDoNotHideALineOfANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buffer := new(logbuffer.Buffer)
		log := NewFair(buffer.Logger(), slog.LevelWarn, "took a lease")
		for i := range 600 { // a minute
			for k := range maxSources / 2 {
				log.Log(fmt.Sprint("flood-", k), "", "reason", "x")
			}
			if i == 305 {
				log.Log("laptop-of-the-operator", "", "reason", "the node hangs")
			}
			time.Sleep(100 * time.Millisecond)
		}
		for i := range 2000 {
			log.Log(fmt.Sprint("n", i), "", "reason", "x")
		}
		log.Close()
		lines := strings.Count(buffer.String(), "\n")
		if strings.Count(buffer.String(), "the node hangs") != 1 || lines > maxSources*(Burst+62) {
			t.Errorf("the log has %d lines", lines)
		}
	})
}
