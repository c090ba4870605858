package integration_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// passwords admits one user, with a password that may change.
type passwords struct{ present atomic.Value }

func (p *passwords) Authenticate(credentials access.Credentials) error {
	if credentials.User != "gateway" || string(credentials.Password) != p.present.Load() {
		return errors.New("not this one")
	}
	return nil
}

func TestInvariant50AnElectionOutlastsABrokerThatRefusesTheCredentialsForAWhile(t *testing.T) {
	t.Parallel()
	admits := new(passwords)
	admits.present.Store("one")
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{Authenticator: admits}))
	client := mustDial(t, "mqtt://"+through.Address(), transport.Options{Username: "gateway", Password: []byte("one")})
	var mu sync.Mutex
	var latest election.Status
	elector, err := election.New(client, "press-7/active", election.Options{
		TTL: time.Second,
		Observer: func(status election.Status) {
			mu.Lock()
			defer mu.Unlock()
			latest = status
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- elector.Run(ctx, func(ctx context.Context, _ *election.Term) error {
			await.Receive(ctx.Done())
			return nil
		})
	}()
	await := func(what string, reached func(election.Status) bool) {
		t.Helper()
		testsupport.Eventually(t, what, func() bool {
			select {
			case err := <-ended:
				t.Fatalf("Run returned %v", err)
			default:
			}
			mu.Lock()
			defer mu.Unlock()
			return reached(latest)
		})
	}
	leads := func(status election.Status) bool { return status.Phase == election.Active }
	await("it leads", leads)
	admits.present.Store("two")
	through.Cut()
	await("it stands by, and says why", func(status election.Status) bool {
		var refused *transport.ConnectionError
		return status.Phase == election.Standby && errors.As(status.Cause, &refused)
	})
	admits.present.Store("one")
	await("it leads again", leads)
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want Canceled", err)
		}
	case <-time.After(testsupport.Patience):
		t.Error("Run does not return")
	}
}
