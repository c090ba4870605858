package attach_test

import (
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// inTheNameOf changes a request so that it says it is another client's.
func inTheNameOf(client string, request *paho.Publish) *paho.Publish {
	request.Properties.ResponseTopic = "clients/" + client + "/response"
	return request
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
