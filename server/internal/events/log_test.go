package events

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// force logs that a client of a user has taken a lease by force.
func (l *Log) force(user, client, reason string) {
	c := command(time.Now(), "DEL", "k")
	c.Client, c.User = client, user
	l.Answered(c, &statestore.Reply{Outcome: statestore.Deleted, Forced: &statestore.HolderChange{From: "a", Forced: reason}}, "")
}

// One client can have any number of client ids, and take its own connections over as fast as it can.
func TestAFloodOfTakeOversIsABoundedNumberOfLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, user := range map[string]func(i int) string{
			"one user":            func(int) string { return "mallory" },
			"no user":             func(int) string { return "" },
			"a user for each one": func(i int) string { return fmt.Sprint("user-", i) },
		} {
			buffer, all := new(logbuffer.Buffer), NewClients()
			log := NewLog(buffer.Logger())
			flap := func(id, user string) {
				for range 3 {
					log.TakenOver(all.Come(id, user, "", true), id, user, "", "")
				}
			}
			for i := range 10_000 {
				flap(fmt.Sprint("c", i), user(i))
				if i%100 == 0 {
					time.Sleep(100 * time.Millisecond)
				}
			}
			flap("honest", "operator")
			synctest.Wait()
			log.Close()
			lines := strings.Count(buffer.String(), "\n")
			omitted := strings.Count(buffer.String(), "omitted=")
			if lines > 2*(maxSources+2)*logs.Burst || omitted == 0 {
				t.Errorf("%s: %d lines, %d counts", name, lines, omitted)
			}
			if name == "one user" && !strings.Contains(buffer.String(), "client=honest") {
				t.Errorf("%s: the client id of another user is not in the log", name)
			}
		}
	})
}

// A client that takes leases by force without end does not hide which client has taken the lease of another one.
func TestEachSourceHasLinesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buffer := new(logbuffer.Buffer)
		log := NewLog(buffer.Logger())
		for i := range 5000 {
			log.force("mallory", fmt.Sprint("c", i), "nothing")
		}
		log.force("ana", "c", "the node hangs")
		if got := buffer.String(); !strings.Contains(got, `reason="the node hangs"`) || strings.Count(got, "\n") != logs.Burst+1 {
			t.Errorf("the log has %d lines", strings.Count(got, "\n"))
		}
		for i := range maxSources + 5 {
			log.force(fmt.Sprint("user-", i), "c", "nothing")
		}
		if len(log.forced.sources) != maxSources {
			t.Errorf("%d sources have a limiter", len(log.forced.sources))
		}
		time.Sleep(quietFor + time.Second)
		log.force("later", "c", "nothing")
		if len(log.forced.sources) != 1 || log.forced.sources["user later"] == nil {
			t.Errorf("after a quiet time %d sources have a limiter", len(log.forced.sources))
		}
		log.Close()
	})
}

// Where clients do not authenticate, those that go on do not hide one that comes once.
func TestClientsThatGoOnDoNotHideALineOfANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buffer := new(logbuffer.Buffer)
		log := NewLog(buffer.Logger())
		for i := range 600 { // a minute
			if i%400 == 0 {
				for k := range maxSources {
					log.force("", fmt.Sprint("m", k), "x")
				}
			}
			log.force("", "flood-1", "x")
			log.force("", "flood-2", "x")
			if i == 305 {
				log.force("", "laptop-of-the-operator", "the node hangs")
			}
			time.Sleep(97 * time.Millisecond)
		}
		for i := range 2 * maxSeen {
			log.force("", fmt.Sprint("n", i), "x")
		}
		if len(log.forced.seen) > maxSeen {
			t.Errorf("%d sources are counted", len(log.forced.seen))
		}
		log.Close()
		if strings.Count(buffer.String(), "the node hangs") != 1 || strings.Count(buffer.String(), "\n") > 2*maxSources+2*logs.Burst+2*70 {
			t.Errorf("the log has %d lines", strings.Count(buffer.String(), "\n"))
		}
	})
}
