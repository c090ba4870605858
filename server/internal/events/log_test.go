package events

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/protocol"
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

// Each change of a holder is a line, a quick hand-over one, and no renewal is any. A flood of one user hides no other.
func TestTheLogTellsEachChangeOfAHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		buffer := new(logbuffer.Buffer)
		log := NewLog(buffer.Logger())
		store, err := engine.Open(t.Context(), statestore.Options{}, nil, func(statestore.Notification) {})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { log.Follow(ctx, store) })
		tasks.Go(func() { _ = store.Run(ctx) })
		do := func(client string, words ...string) {
			c := command(time.Now(), words...)
			c.Client, c.User = client, client
			store.Submit(*c, nil)
		}
		read := 0
		told := func(want ...string) {
			t.Helper()
			time.Sleep(followEvery)
			synctest.Wait()
			var got []string
			for line := range strings.Lines(buffer.String()[read:]) {
				if strings.Contains(line, "lease=k") {
					line = regexp.MustCompile(`\d+:\d:StateStore`).ReplaceAllString(line, "T")
					_, fields, _ := strings.Cut(strings.TrimSpace(line), `level=INFO msg="the holder of a lease has changed" lease=k `)
					got = append(got, fields)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q; want %q", got, want)
			}
			read = len(buffer.String())
		}
		do("a", "SET", "k", "a:1", "NX", "PX", "10000")
		told("cause=acquired to=a token=T")
		do("a", "SET", "k", "a:1", "NEX", "PX", "10000")
		told()
		do("a", "VDEL", "k", "a:1")
		do("b", "SET", "k", "b:1", "NX", "PX", "10000")
		told("cause=released from=a to=b token=T without_holder=0s")
		time.Sleep(10 * time.Second)
		told("cause=expired from=b")
		for i := range 1000 {
			do("mallory", "SET", fmt.Sprint("x", i%200), "v", "NX", "PX", "1")
			time.Sleep(10 * time.Millisecond)
		}
		do("c", "SET", "k", "c:1", "NX", "PX", "10000")
		time.Sleep(followEvery)
		if lines := strings.Count(buffer.String()[read:], "\n"); lines > 3*loglimit.Burst {
			t.Errorf("%d lines of a flood", lines)
		}
		told("cause=expired from=b to=c token=T without_holder=22s")
		stop()
		await.Done(tasks.Wait)
		log.Close()
	})
}

// Refusals by the rules of any store are told, at the rate of docs/security.md.
func TestRefusalsByRulesAreABoundedNumberOfLines(t *testing.T) {
	buffer := new(logbuffer.Buffer)
	log := NewLog(buffer.Logger())
	for _, refusal := range []error{protocol.NotAuthorized, protocol.LockRule, protocol.FencingTokenNeverIssued} {
		for range 50 {
			log.Answered(command(time.Now(), "DEL", "k"), &statestore.Reply{Err: refusal}, "")
		}
		if refusal == protocol.NotAuthorized && !strings.Contains(buffer.String(), `msg="refused a request" client=c user="" remote="" verb=DEL key=k reason="not authorized"`) {
			t.Error(buffer)
		}
	}
	log.Close()
	if lines := strings.Count(buffer.String(), "\n"); lines < loglimit.Burst || lines > loglimit.Burst+3 {
		t.Errorf("150 refusals are %d lines", lines)
	}
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
