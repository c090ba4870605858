package attach_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// flood sends requests of a client, and waits until the store has refused some of them because too much
// waits for its journal. It returns those without an answer by their correlation data, and the numbers
// of those that were refused.
func flood(p *testsupport.PahoClient, count, refusals int, words func(i int) []string) (waiting map[string]int, refused []int) {
	p.T.Helper()
	waiting = make(map[string]int)
	for i := range count {
		waiting[string(p.SendRequest(words(i)...).Properties.CorrelationData)] = i
	}
	for len(refused) < refusals {
		reply := p.Next()
		if !isBusy(reply) {
			p.T.Fatalf("%s: answered %.40q", p.ID, reply.Payload)
		}
		correlation := string(reply.Properties.CorrelationData)
		refused = append(refused, waiting[correlation])
		delete(waiting, correlation)
	}
	return waiting, refused
}

func isBusy(reply *paho.Publish) bool {
	return reply.Properties.User.Get("__stat") == "503" && strings.HasPrefix(reply.Properties.User.Get("__stMsg"), "too much waits for the journal")
}

// All requests come to the store through one goroutine. It must not wait for a disk, because the
// renewals of all clients come that way.
func TestInvariant59ATenureOutlivesAFloodOfChangesOnAnAttachedStoreWhoseJournalHangs(t *testing.T) {
	const writers, each = 4, 20
	broker := mosquitto.Start(t, "")
	journal := new(testsupport.Journal)
	a := testsupport.Attach(t, broker.Address, attach.Options{Journal: journal.Open()})
	holder := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "holder"})
	tenure, _ := mustAcquire(t, holder, lease.Options{TTL: 10 * testsupport.Patience, RenewEvery: 10 * time.Millisecond})
	small := testsupport.Connect(t, broker.Address, "small", nil)
	release := journal.Hold()
	defer release()
	value := strings.Repeat("v", 900<<10)
	var clients []*testsupport.PahoClient
	var waiting []map[string]int
	var refused [][]int
	for w := range writers {
		id := fmt.Sprint("writer", w)
		if w == 0 {
			id = "holder/" // to the store it is the holder too
		}
		p := testsupport.Connect(t, broker.Address, id, nil)
		taken, not := flood(p, each, each-11, func(i int) []string { return []string{"SET", fmt.Sprint(w, "/", i), value} })
		clients, waiting, refused = append(clients, p), append(waiting, taken), append(refused, not)
	}
	// A renewal has nothing to commit, so it needs no place among the changes, though its client has as many as may wait.
	_, err := holder.Set(t.Context(), "large", make([]byte, 900<<10), transport.SetOptions{})
	if !errors.Is(err, transport.ErrServerBusy) || !errors.Is(err, transport.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "too much waits for the journal of the store; try again") {
		t.Errorf("Set: %v", err)
	}
	for range 3 {
		began, before := time.Now(), tenure.Remaining()
		testsupport.Eventually(t, "the tenure is renewed", func() bool { return tenure.Remaining()+time.Since(began) > before+time.Millisecond })
	}
	set := small.SendRequest("SET", "k", "v") // taken: this client has little waiting
	small.MustGet("another key", "")

	// What is refused has no effect, and what is taken is answered after its commit.
	release()
	small.MustBeAnswered(set, "+OK\r\n")
	busy := 1 // of the holder
	for w, p := range clients {
		for range len(waiting[w]) {
			reply := p.Next()
			i, sent := waiting[w][string(reply.Properties.CorrelationData)]
			delete(waiting[w], string(reply.Properties.CorrelationData))
			if isBusy(reply) {
				refused[w] = append(refused[w], i)
			} else if !sent || string(reply.Payload) != "+OK\r\n" {
				t.Errorf("%s: answered %.40q", p.ID, reply.Payload)
			}
		}
		for _, i := range refused[w] {
			p.MustGet(fmt.Sprint(w, "/", i), "")
		}
		busy += len(refused[w])
	}
	if got := a.Stats().Busy; got != uint64(busy) || a.Stats().Attachments != 1 {
		t.Errorf("%d requests were refused: %+v", busy, a.Stats())
	}
	if got := clients[0].Do("SET", "0/9", value); got != "+OK\r\n" {
		t.Errorf("after the flood: %q", got)
	}
	if _, err := tenure.Token(); err != nil {
		t.Errorf("the tenure: %v", err)
	}
}

// The replies to reads of a key that is being committed have a bound of their own.
func TestReadsOfALargeValueThatIsBeingCommittedAreRefusedBeyondTheirBound(t *testing.T) {
	const reads = 45
	journal := new(testsupport.Journal)
	broker, _ := begin(t, "", attach.Options{Journal: journal.Open()})
	p := testsupport.Connect(t, broker.Address, "p", nil)
	value := strings.Repeat("v", 1_000_000)
	release := journal.Hold()
	defer release()
	p.SendRequest("SET", "k", value)
	for range reads {
		p.SendRequest("GET", "k")
	}
	testsupport.Connect(t, broker.Address, "other", nil).MustGet("another key", "")
	release()
	whole, refused := 0, 0
	for range 1 + reads {
		switch reply := p.Next(); {
		case isBusy(reply):
			refused++
		case len(reply.Payload) > len(value):
			whole++
		case string(reply.Payload) != "+OK\r\n":
			t.Errorf("answered %.40q %v", reply.Payload, reply.Properties)
		}
	}
	if whole < 5 || refused < 10 {
		t.Errorf("%d reads are answered, and %d refused", whole, refused)
	}
	p.MustGet("k", value)
}
