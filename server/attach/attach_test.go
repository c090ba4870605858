package attach_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server/attach"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
	"github.com/tenurelock/tenure/transport"
)

// presenceTopic is spelled out: stores of several versions must agree on it.
const presenceTopic = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/store/presence"

func TestAnAttachedStoreFollowsTheProtocol(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	statestoretest.Run(t, func(t *testing.T, options statestore.Options, check func(*testing.T, statestoretest.Store)) {
		a := attachAlone(t, broker.Address, attach.Options{Store: options})
		check(t, &testsupport.Store{Address: broker.Address, Attached: a})
		a.Stop() // before the clients leave, which the next row has again
		_ = a.Result()
	})
}

// The broker passes on whatever is published to the topic of requests.
func TestAnAttachedStoreDropsWhatIsNotARequest(t *testing.T) {
	broker, a := begin(t, "", attach.Options{})
	p := testsupport.Connect(t, broker.Address, "node-a", nil)
	inHex := fmt.Sprintf("clients/%X/response", "node-a")
	p.Subscribe(inHex)
	for _, test := range []struct {
		name   string
		change func(*paho.Publish)
		want   attach.DropReason // empty: answered
	}{
		{"nothing is wrong", func(*paho.Publish) {}, ""},
		{"the response topic has the id in hex", func(m *paho.Publish) {
			m.Properties.ResponseTopic = inHex
			m.Properties.User.Add("__srcId", "node-a")
		}, ""},
		{"the response topic has the id as it is", func(m *paho.Publish) { m.Properties.User.Add("__srcId", "node-a") }, ""},
		{"QoS 0", func(m *paho.Publish) { m.QoS = 0 }, envelope.DroppedQoS},
		{"retained", func(m *paho.Publish) { m.Retain = true }, envelope.DroppedRetained},
		{"no properties", func(m *paho.Publish) { m.Properties = nil }, envelope.DroppedNoResponse},
		{"no response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "" }, envelope.DroppedNoResponse},
		{"no correlation data", func(m *paho.Publish) { m.Properties.CorrelationData = nil }, envelope.DroppedNoCorrelation},
		{"a notification topic", func(m *paho.Publish) {
			m.Properties.ResponseTopic = testsupport.ReservedPrefix + "/70/command/notify/70"
		}, envelope.DroppedForbiddenTopic},
		{"the topic of requests", func(m *paho.Publish) { m.Properties.ResponseTopic = testsupport.InvokeTopic }, envelope.DroppedForbiddenTopic},
		{"a topic of the store's name", func(m *paho.Publish) { m.Properties.ResponseTopic = "clients/statestore/x" }, envelope.DroppedForeignTopic},
		{"a topic that is no client's", func(m *paho.Publish) { m.Properties.ResponseTopic = "factory/valve" }, envelope.DroppedForeignTopic},
		{"a topic of a client without name", func(m *paho.Publish) { m.Properties.ResponseTopic = "clients//response" }, envelope.DroppedForeignTopic},
		{"a topic of a client and no more", func(m *paho.Publish) { m.Properties.ResponseTopic = "clients/node-a" }, envelope.DroppedForeignTopic},
		{"a client of 257 bytes", func(m *paho.Publish) {
			m.Properties.ResponseTopic = "clients/" + strings.Repeat("n", 257) + "/response"
		}, attach.DroppedLongClient},
		{"another client in __srcId", func(m *paho.Publish) { m.Properties.User.Add("__srcId", "node-b") }, envelope.DroppedForeignTopic},
		{"a lower-case hex of __srcId", func(m *paho.Publish) {
			m.Properties.ResponseTopic = fmt.Sprintf("clients/%x/response", "node-a")
			m.Properties.User.Add("__srcId", "node-a")
		}, envelope.DroppedForeignTopic},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := a.Stats()
			request := p.Request("SET", "k", test.name)
			test.change(request)
			p.SendMessage(request)
			if test.want == "" {
				if reply := p.Next(); reply.Topic != request.Properties.ResponseTopic || string(reply.Payload) != "+OK\r\n" {
					t.Errorf("reply %q on %q", reply.Payload, reply.Topic)
				}
				return
			}
			// A request is dropped before the next is looked at.
			if got := p.Do("GET", "k"); strings.Contains(got, test.name) {
				t.Error("it was applied")
			}
			after := a.Stats()
			if after.Dropped[test.want] != before.Dropped[test.want]+1 {
				t.Errorf("dropped %v, want one more as %q than %v", after.Dropped, test.want, before.Dropped)
			}
		})
	}
}

