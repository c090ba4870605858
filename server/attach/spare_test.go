package attach_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// spareOptions are options of a spare that grants leases soon.
var spareOptions = attach.Options{Wait: true, Store: statestore.Options{HoldOff: time.Millisecond}}

func startSpare(t *testing.T, broker *mosquitto.Broker, options attach.Options) *testsupport.Attachment {
	t.Helper()
	spare := testsupport.StartAttaching(t, broker.Address, options)
	select {
	case <-spare.Waiting():
	case <-spare.Ended():
		t.Fatalf("the spare ended: %v", spare.Result())
	case <-time.After(await.Patience):
		t.Fatal("the spare does not stand by")
	}
	return spare
}

func TestOfTwoSparesOneTakesThePlaceOfAStoreThatIsKilledAndTheOtherWaitsOn(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	through, first, client := attachThrough(t, broker)
	spares := []*testsupport.Attachment{startSpare(t, broker, spareOptions), startSpare(t, broker, spareOptions)}
	testsupport.MustHold(t, client, "k", "of the first")
	if stats := first.Stats(); stats.Attachments != 1 {
		t.Errorf("the spares disturbed the store: %+v", stats)
	}

	through.Refuse(true)
	through.Cut()
	first.Stop()
	var active, waiting *testsupport.Attachment
	select {
	case <-spares[0].Ready():
		active, waiting = spares[0], spares[1]
	case <-spares[1].Ready():
		active, waiting = spares[1], spares[0]
	case <-time.After(await.Patience):
		t.Fatal("no spare answers")
	}
	testsupport.MustHold(t, client, "k", "") // its data is gone with it
	if _, err := client.Set(t.Context(), "k", []byte("of the spare"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // the other one has had its chance
	if testsupport.IsDone(waiting.Ready()) || testsupport.IsDone(waiting.Ended()) || !active.Stats().Attached {
		t.Fatalf("the other spare does not wait on: answers %t, ended %t", testsupport.IsDone(waiting.Ready()), testsupport.IsDone(waiting.Ended()))
	}
	testsupport.MustHold(t, client, "k", "of the spare")

	active.Stop()
	waiting.MustBeReady()
	testsupport.MustHold(t, client, "k", "")
}

func TestInvariant47ASpareIsAnotherStoreAndGrantsNoLeaseDuringItsHoldOff(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	broker := mosquitto.Start(t, "")
	first := testsupport.Attach(t, broker.Address, attach.Options{})
	var log logbuffer.Buffer
	spare := startSpare(t, broker, attach.Options{Wait: true, Store: statestore.Options{HoldOff: ttl}, Logger: log.Logger()})
	holder := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "holder"})
	held, err := lease.New(holder, "press", lease.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := held.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first.Stop()
	spare.MustBeReady()
	began := time.Now()
	next, err := lease.New(testsupport.Dial(t, broker.Address, transport.Options{ClientID: "next"}), "press", lease.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	if _, err := next.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < ttl/2 { // the spare began a little before
		t.Errorf("a lease is granted after %v, with a hold-off of %v", took, ttl)
	}
	if !testsupport.IsDone(tenure.Context().Done()) {
		t.Error("a tenure of the first store goes on beside one of the spare")
	}
	for _, want := range []string{"standing by: another store answers", "begins empty", "its data with it; taking its place"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, &log)
		}
	}
}

// A store of another make says nothing when it leaves.
func TestASpareNoticesThatAStoreOfAnotherMakeIsGone(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	other := testsupport.Connect(t, broker.Address, "other", nil)
	other.Subscribe(testsupport.InvokeTopic)
	spare := testsupport.StartAttaching(t, broker.Address, spareOptions)
	for range 2 { // when it begins, and when it stands by
		question := other.Next()
		other.Send(question.Properties.ResponseTopic, "$-1\r\n")
	}
	await.Receive(spare.Waiting())
	if testsupport.IsDone(spare.Ready()) {
		t.Error("it answers beside the other store")
	}
	_ = other.Conn.Close()
	spare.MustBeReady()
}

func TestASpareStaysOneWhileItsConnectionIsLostAgainAndAgain(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	first := testsupport.Attach(t, broker.Address, attach.Options{})
	through := testsupport.NewProxy(t, broker.Address)
	spare := testsupport.StartAttaching(t, through.Address(), spareOptions)
	await.Receive(spare.Waiting())
	client := testsupport.Dial(t, broker.Address, transport.Options{})
	for range 5 {
		time.Sleep(200 * time.Millisecond)
		through.Cut()
		testsupport.MustHold(t, client, "k", "")
	}
	if testsupport.IsDone(spare.Ready()) || testsupport.IsDone(spare.Ended()) || first.Stats().Attachments != 1 {
		t.Errorf("the spare answers: %t, has ended: %t; the store: %+v", testsupport.IsDone(spare.Ready()), testsupport.IsDone(spare.Ended()), first.Stats())
	}
	first.Stop()
	spare.MustBeReady()
}

// The data of a store is void once another store has served, so it does not wait for that one.
func TestASpareThatHasAnsweredEndsWhenAnotherStoreTakesItsPlace(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	through := testsupport.NewProxy(t, broker.Address)
	first := testsupport.Attach(t, through.Address(), spareOptions)
	second := startSpare(t, broker, spareOptions)
	through.Swallow()
	second.MustBeReady()
	if err := first.Result(); !errors.Is(err, attach.ErrAnotherStore) {
		t.Errorf("%v, want ErrAnotherStore", err)
	}
}

func TestInvariant42ASpareLeavesNothingWhenItEnds(t *testing.T) {
	broker := mosquitto.Start(t, "")
	testsupport.Attach(t, broker.Address, attach.Options{})
	spare := startSpare(t, broker, spareOptions)
	spare.Stop()
	if err := spare.Result(); err != nil {
		t.Error(err)
	}
}
