package testsupport

import (
	"context"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/transport"
)

// Dial returns a connected client of package transport and closes it when the test ends. The address
// is a host and port, or what transport.Dial takes.
func Dial(t *testing.T, address string, options transport.Options) *transport.Client {
	t.Helper()
	if !strings.Contains(address, "://") {
		address = "mqtt://" + address
	}
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	client, err := transport.Dial(ctx, address, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return client
}

// MustHold fails unless key holds want.
func MustHold(t *testing.T, client *transport.Client, key, want string) {
	t.Helper()
	entry, err := client.Get(t.Context(), key)
	if err != nil || string(entry.Value) != want {
		t.Errorf("%s holds %q, want %q (%v)", key, entry.Value, want, err)
	}
}
