package attach_test

import (
	"testing"

	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

func TestClientIDsThatAreUserNamesTieClientsAndLetTheStoreWork(t *testing.T) {
	broker := startGuardedMosquitto(t, unchanged, "use_username_as_clientid true\nallow_anonymous false\n")
	attachAlone(t, broker.Address, attach.Options{Username: "store", Password: []byte("secret")})
	honest := testsupport.Connect(t, broker.Address, "press", testsupport.As("press"))
	honest.Do("SET", "k", "v")
	// Under any id it is press to the broker, and reads nothing of node.
	liar := testsupport.Connect(t, broker.Address, "node", testsupport.As("press"))
	honest.MustBeGone()
	liar.SendMessage(liar.Request("GET", "k"))
	liar.ReplyTo = "clients/press/response"
	liar.Subscribe(liar.ReplyTo)
	liar.MustGet("k", "v") // the next message is this reply
}