func TestAWatchEndsWhenNoClientReadsItsNotifications(t *testing.T) {
	broker, a := begin(t, "", attach.Options{})
	writer := testsupport.Connect(t, broker.Address, "writer", nil)

	gone := testsupport.Connect(t, broker.Address, "node-a", nil)
	notificationsOf(gone)
	watch := gone.Request("KEYNOTIFY", "k")
	gone.SendMessage(watch)
	gone.Next()
	gone.Do("KEYNOTIFY", "l")
	writer.Do("SET", "k", "1")
	gone.NextNotification()
	_ = gone.Paho.Disconnect(&paho.Disconnect{})
	gone.MustBeGone()

	writer.Do("SET", "k", "2")
	testsupport.Eventually(t, "the watch ends", func() bool { return a.Stats().DroppedWatches == 1 })

	again := testsupport.Connect(t, broker.Address, "node-a", nil)
	notificationsOf(again)
	writer.Do("SET", "k", "3") // watched no more
	writer.Do("SET", "l", "1") // no client has found out
	if got := testsupport.NotifiedKey(t, "node-a", again.NextNotification().Topic); got != "l" {
		t.Errorf("notified of %q", got)
	}
	again.MustBeSilent()
	again.SendMessage(watch) // sent again over a new connection, in a session that was kept: it is no repetition
	again.Next()
	writer.Do("SET", "k", "4")
	if got := testsupport.NotifiedKey(t, "node-a", again.NextNotification().Topic); got != "k" {
		t.Errorf("notified of %q", got)
	}
	if got := a.Stats().DroppedWatches; got != 1 {
		t.Errorf("%d watches were dropped, want 1", got)
	}
}

func TestNotificationsOfAKeyComeInTheOrderOfItsChanges(t *testing.T) {
	broker, _ := begin(t, "", attach.Options{})
	reader := testsupport.Connect(t, broker.Address, "reader", nil)
	notificationsOf(reader)
	reader.Do("KEYNOTIFY", "k")
	writer := testsupport.Dial(t, broker.Address, transport.Options{})
	const writes = 300 // more than may be unacknowledged by default
	var versions []string
	for i := range writes {
		version, err := writer.Set(t.Context(), "k", fmt.Append(nil, i), transport.SetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, version.String())
	}
	for i, want := range versions {
		if got := reader.NextNotification().Properties.User.Get("__ts"); got != want {
			t.Fatalf("notification %d is of version %s, want %s", i, got, want)
		}
	}
}

func TestASecondAttachedStoreStopsAndTheFirstGoesOn(t *testing.T) {
	broker, first := begin(t, "", attach.Options{})
	client := testsupport.Dial(t, broker.Address, transport.Options{})
	mustSet(t, client, "k", "v")
	for range 3 {
		if err := testsupport.StartAttaching(t, broker.Address, attach.Options{}).Result(); !errors.Is(err, attach.ErrAnotherStore) {
			t.Fatalf("a second store: %v, want ErrAnotherStore", err)
		}
	}
	testsupport.MustHold(t, client, "k", "v")
	if stats := first.Stats(); !stats.Attached || stats.Attachments != 1 {
		t.Errorf("%+v", stats)
	}
	stop(t, first)
	testsupport.Attach(t, broker.Address, attach.Options{})
	testsupport.MustHold(t, client, "k", "")
}

// Stores of another make do not know presenceTopic, and a client that reads requests need not be a
// store.
func TestAStoreThatAnswersAlreadyIsRecognizedWhateverItsMake(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	monitor := testsupport.Connect(t, broker.Address, "monitor", nil)
	monitor.Subscribe(testsupport.InvokeTopic)
	a := testsupport.Attach(t, broker.Address, attach.Options{})
	probe := monitor.Next()
	if got := a.Stats(); got.Requests != 0 || len(got.Dropped) != 0 {
		t.Errorf("it takes its own question for a request: %+v", got)
	}
	stop(t, a)
	if got := string(probe.Payload); got != string(testsupport.Command("GET", "is another store there?")) || len(probe.Properties.CorrelationData) != 16 {
		t.Errorf("it asks %q, %+v", got, probe.Properties)
	}

	next := testsupport.StartAttaching(t, broker.Address, attach.Options{})
	question := monitor.Next()
	monitor.SendMessage(&paho.Publish{QoS: 1, Topic: question.Properties.ResponseTopic, Payload: []byte("$-1\r\n"),
		Properties: &paho.PublishProperties{CorrelationData: question.Properties.CorrelationData}})
	if err := next.Result(); !errors.Is(err, attach.ErrAnotherStore) {
		t.Errorf("Serve: %v, want ErrAnotherStore", err)
	}
}

