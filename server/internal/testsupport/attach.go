package testsupport

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/attach"
)

// Attachment is a store that is served until the test ends.
type Attachment struct {
	*attach.Store
	// Stop ends Serve, and does not wait for it.
	Stop func()

	t     testing.TB
	ended chan struct{}
	err   error // of Serve, once ended
}

// Attach returns a store that answers on the broker at an address.
func Attach(t testing.TB, address string, options attach.Options) *Attachment {
	t.Helper()
	a := StartAttaching(t, address, options)
	a.MustBeReady()
	return a
}

// StartAttaching is Attach, but does not wait until the store answers.
func StartAttaching(t testing.TB, address string, options attach.Options) *Attachment {
	t.Helper()
	store, err := attach.New("mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	return ServeAttached(t, store)
}

// ServeAttached serves a store until the test ends.
func ServeAttached(t testing.TB, store *attach.Store) *Attachment {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	a := &Attachment{Store: store, t: t, Stop: stop, ended: make(chan struct{})}
	go func() {
		a.err = store.Serve(ctx)
		close(a.ended)
	}()
	t.Cleanup(func() {
		stop()
		if err := a.Result(); err != nil && !errors.Is(err, attach.ErrAnotherStore) {
			t.Errorf("Serve: %v", err)
		}
	})
	return a
}

// MustBeReady waits until the store answers.
func (a *Attachment) MustBeReady() {
	a.t.Helper()
	select {
	case <-a.Ready():
	case <-a.ended:
		a.t.Fatalf("Serve: %v", a.err)
	case <-time.After(Patience):
		a.t.Fatal("the store does not attach")
	}
}

// Result waits until Serve has returned, and returns its error.
func (a *Attachment) Result() error {
	await.Receive(a.ended)
	return a.err
}
