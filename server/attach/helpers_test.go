package attach_test

import (
	"os"
	"testing"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// attachAlone is testsupport.Attach for a test in which no other store exists: it does not
// wait for the objection of one.
func attachAlone(t testing.TB, address string, options attach.Options) *testsupport.Attachment {
	t.Helper()
	store, err := attach.New("mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	store.Alone()
	a := testsupport.ServeAttached(t, store)
	a.MustBeReady()
	return a
}

// attachThrough attaches a store through a proxy, and returns both with a client that has set the
// key k to "of the first".
func attachThrough(t *testing.T, broker *mosquitto.Broker) (*testsupport.Proxy, *testsupport.Attachment, *transport.Client) {
	t.Helper()
	through := testsupport.NewProxy(t, broker.Address)
	first := testsupport.Attach(t, through.Address(), attach.Options{})
	client := testsupport.Dial(t, broker.Address, transport.Options{})
	if _, err := client.Set(t.Context(), "k", []byte("of the first"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	return through, first, client
}

// mustAcquire takes the lease testsupport.LeaseKey for a client.
func mustAcquire(t *testing.T, client *transport.Client, options lease.Options) (*lease.Tenure, hlc.Token) {
	t.Helper()
	l, err := lease.New(client, testsupport.LeaseKey, options)
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := l.TryAcquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token, err := tenure.Token()
	if err != nil {
		t.Fatal(err)
	}
	return tenure, token
}
