package integration_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// foreignStore is another implementation of a store: plain paho behind a broker that knows nothing
// of the protocol, so that a test can send anything.
type foreignStore struct {
	t *testing.T
	*testsupport.PahoClient
	log *logbuffer.Buffer // of the client
}

func newForeignStore(t *testing.T) (store foreignStore, client *transport.Client) {
	t.Helper()
	address := testsupport.StartBroker(t, new(testsupport.AllowAll))
	store = foreignStore{t, testsupport.Connect(t, address, "store", nil), new(logbuffer.Buffer)}
	store.Subscribe(testsupport.InvokeTopic)
	client = testsupport.Dial(t, address, transport.Options{ClientID: "p", ClientOptions: transport.ClientOptions{Logger: debugLogger(store.log)}})
	return store, client
}

// say publishes a message.
func (s foreignStore) say(topic, payload string, correlation []byte, qos byte, properties ...string) {
	s.t.Helper()
	message := &paho.Publish{QoS: qos, Topic: topic, Payload: []byte(payload), Properties: &paho.PublishProperties{CorrelationData: correlation}}
	for i := 0; i+1 < len(properties); i += 2 {
		message.Properties.User.Add(properties[i], properties[i+1])
	}
	if _, err := s.Publish(message); err != nil {
		s.t.Errorf("%s: %v", topic, err)
	}
}

// get makes the client read a key while the store replies with what reply sends.
func (s foreignStore) get(client *transport.Client, reply func(request *paho.Publish)) (transport.Entry, error) {
	s.t.Helper()
	type result struct {
		entry transport.Entry
		err   error
	}
	done := make(chan result, 1)
	go func() {
		entry, err := client.Get(s.t.Context(), "k")
		done <- result{entry, err}
	}()
	reply(s.Next())
	got := await.Receive(done)
	return got.entry, got.err
}

func TestTheClientUnderstandsForeignStores(t *testing.T) {
	store, client := newForeignStore(t)
	for _, test := range []struct {
		name       string
		payload    string
		qos        byte
		properties []string
		check      func(transport.Entry, error) bool
	}{
		{"a reply with QoS 1 and nothing else", "$1\r\nv\r\n", 1, nil,
			func(e transport.Entry, err error) bool {
				return err == nil && string(e.Value) == "v" && e.Version.IsZero()
			}},
		{"a reply with QoS 0", "$1\r\nv\r\n", 0, nil,
			func(e transport.Entry, err error) bool { return err == nil && string(e.Value) == "v" }},
		{"a padded version", "$1\r\nv\r\n", 1, []string{"__stat", "200", "__ts", "001696374425000:00007:StateStore"},
			func(e transport.Entry, err error) bool {
				return err == nil && e.Version.Wall == 1696374425000 && e.Version.Counter == 7
			}},
		{"a status that is an error", "", 1, []string{"__stat", "503", "__stMsg", "the store is asleep"},
			func(_ transport.Entry, err error) bool {
				var rejected *transport.RejectedError
				return errors.As(err, &rejected) && rejected.Code == 503 && rejected.Reason == "the store is asleep" &&
					errors.Is(err, transport.ErrOutcomeUnknown)
			}},
		{"a status that says that time ran out", "", 1, []string{"__stat", "408"},
			func(_ transport.Entry, err error) bool { return errors.Is(err, transport.ErrOutcomeUnknown) }},
		{"a status that is the fault of the request", "", 1, []string{"__stat", "400"},
			func(_ transport.Entry, err error) bool {
				var rejected *transport.RejectedError
				return errors.As(err, &rejected) && !errors.Is(err, transport.ErrOutcomeUnknown)
			}},
		{"a status that is no number", "$-1\r\n", 1, []string{"__stat", "fine"},
			func(e transport.Entry, err error) bool { return err == nil && !e.Exists }},
		{"an unknown error text", "-ERR the moon is full", 1, nil,
			func(_ transport.Entry, err error) bool {
				var refused *transport.RefusedError
				return errors.As(err, &refused) && refused.Text == "the moon is full"
			}},
		{"a reply of the wrong type", ":1\r\n", 1, nil,
			func(_ transport.Entry, err error) bool { return errors.Is(err, transport.ErrBadReply) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			entry, err := store.get(client, func(request *paho.Publish) {
				store.say(request.Properties.ResponseTopic, test.payload, request.Properties.CorrelationData, test.qos, test.properties...)
			})
			if !test.check(entry, err) {
				t.Errorf("%+v, %v", entry, err)
			}
		})
	}
	if got := ignored(store.log); got != 0 {
		t.Errorf("ignored %v", got)
	}
}

