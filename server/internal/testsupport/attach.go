package testsupport

import (
	"context"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
)

// Attach attaches a store to a broker until the test ends, and returns when the store answers.
func Attach(t testing.TB, address string, options server.AttachOptions) {
	t.Helper()
	store, err := server.Attach("mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- store.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(Patience):
			t.Error("Serve does not return")
		}
	})
	select {
	case <-store.Ready():
	case err := <-served:
		served <- err
		t.Fatalf("Serve: %v", err)
	case <-time.After(Patience):
		t.Fatal("the store does not attach")
	}
}
