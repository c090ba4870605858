package events

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/loglimit"
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
			buffer, all := new(logbuffer.Buffer), NewClients(0)
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
			if lines > 36*loglimit.Burst || omitted == 0 {
				t.Errorf("%s: %d lines, %d counts", name, lines, omitted)
			}
			if name == "one user" && !strings.Contains(buffer.String(), "client=honest") {
				t.Errorf("%s: the client id of another user is not in the log", name)
			}
		}
	})
}

func TestAForcedReleaseHasItsLineBesideAFloodOfAnotherUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buffer := new(logbuffer.Buffer)
		log := NewLog(buffer.Logger())
		for i := range 5000 {
			log.force("mallory", fmt.Sprint("c", i), "nothing")
		}
		log.force("ana", "c", "the node hangs")
		if got := buffer.String(); !strings.Contains(got, `reason="the node hangs"`) {
			t.Errorf("the log has %d lines, and not this one", strings.Count(got, "\n"))
		}
		log.Close()
	})
}