// Invariants 5 and 26: an unexpected message changes nothing.
func TestTheClientIgnoresUnexpectedMessages(t *testing.T) {
	store, client := newForeignStore(t)
	watch, err := client.Watch("k")
	if err != nil {
		t.Fatal(err)
	}
	answer := func(payload string) *paho.Publish {
		t.Helper()
		request := store.Next()
		store.say(request.Properties.ResponseTopic, payload, request.Properties.CorrelationData, 1)
		return request
	}
	answer("+OK\r\n")                // KEYNOTIFY
	first := answer("$3\r\nold\r\n") // GET
	if change := await.Receive(watch.Changes()); string(change.Value) != "old" {
		t.Fatalf("the watch begins with %q", change.Value)
	}
	entry, err := store.get(client, func(request *paho.Publish) {
		reply := request.Properties.ResponseTopic
		store.say(reply, "$5\r\nwrong\r\n", []byte("0123456789abcdef"), 1)                                                     // an unknown correlation
		store.say(reply, "$5\r\nwrong\r\n", nil, 1)                                                                            // none
		store.say(reply, "$3\r\nold\r\n", first.Properties.CorrelationData, 1)                                                 // a reply that comes twice
		store.say(testsupport.NotifyTopic[:len(testsupport.NotifyTopic)-2]+"zz", "*", nil, 1)                                  // a key that is not hex
		store.say(testsupport.NotifyTopic, "*1\r\n$6\r\nNOTIFY\r\n", nil, 1)                                                   // a payload without an event
		store.say(testsupport.NotifyTopic, string(testsupport.Command("NOTIFY", "SET", "VALUE")), nil, 1)                      // and without a value
		store.say(testsupport.NotifyTopic, string(testsupport.Command("NOTIFY", "EXPIRE")), nil, 1)                            // an unknown event
		store.say(testsupport.NotifyTopic, string(testsupport.Command("NOTIFY", "DEL", "k")), nil, 1)                          // and one with too much
		store.say(testsupport.ReservedPrefix+"/70/command/notify/6C", string(testsupport.Command("NOTIFY", "DELETE")), nil, 1) // a key that is not watched
		store.say(reply, "$5\r\nright\r\n", request.Properties.CorrelationData, 1)
		store.say(reply, "$5\r\nwrong\r\n", request.Properties.CorrelationData, 1) // the same once more
	})
	if err != nil || string(entry.Value) != "right" {
		t.Errorf("%q, %v", entry.Value, err)
	}
	// When the client has seen a later message, it has seen all those.
	store.say(testsupport.NotifyTopic, string(testsupport.Command("NOTIFY", "SET", "VALUE", "new")), nil, 1)
	if change := await.Receive(watch.Changes()); string(change.Value) != "new" || change.Missed {
		t.Errorf("the watch shows %q, missed %v", change.Value, change.Missed)
	}
	_ = client.Close() // it writes its log to the end
	if got := ignored(store.log); got != 9 {
		t.Errorf("%d messages are ignored, want 9", got)
	}
}

// deceiver is the hook of a broker that delivers messages without a subscription.
type deceiver struct {
	testsupport.AllowAll
	connected chan *mochi.Client
}

func (d *deceiver) OnSessionEstablished(cl *mochi.Client, _ packets.Packet) { d.connected <- cl }

func TestMessagesForOthersAreIgnored(t *testing.T) {
	var log logbuffer.Buffer
	broker := &deceiver{connected: make(chan *mochi.Client, 1)}
	testsupport.Dial(t, testsupport.StartBroker(t, broker), transport.Options{ClientID: "p",
		ClientOptions: transport.ClientOptions{Logger: debugLogger(&log)}})
	victim := await.Receive(broker.connected)
	for _, topic := range []string{
		testsupport.ReservedPrefix + "/71/command/notify/6B", // of client "q"
		testsupport.ReservedPrefix + "/71/command/notify/6C",
		"factory/news",
		"clients/q/services/statestore/_any_/command/invoke/response",
		"clients/p/response", // not the one that this client uses
	} {
		message := packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Publish},
			TopicName:   topic,
			Payload:     testsupport.Command("NOTIFY", "DELETE"),
			Properties:  packets.Properties{CorrelationData: []byte("0123456789abcdef")},
		}
		if err := victim.WritePacket(message); err != nil {
			t.Fatal(err)
		}
	}
	testsupport.Eventually(t, "it ignores them", func() bool { return ignored(&log) == 5 })
}

// debugLogger returns a logger that writes all lines to log.
func debugLogger(log *logbuffer.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// ignored returns how many messages a client has ignored, by its log.
func ignored(log *logbuffer.Buffer) int { return strings.Count(log.String(), `msg="ignored a message"`) }
