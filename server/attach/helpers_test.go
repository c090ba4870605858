package attach_test

import (
	"fmt"
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

// The lease of these tests, and a key that its token protects.
const leaseKey, fencedKey = "press-7/active", "press-7/setpoint"

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
	mustSet(t, client, "k", "of the first")
	return through, first, client
}

// begin starts a broker with settings, and a store on it that answers.
func begin(t *testing.T, settings string, options attach.Options) (*mosquitto.Broker, *testsupport.Attachment) {
	t.Helper()
	broker := mosquitto.Start(t, settings)
	return broker, testsupport.Attach(t, broker.Address, options)
}

// stop stops a store, which must end without an error.
func stop(t *testing.T, store *testsupport.Attachment) {
	t.Helper()
	store.Stop()
	if err := store.Result(); err != nil {
		t.Fatal(err)
	}
}

// notificationsOf makes a client subscribe to its notifications.
func notificationsOf(p *testsupport.PahoClient) {
	p.T.Helper()
	p.Subscribe(fmt.Sprintf("%s/%X/command/notify/+", testsupport.ReservedPrefix, p.ID))
}

func mustSet(t *testing.T, client *transport.Client, key, value string) {
	t.Helper()
	if _, err := client.Set(t.Context(), key, []byte(value), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
}

func leaseOf(t *testing.T, client *transport.Client, name string, options lease.Options) *lease.Lease {
	t.Helper()
	l, err := lease.New(client, name, options)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// mustAcquire takes the lease leaseKey for a client.
func mustAcquire(t *testing.T, client *transport.Client, options lease.Options) (*lease.Tenure, hlc.Token) {
	t.Helper()
	tenure, err := leaseOf(t, client, leaseKey, options).TryAcquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token, err := tenure.Token()
	if err != nil {
		t.Fatal(err)
	}
	return tenure, token
}
