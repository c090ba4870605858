package server_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// attachment is a store that is attached until the test ends.
type attachment struct {
	*server.Attached
	t     testing.TB
	stop  func()
	ended chan struct{}
	err   error // of Serve, once ended
}

// attach returns a store that answers already.
func attach(t testing.TB, address string, options server.AttachOptions) *attachment {
	t.Helper()
	a := beginToAttach(t, address, options)
	a.mustBeReady()
	return a
}

// attachAlone is attach where no other store can be.
func attachAlone(t testing.TB, address string, options server.AttachOptions) *attachment {
	t.Helper()
	store, err := server.Attach("mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	store.Alone()
	a := serveAttached(t, store)
	a.mustBeReady()
	return a
}

// beginToAttach does not wait until it answers.
func beginToAttach(t testing.TB, address string, options server.AttachOptions) *attachment {
	t.Helper()
	store, err := server.Attach("mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	return serveAttached(t, store)
}

func serveAttached(t testing.TB, store *server.Attached) *attachment {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	a := &attachment{Attached: store, t: t, stop: stop, ended: make(chan struct{})}
	go func() {
		a.err = store.Serve(ctx)
		close(a.ended)
	}()
	t.Cleanup(func() {
		stop()
		if err := a.result(); err != nil && !errors.Is(err, server.ErrAnotherStore) {
			t.Errorf("Serve: %v", err)
		}
	})
	return a
}

func (a *attachment) mustBeReady() {
	a.t.Helper()
	select {
	case <-a.Ready():
	case <-a.ended:
		a.t.Fatalf("Serve: %v", a.err)
	case <-time.After(testsupport.Patience):
		a.t.Fatal("the store does not attach")
	}
}

// result waits for the end of Serve.
func (a *attachment) result() error {
	a.t.Helper()
	select {
	case <-a.ended:
		return a.err
	case <-time.After(testsupport.Patience):
		a.t.Fatal("Serve does not return")
		return nil
	}
}
