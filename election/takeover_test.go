package election_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// Run promises to return once the client was taken over.
func TestRunOfAnUnhealthyNodeEndsWhenTheClientIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		conn := store.Connect("a")
		client, err := transport.NewClient(conn, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		e, err := election.New(client, name, election.Options{Health: func(context.Context) error { return errors.New("sick") }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx, serve) }()
		time.Sleep(time.Minute)
		store.Connect("a")
		select {
		case err := <-done:
			if !errors.Is(err, transport.ErrSessionTakenOver) {
				t.Errorf("Run: %v, want ErrSessionTakenOver", err)
			}
		case <-time.After(24 * time.Hour):
			t.Error("after a day Run has not returned")
			cancel()
			await.Receive(done)
		}
	})
}
