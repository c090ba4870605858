package events

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

// command returns a command whose sender has a clock.
func command(clock time.Time, words ...string) *statestore.Command {
	ts := hlc.Timestamp{Wall: clock.UnixMilli(), Node: "c"}.String()
	c := statestore.Parse(statestore.Request{Client: "c", Payload: resp3.AppendCommand(nil, words...), Timestamp: &ts})
	return &c
}

// rows returns what is shown of the clients.
func (c *Clients) rows(limit int) activity.State {
	state := activity.NewState()
	state.At = time.Now()
	c.show(&state, limit)
	return state
}

func TestAClientShowsWhatItSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewClients(0)
		c := all.Come("c", "ana", "10.1.4.7:50122", true)
		at := time.Now()
		c.Answered(command(at.Add(2*time.Second), "GET", "k"), &statestore.Reply{Outcome: statestore.Missing}, at)
		c.Answered(command(at, "SET", "k", "v"), &statestore.Reply{Err: protocol.FencingTokenLower}, at)
		c.Answered(command(at, "GET", "k"), &statestore.Reply{Outcome: statestore.Expired}, at) // is dropped
		c.Answered(command(at.Add(2*time.Second), "GET", "k"), &statestore.Reply{Outcome: statestore.Missing}, at)
		c.Dropped()
		time.Sleep(time.Second)
		c.Go(activity.ReasonLost)
		state := all.rows(10)
		row := state.Clients[0]
		if row.Client != "c" || row.User != "ana" || row.Connected || row.Reason != activity.ReasonLost || !row.Since.Equal(at.Add(time.Second)) ||
			row.Requests != 3 || row.Refused != 1 || row.StaleWrites != 1 || row.Dropped != 1 || !row.LastSeen.Equal(at) {
			t.Errorf("%+v", row)
		}
		if *row.ClockOffsetMillis != 2000 || state.Totals.ClocksOff != 1 || state.Totals.StaleWrites != 1 {
			t.Errorf("%+v, %+v", row, state.Totals)
		}
		if w := state.StaleWrites; len(w) != 1 || w[0].Client != "c" || w[0].Key != "k" || w[0].Verb != "SET" || !w[0].At.Equal(at) {
			t.Errorf("%+v", w)
		}
		if again := all.Come("c", "ana", "10.1.4.7:50123", true); again != c || all.gone.Len() != 0 {
			t.Error("a client that is back is another one")
		}
	})
}

// An alarm about a clock must end when the clock is mended, or the client is gone.
func TestAClockCountsForFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewClients(0)
		c := all.Come("c", "", "", true)
		send := func(off time.Duration, err error) {
			reply := statestore.Reply{Outcome: statestore.Missing}
			if err != nil {
				reply = statestore.Reply{Err: err}
			}
			c.Answered(command(time.Now().Add(off), "GET", "k"), &reply, time.Now())
		}
		send(-5*time.Second, nil)
		send(2*time.Minute, protocol.TimestampTooFarAhead)
		if s := all.rows(1); s.Totals.ClocksOff != 1 || s.Clients[0].ClockImplausible || *s.Clients[0].ClockOffsetMillis != 120_000 {
			t.Errorf("a clock that was refused: %+v", s)
		}
		send(-25*time.Hour, nil)
		if s := all.rows(1); !s.Clients[0].ClockImplausible {
			t.Error("a clock that is a day off is plausible")
		}
		send(-5*time.Second, nil)
		if s := all.rows(1); s.Totals.ClocksOff != 1 || s.Clients[0].ClockImplausible {
			t.Errorf("the next one is plausible: %+v", s)
		}
		time.Sleep(clockFor + time.Second)
		if s := all.rows(1); s.Totals.ClocksOff != 0 || s.Clients[0].ClockOffsetMillis != nil {
			t.Errorf("after five minutes: %+v", s)
		}
	})
}

// After a crash, the versions of a store begin ahead of its clock, and clients send them back.
func TestAClockThatAClientHasFromARestartedStoreIsNotItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(20 * time.Second)
		all := NewClients(until.UnixMilli())
		c := all.Come("c", "", "", true)
		send := func(clock time.Time) {
			c.Answered(command(clock, "GET", "k"), &statestore.Reply{Outcome: statestore.Missing}, time.Now())
		}
		send(until)
		if s := all.rows(1); s.Clients[0].ClockOffsetMillis != nil || s.Totals.ClocksOff != 0 {
			t.Errorf("the clock of the store: %+v", s)
		}
		send(until.Add(time.Second))
		if s := all.rows(1); *s.Clients[0].ClockOffsetMillis != 21_000 {
			t.Errorf("a clock that is further ahead: %+v", s)
		}
		send(time.Now())
		send(until)
		if s := all.rows(1); *s.Clients[0].ClockOffsetMillis != 0 {
			t.Errorf("the clock of the store, after the client's own: %+v", s)
		}
	})
}

// A store bounds its clients. Those that are gone have a bound here, and do not hide those of other users.
func TestClientsThatAreGoneHaveABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewClients(0)
		all.Come("stays", "ana", "", true)
		for i := range 2 * maxGone {
			all.Come(fmt.Sprint("c", i), "mallory", "", true).Go(activity.ReasonLeft)
			time.Sleep(time.Millisecond)
		}
		all.Come(strings.Repeat("x", 1<<20), "mallory", "", true)
		state := all.rows(4)
		if len(all.byID) != maxGone+2 || all.gone.Len() != maxGone || state.ClientsHidden != maxGone-2 {
			t.Errorf("%d clients are known, %d are gone, and %d hidden", len(all.byID), all.gone.Len(), state.ClientsHidden)
		}
		var names []string
		for _, row := range state.Clients {
			names = append(names, fmt.Sprintf("%.5s", row.Client))
		}
		if got := strings.Join(names, " "); got != "xxxxx stays c1999 c1998" && got != "stays xxxxx c1999 c1998" {
			t.Errorf("it shows %s", got)
		}
	})
}

// Two programs with one client id end each other's connections. The warnings about it become rare.
func TestAClientIDThatFlapsIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewClients(0)
		c := all.Come("c", "", "", true)
		var warned []time.Duration
		began := time.Now()
		for time.Since(began) < 3*time.Hour {
			if _, warn := c.TakenOver(); warn {
				warned = append(warned, time.Since(began).Round(time.Minute))
			}
			if got, want := all.rows(1).Clients[0].Flapping, time.Since(began) >= time.Minute; got != want {
				t.Fatalf("after %v it flaps: %t", time.Since(began), got)
			}
			time.Sleep(30 * time.Second)
		}
		if got := fmt.Sprint(warned); got != "[1m0s 2m0s 4m0s 8m0s 16m0s 32m0s 1h4m0s 2h4m0s]" {
			t.Errorf("the warnings came after %s", got)
		}
		time.Sleep(flapGap)
		if s := all.rows(1); s.Clients[0].Flapping || s.Totals.Flapping != 0 || s.Totals.TakeOvers != s.Clients[0].TakeOvers {
			t.Errorf("later: %+v", s)
		}
	})
}
