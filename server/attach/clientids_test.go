package attach_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// inTheNameOf changes a request so that it says it is another client's.
func inTheNameOf(client string, request *paho.Publish) *paho.Publish {
	request.Properties.ResponseTopic = "clients/" + client + "/response"
	return request
}

func mustPublish(t *testing.T, p *testsupport.PahoClient, message *paho.Publish) {
	t.Helper()
	if _, err := p.Publish(message); err != nil {
		t.Fatal(err)
	}
}

// again publishes a request and returns the reply to it.
func again(t *testing.T, p *testsupport.PahoClient, request *paho.Publish) string {
	t.Helper()
	mustPublish(t, p, request)
	return string(p.Next().Payload)
}

func watchOf(p *testsupport.PahoClient, key string) {
	p.T.Helper()
	p.Subscribe(fmt.Sprintf("%s/%X/command/notify/%X", testsupport.ReservedPrefix, p.ID, key))
	p.Do("KEYNOTIFY", key)
}

func TestANameBeyondItsBoundIsDroppedAndLoggedShort(t *testing.T) {
	broker, log := mosquitto.Start(t, ""), new(logbuffer.Buffer)
	store := attachAlone(t, broker.Address, attach.Options{Logger: log.Logger()})
	p := testsupport.Connect(t, broker.Address, "p", nil)
	mustPublish(t, p, inTheNameOf(strings.Repeat("n", 256), p.Request("GET", "k")))
	mustPublish(t, p, inTheNameOf(strings.Repeat("n", 257), p.Request("GET", "k")))
	p.Do("GET", "k")
	if got := store.Stats(); got.Dropped[attach.DroppedLongClient] != 1 || got.Clients != 2 {
		t.Errorf("%+v", got)
	}
	if got := log.String(); strings.Contains(got, strings.Repeat("n", 65)) || !strings.Contains(got, strings.Repeat("n", 64)) {
		t.Errorf("logged %q", got)
	}
}

func TestALongCorrelationIsRecognizedAndAnsweredWhole(t *testing.T) {
	broker := mosquitto.Start(t, "")
	attachAlone(t, broker.Address, attach.Options{})
	p := testsupport.Connect(t, broker.Address, "p", nil)
	p.Do("SET", "k", "v")
	request := p.Request("DEL", "k")
	request.Properties.CorrelationData = []byte(strings.Repeat("c", 60_000))
	for range 2 {
		mustPublish(t, p, request)
		reply := p.Next()
		if string(reply.Payload) != ":1\r\n" || string(reply.Properties.CorrelationData) != string(request.Properties.CorrelationData) {
			t.Errorf("%q, %d bytes of correlation data", reply.Payload, len(reply.Properties.CorrelationData))
		}
	}
}

// What docs/attach.md says that a client can do in the name of another, with the rules that are
// there.
func TestAClientInTheNameOfAnotherDoesWhatTheDocumentSays(t *testing.T) {
	broker := startGuardedMosquitto(t, unchanged)
	attachAlone(t, broker.Address, attach.Options{Username: "store", Password: []byte("secret"), Store: statestore.Options{DedupWindow: 4}})
	node, other := testsupport.Connect(t, broker.Address, "node", nil), testsupport.Connect(t, broker.Address, "other", nil)

	t.Run("it breaks the at-most-once of the other", func(t *testing.T) {
		node.Do("SET", "gone", "v")
		remove := node.Request("DEL", "gone")
		if first, second := again(t, node, remove), again(t, node, remove); first != ":1\r\n" || second != first {
			t.Fatalf("%q, %q", first, second)
		}
		for range 4 {
			mustPublish(t, other, inTheNameOf("node", other.Request("DEL", "none")))
			node.Next() // the reply goes to the other
		}
		if got := again(t, node, remove); got == ":1\r\n" {
			t.Errorf("it is remembered still: %q", got)
		}
	})
	t.Run("it stops the watches of the other", func(t *testing.T) {
		watchOf(node, "k")
		node.Do("SET", "k", "v")
		node.NextNotification()
		mustPublish(t, other, inTheNameOf("node", other.Request("KEYNOTIFY", "k", "STOP")))
		node.Next()
		node.Do("SET", "k", "v")
		node.MustBeSilent()
	})
	t.Run("it may connect with the id of the other, and reads its replies", func(t *testing.T) {
		thief := testsupport.Connect(t, broker.Address, "node", nil)
		node.MustBeGone()
		thief.Do("GET", "k")
	})
}

func TestWhichClientsReadTheRepliesToANameWithASlash(t *testing.T) {
	broker := startGuardedMosquitto(t, unchanged)
	attachAlone(t, broker.Address, attach.Options{Username: "store", Password: []byte("secret")})
	reader := testsupport.Connect(t, broker.Address, "a", nil)
	reader.Subscribe("clients/a/#")
	// Any client that writes a response topic below clients/a/ is answered where a reads.
	other := testsupport.Connect(t, broker.Address, "other", nil)
	request := other.Request("SET", "secret", "value")
	request.Properties.ResponseTopic = "clients/a/b/response"
	mustPublish(t, other, request)
	if got := reader.Next(); got.Topic != "clients/a/b/response" {
		t.Errorf("%s", got.Topic)
	}
	// A client of that name takes the same path, unless it names itself in __srcId.
	named := testsupport.Connect(t, broker.Address, "a/b", nil)
	mustPublish(t, named, named.Request("GET", "secret"))
	if got := reader.Next(); got.Topic != "clients/a/b/response" || !strings.Contains(string(got.Payload), "value") {
		t.Errorf("%s: %q", got.Topic, got.Payload)
	}
}

func TestClientIDsThatAreUserNamesTieClientsAndLetTheStoreWork(t *testing.T) {
	broker := startGuardedMosquitto(t, unchanged, "use_username_as_clientid true\nallow_anonymous false\n")
	attachAlone(t, broker.Address, attach.Options{Username: "store", Password: []byte("secret")})
	honest := testsupport.Connect(t, broker.Address, "press", testsupport.As("press"))
	honest.Do("SET", "k", "v")
	// Under any id it is press to the broker, and reads nothing of node.
	liar := testsupport.Connect(t, broker.Address, "node", testsupport.As("press"))
	honest.MustBeGone()
	mustPublish(t, liar, liar.Request("GET", "k"))
	liar.ReplyTo = "clients/press/response"
	liar.Subscribe(liar.ReplyTo)
	liar.MustGet("k", "v") // the next message is this reply
}
