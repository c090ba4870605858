package attach_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func isBusy(reply *paho.Publish) bool {
	return reply.Properties.User.Get("__stat") == "503" && strings.HasPrefix(reply.Properties.User.Get("__stMsg"), "too much waits for the journal")
}

// All requests come to the store through one goroutine. It must not wait for a disk, because the
// renewals of all clients come that way.
func TestInvariant59ATenureOutlivesAFloodOfChangesOnAnAttachedStoreWhoseJournalHangs(t *testing.T) {
	const writers, each = 4, 14
	journal := new(transporttest.Journal)
	broker, a := begin(t, "", attach.Options{Journal: journal.Open()})
	holder := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "holder"})
	tenure, _ := mustAcquire(t, holder, lease.Options{TTL: 10 * testsupport.Patience, RenewEvery: 10 * time.Millisecond})
	small := testsupport.Connect(t, broker.Address, "small", nil)
	release := journal.Hold()
	defer release()
	value := strings.Repeat("v", 900<<10)
	var clients []*testsupport.PahoClient
	var sent []map[string]string // the keys of requests, by correlation data
	for w := range writers {
		id := fmt.Sprint("writer", w)
		if w == 0 {
			id = "holder/" // to the store it is the holder too
		}
		p, requests := testsupport.Connect(t, broker.Address, id, nil), make(map[string]string)
		for i := range each {
			key := fmt.Sprint(w, "/", i)
			requests[string(p.SendRequest("SET", key, value).Properties.CorrelationData)] = key
		}
		clients, sent = append(clients, p), append(sent, requests)
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
	if least := uint64(writers * (each - 11)); a.Stats().Busy < least {
		t.Errorf("%d requests are refused, want %d at least", a.Stats().Busy, least)
	}

	// What is refused has no effect, and what is taken is answered after its commit.
	release()
	small.MustBeAnswered(set, "+OK\r\n")
	busy := 1 // of the holder
	for w, p := range clients {
		var refused []string
		for range each {
			reply := p.Next()
			key, isSent := sent[w][string(reply.Properties.CorrelationData)]
			if isBusy(reply) {
				refused = append(refused, key)
			} else if !isSent || string(reply.Payload) != "+OK\r\n" {
				t.Errorf("%s: answered %.40q", p.ID, reply.Payload)
			}
		}
		for _, key := range refused {
			p.MustGet(key, "")
		}
		busy += len(refused)
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
