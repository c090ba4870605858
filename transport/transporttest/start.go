package transporttest

import (
	"testing"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Start returns a store with default options that ends with the test.
func Start(t testing.TB) *Store {
	t.Helper()
	store, err := NewStore(statestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// Client returns a client of the store, and its connection, for the faults. Both end with
// the test.
func (s *Store) Client(t testing.TB, clientID string, options transport.ClientOptions) (*transport.Client, *Conn) {
	t.Helper()
	conn := s.Connect(clientID)
	client, err := transport.NewClient(conn, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close client %q: %v", clientID, err)
		}
	})
	return client, conn
}
