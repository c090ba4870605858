package attach_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// The lease lasts longer than the test is patient, and the hold-off too: it does not apply to a store
// that has its data.
func TestATenureGoesOnOverARestartOfAnAttachedStoreWithAJournal(t *testing.T) {
	broker := mosquitto.Start(t, "")
	journal := new(transporttest.Journal)
	options := func() attach.Options {
		return attach.Options{Journal: journal.Open(), Store: statestore.Options{Strict: true}}
	}
	first := testsupport.Attach(t, broker.Address, options())
	holder := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "node-a"})
	tenure, token := mustAcquire(t, holder, lease.Options{TTL: 3 * testsupport.Patience})
	guard := fencing.NewGuard(holder, tenure)
	if _, err := guard.Set(t.Context(), fencedKey, []byte("before")); err != nil {
		t.Fatal(err)
	}
	before, _ := holder.Store()
	stop(t, first)
	again := options()
	again.Store.HoldOff = time.Hour
	testsupport.Attach(t, broker.Address, again)

	if _, err := guard.Set(t.Context(), fencedKey, []byte("after")); err != nil {
		t.Errorf("the guard of the tenure: %v", err)
	}
	if after, _ := holder.Store(); after != before || after == "" {
		t.Errorf("the identity is %q, was %q", after, before)
	}
	if got, err := tenure.Token(); err != nil || got != token {
		t.Errorf("its token: %v, %v; want %v", got, err, token)
	}
	other := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "node-b"})
	rival := leaseOf(t, other, leaseKey, lease.Options{TTL: time.Minute})
	if _, err := rival.TryAcquire(t.Context()); err == nil {
		t.Error("the lease is granted twice")
	}
	fresh := leaseOf(t, other, "another lease", lease.Options{TTL: time.Minute})
	if _, err := fresh.TryAcquire(t.Context()); err != nil {
		t.Errorf("a store with data holds off: %v", err)
	}
	if _, err := other.Set(t.Context(), fencedKey, []byte("unfenced"), transport.SetOptions{}); err == nil {
		t.Error("the fence is gone")
	}
}

func TestInvariant33AnAttachedStoreAnswersAfterTheCommitAndOthersMeanwhile(t *testing.T) {
	broker := mosquitto.Start(t, "")
	journal := new(transporttest.Journal)
	testsupport.Attach(t, broker.Address, attach.Options{Journal: journal.Open()})
	writer := testsupport.Connect(t, broker.Address, "writer", nil)
	holder := testsupport.Connect(t, broker.Address, "holder", nil)
	watcher := testsupport.Connect(t, broker.Address, "watcher", nil)
	notificationsOf(watcher)
	watcher.Do("KEYNOTIFY", "k")
	holder.Do("SET", "lease", "holder:1", "NEX", "PX", "600000")
	commits := journal.Commits()
	release := journal.Hold()
	defer release()
	set := writer.SendRequest("SET", "k", "v")
	testsupport.Eventually(t, "a commit begins", journal.Committing)
	for range 100 {
		if got := holder.Do("SET", "lease", "holder:1", "NEX", "PX", "600000"); got != "+OK\r\n" {
			t.Fatalf("a renewal is answered %q during a commit", got)
		}
	}
	get := holder.SendRequest("GET", "k")
	writer.MustBeSilent()
	watcher.MustBeSilent()
	if got := journal.Commits() - commits; got != 1 {
		t.Errorf("%d commits, want one", got)
	}
	release()
	writer.MustBeAnswered(set, "+OK\r\n")
	holder.MustBeAnswered(get, "$1\r\nv\r\n")
	watcher.MustBeNotified("SET", "VALUE", "v")
}

func TestAnAttachedStoreAnswersARedeliveryFromBeforeItsRestart(t *testing.T) {
	broker := mosquitto.Start(t, "")
	journal := new(transporttest.Journal)
	first := testsupport.Attach(t, broker.Address, attach.Options{Journal: journal.Open(), MaxClients: 4})
	clients := make(map[*testsupport.PahoClient]*paho.Publish)
	versions := make(map[*testsupport.PahoClient]string)
	for i := range 4 {
		client := testsupport.Connect(t, broker.Address, fmt.Sprintf("c%d", i), nil)
		clients[client] = client.SendRequest("SET", fmt.Sprint(i), "v", "NX")
		versions[client] = client.Next().Properties.User.Get("__ts")
	}
	stop(t, first)
	second := testsupport.Attach(t, broker.Address, attach.Options{Journal: journal.Open(), MaxClients: 4})
	if got := second.Stats().Clients; got != 4 {
		t.Errorf("the store remembers %d clients, want 4", got)
	}
	for client, request := range clients {
		client.SendMessage(request)
		reply := client.Next()
		if string(reply.Payload) != "+OK\r\n" || reply.Properties.User.Get("__ts") != versions[client] {
			t.Errorf("the redelivery of %s is answered %q %v", client.ID, reply.Payload, reply.Properties)
		}
	}
	stop(t, second)
	third := testsupport.Attach(t, broker.Address, attach.Options{Journal: journal.Open(), MaxClients: 3})
	if got := third.Stats().Clients; got != 3 {
		t.Errorf("the store remembers %d clients, and may remember 3", got)
	}
}

func TestInvariant34AnAttachedStoreEndsWithItsJournalAndAnswersNothing(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	journal := new(transporttest.Journal)
	store, err := attach.New("mqtt://"+broker.Address, attach.Options{Journal: journal.Open()})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- store.Serve(t.Context()) }()
	await.Receive(store.Ready())
	p := testsupport.Connect(t, broker.Address, "p", nil)
	release := journal.Hold()
	defer release()
	p.SendRequest("SET", "k", "v")
	testsupport.Eventually(t, "a commit begins", journal.Committing)
	journal.Fail(0)
	release()
	if err := await.Receive(served); err == nil || !strings.Contains(err.Error(), "the journal failed") {
		t.Errorf("Serve: %v; want the cause", err)
	}
	if len(p.Received) > 0 {
		t.Error("a request is answered whose change is not in the journal")
	}
	testsupport.Attach(t, broker.Address, attach.Options{Journal: journal.Open()}) // at once: the other has left
	p.MustGet("k", "")
}

func TestAnAttachedStoreLoadsUntilItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := attach.Open(ctx, "mqtt://localhost", attach.Options{Journal: new(transporttest.Journal).Open()}); err == nil {
		t.Error("it loads after the end of its context")
	}
}

// Its journal lacks the leases that the other store has granted.
func TestAStoreDoesNotGoOnWithDataThatAnotherHasMadeStale(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	journal := new(transporttest.Journal)
	serve := func(options attach.Options) {
		t.Helper()
		store := testsupport.Attach(t, broker.Address, options)
		testsupport.Connect(t, broker.Address, "p", nil).Do("SET", "k", "v")
		stop(t, store)
	}
	serve(attach.Options{})
	for range 2 { // begins after another store, and goes on
		serve(attach.Options{Journal: journal.Open()})
	}
	serve(attach.Options{}) // another one
	for range 2 {           // the refusal does not make the data good
		store, err := attach.New("mqtt://"+broker.Address, attach.Options{Journal: journal.Open()})
		if err != nil {
			t.Fatal(err)
		}
		if err := await.Result(func() error { return store.Serve(t.Context()) }); !errors.Is(err, attach.ErrStaleData) {
			t.Fatalf("Serve: %v, want ErrStaleData", err)
		}
	}
	var empty transporttest.Journal
	serve(attach.Options{Journal: empty.Open()})
	serve(attach.Options{Journal: empty.Open()})
}
