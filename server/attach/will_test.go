package attach_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// The store must know which client asks and where it answers. Of a Will it learns both only from
// what the broker publishes.
func TestABrokerPublishesOurWillAsAWholeRequest(t *testing.T) {
	broker := mosquitto.Start(t, "")
	testsupport.Attach(t, broker.Address, attach.Options{})
	monitor := testsupport.Connect(t, broker.Address, "monitor", nil)
	through := testsupport.NewProxy(t, broker.Address)
	_, set := testsupport.DialWithWill(t, through)
	monitor.Subscribe(testsupport.InvokeTopic)
	through.Cut()
	testsupport.MustBeLost(t, set.Lost())
	will := monitor.Next()
	if got, want := string(will.Payload), string(testsupport.Command("VDEL", "k", "mine")); got != want {
		t.Errorf("it asks for %q, want %q", got, want)
	}
	if will.QoS != 1 || will.Retain || len(will.Properties.CorrelationData) != 16 ||
		will.Properties.ResponseTopic != "clients/node-a/services/statestore/_any_/command/invoke/response" ||
		will.Properties.ContentType != "application/octet-stream" ||
		will.Properties.User.Get("__srcId") != "node-a" || will.Properties.User.Get("__protVer") != "1.0" {
		t.Errorf("%v, %+v", will, will.Properties)
	}
	observer := testsupport.Connect(t, broker.Address, "observer", nil)
	testsupport.Eventually(t, "the key is deleted", func() bool { return observer.Do("GET", "k") == "$-1\r\n" })
}

// What the server with its own broker refuses at CONNECT is dropped by an attached store
// when it comes. What depends on the moment is decided in the same way by both.
func TestAnAttachedStoreJudgesAWillLikeAnyRequest(t *testing.T) {
	broker := mosquitto.Start(t, "")
	a := testsupport.Attach(t, broker.Address, attach.Options{})
	observer := testsupport.Connect(t, broker.Address, "observer", nil)
	whole := func(payload []byte) func(*paho.Connect) {
		return func(connect *paho.Connect) {
			connect.WillMessage = &paho.WillMessage{Topic: testsupport.InvokeTopic, QoS: 1, Payload: payload}
			connect.WillProperties = &paho.WillProperties{}
		}
	}
	for _, test := range []struct {
		name    string
		change  func(*paho.Connect)
		dropped attach.DropReason // empty: it reaches the store
	}{
		// paho leaves out the response topic, whatever one tells it.
		{"without a response topic", whole(testsupport.Command("DEL", "k")), attach.DroppedNoResponse},
		{"with QoS 0", func(connect *paho.Connect) {
			whole(testsupport.Command("DEL", "k"))(connect)
			connect.WillMessage.QoS = 0
		}, attach.DroppedQoS},
		{"retained", func(connect *paho.Connect) {
			whole(testsupport.Command("DEL", "k"))(connect)
			connect.WillMessage.Retain = true
		}, attach.DroppedRetained},
	} {
		t.Run(test.name, func(t *testing.T) {
			observer.Do("SET", "k", "v")
			before := a.Stats()
			heir := testsupport.Connect(t, broker.Address, "node-a", test.change)
			_ = heir.Conn.Close()
			testsupport.Eventually(t, "the Will is dropped", func() bool { return a.Stats().Dropped[test.dropped] == before.Dropped[test.dropped]+1 })
			observer.MustGet("k", "v")
		})
	}
	t.Run("a retained one is not applied by a store that comes later", func(t *testing.T) {
		a.Stop()
		if err := a.Result(); err != nil {
			t.Fatal(err)
		}
		next := testsupport.Attach(t, broker.Address, attach.Options{})
		observer.MustGet("k", "")
		if got := next.Stats().Dropped; len(got) != 0 {
			t.Errorf("dropped %v", got)
		}
	})
}