// A client that is gone has announced a store, and the broker does not say that the store is gone.
func TestAStoreThatIsSilentIsWaitedForAndThenReplaced(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	ghost := testsupport.Connect(t, broker.Address, "ghost", nil)
	ghost.SendMessage(&paho.Publish{QoS: 1, Retain: true, Topic: presenceTopic, Payload: []byte("answers ghost")})
	store, err := attach.New("mqtt://"+broker.Address, attach.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const patience = time.Second
	store.Impatient(patience)
	began := time.Now()
	a := testsupport.ServeAttached(t, store)
	a.MustBeReady()
	if waited := time.Since(began); waited < patience {
		t.Errorf("it waited for %v", waited)
	}
}

// The network of the first store is cut off without a word, and mended when the second
// store answers.
func TestAStoreThatWasSilentYieldsToTheOneThatTookItsPlace(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	through, first, client := attachThrough(t, broker)
	through.Swallow()
	second := testsupport.StartAttaching(t, broker.Address, attach.Options{})
	second.MustBeReady() // once the broker has given the first up
	testsupport.MustHold(t, client, "k", "")
	if err := first.Result(); !errors.Is(err, attach.ErrAnotherStore) {
		t.Errorf("the first store: %v, want ErrAnotherStore", err)
	}
	if !second.Stats().Attached {
		t.Error("the second store has gone too")
	}
}

// The lease lasts longer than the test is patient, so only the Will can free it.
func TestInstantFailoverThroughAnAttachedStore(t *testing.T) {
	broker, _ := begin(t, "", attach.Options{})
	through := testsupport.NewProxy(t, broker.Address)
	options := lease.Options{TTL: 2 * await.Patience, InstantFailover: true}
	dial := func(address, id string) *transport.Client {
		return testsupport.Dial(t, address, transport.Options{ClientID: id, KeepAlive: 2 * await.Patience})
	}
	tenure, _ := mustAcquire(t, dial(through.Address(), "node-a"), options)
	standby := leaseOf(t, dial(broker.Address, "node-b"), leaseKey, options)
	acquired := make(chan error, 1)
	go func() {
		_, err := standby.Acquire(t.Context())
		acquired <- err
	}()
	through.Cut()
	if err := await.Receive(acquired); err != nil {
		t.Fatal(err)
	}
	// The broker may have seen it a moment earlier than the holder.
	await.Receive(tenure.Context().Done())
	if _, err := tenure.Token(); !errors.Is(err, lease.ErrConnectionLost) {
		t.Errorf("the former holder's token: %v, want ErrConnectionLost", err)
	}
}

func TestInvariant42ServeOfAnAttachedStoreLeavesNothing(t *testing.T) {
	broker := mosquitto.Start(t, "")
	for _, address := range []string{broker.Address, mosquitto.FreeAddress(t)} {
		before := runtime.NumGoroutine()
		a := testsupport.StartAttaching(t, address, attach.Options{})
		if address == broker.Address {
			a.MustBeReady()
		}
		stop(t, a)
		testsupport.MustEndGoroutines(t, before)
	}
}

// The next store begins as soon as it hears that this one is gone: what this one grants
// after that may be granted twice.
func TestAStoreThatStopsSaysSoWhenItAnswersNothingAnyMore(t *testing.T) {
	t.Parallel()
	for name, inTime := range map[string]bool{"it keeps up": true, "it does not keep up": false} {
		t.Run(name, func(t *testing.T) {
			broker, a := begin(t, "", attach.Options{})
			p := testsupport.Connect(t, broker.Address, "node-a", nil)
			p.Subscribe(presenceTopic)
			p.Next() // retained
			resume := a.Busy()
			for i := range 3 {
				p.SendMessage(p.Request("SET", fmt.Sprint("k", i), "v"))
			}
			a.Stop()
			var got []string
			if inTime {
				time.Sleep(200 * time.Millisecond) // to be told too early, if that can be
				resume()
			} else {
				got = append(got, string(p.Next().Payload))
				resume()
			}
			if err := a.Result(); err != nil {
				t.Fatal(err)
			}
			end := p.Request("GET", "k")
			end.Topic = end.Properties.ResponseTopic
			p.SendMessage(end)
			for !slices.Contains(got, string(end.Payload)) {
				got = append(got, string(p.Next().Payload))
			}
			answers := 0
			for i, text := range got {
				switch {
				case text == "+OK\r\n":
					answers++
				case strings.HasPrefix(text, "gone ") && i+2 != len(got):
					t.Errorf("after saying that it is gone it answers: %q", got)
				}
			}
			if want := map[bool]int{true: 3, false: 0}[inTime]; answers != want {
				t.Errorf("%d answers, want %d: %q", answers, want, got)
			}
		})
	}
}