// There is no proxy on the way, which would let others overtake the farewell.
func TestOnABrokerOurWillIsNotAppliedAfterAFarewell(t *testing.T) {
	broker := mosquitto.Start(t, "")
	a := testsupport.Attach(t, broker.Address, attach.Options{})
	observer := testsupport.Dial(t, broker.Address, transport.Options{})
	client, err := transport.Dial(t.Context(), "mqtt://"+broker.Address, transport.Options{ClientID: "node-a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Set(t.Context(), "k", []byte("mine"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	set, err := client.SetWill(t.Context(), "k", []byte("mine"))
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	testsupport.MustBeLost(t, set.Lost())
	before := a.Stats().Requests
	const looks = 10 // for the broker to have read the farewell before the last
	for range looks {
		testsupport.MustHold(t, observer, "k", "mine")
	}
	if got := a.Stats().Requests - before; got != looks {
		t.Errorf("the store was asked %d times, want %d", got, looks)
	}
}

// A Will names the value of one tenure, so it cannot release the lease of a successor.
func TestAWillThatComesLateDoesNotDeleteWhatIsThereNow(t *testing.T) {
	broker := mosquitto.Start(t, "")
	a := testsupport.Attach(t, broker.Address, attach.Options{})
	observer := testsupport.Dial(t, broker.Address, transport.Options{})
	through := testsupport.NewProxy(t, broker.Address)
	_, set := testsupport.DialWithWill(t, through)
	if _, err := observer.Set(t.Context(), "k", []byte("of the next"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	before := a.Stats().Requests
	through.Cut()
	testsupport.MustBeLost(t, set.Lost())
	testsupport.Eventually(t, "the Will has been answered", func() bool { return a.Stats().Requests > before })
	testsupport.MustHold(t, observer, "k", "of the next")
}

// The old connection is half-open. Another client connects with the same client id, or the same one
// does. The broker ends the old connection and publishes its Will before it
// reads from the new one.
func TestAWillIsAppliedBeforeTheNextConnectionOfItsClientIsRead(t *testing.T) {
	broker := mosquitto.Start(t, "")
	testsupport.Attach(t, broker.Address, attach.Options{})
	for n := range 3 {
		through := testsupport.NewProxy(t, broker.Address)
		testsupport.DialWithWill(t, through)
		through.Refuse(true) // it would take the name back
		through.Swallow()
		again := testsupport.Connect(t, broker.Address, "node-a", nil)
		again.MustGet("k", "")
		_ = again.Paho.Disconnect(&paho.Disconnect{})
		again.MustBeGone()
		if t.Failed() {
			t.Fatalf("round %d", n)
		}
	}
}

// A KEYNOTIFY is sent again over a new connection, in a session that was kept, after its
// watch has ended.
func TestAKeyNotifyThatIsSentAgainWatchesAgain(t *testing.T) {
	broker := mosquitto.Start(t, "")
	a := testsupport.Attach(t, broker.Address, attach.Options{})
	writer := testsupport.Connect(t, broker.Address, "writer", nil)
	filter := fmt.Sprintf("%s/%X/command/notify/+", testsupport.ReservedPrefix, "node-a")
	gone := testsupport.Connect(t, broker.Address, "node-a", nil)
	gone.Subscribe(filter)
	request := gone.Request("KEYNOTIFY", "k")
	ask := func(p *testsupport.PahoClient) {
		t.Helper()
		if _, err := p.Publish(request); err != nil {
			t.Fatal(err)
		}
		if got := string(p.Next().Payload); got != "+OK\r\n" {
			t.Fatalf("KEYNOTIFY: %q", got)
		}
	}
	ask(gone)
	_ = gone.Paho.Disconnect(&paho.Disconnect{})
	gone.MustBeGone()
	writer.Do("SET", "k", "1")
	testsupport.Eventually(t, "the watch ends", func() bool { return a.Stats().DroppedWatches == 1 })

	again := testsupport.Connect(t, broker.Address, "node-a", nil)
	again.Subscribe(filter)
	ask(again)
	writer.Do("SET", "k", "2")
	if got := string(again.NextNotification().Payload); !strings.Contains(got, "\r\n2\r\n") {
		t.Errorf("notification %q", got)
	}
}
