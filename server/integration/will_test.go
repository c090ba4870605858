package integration_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestOurWillIsAppliedWhenTheConnectionIsLost(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	observer := testsupport.Dial(t, address, transport.Options{})
	watch, err := observer.Watch("k")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	client := testsupport.Dial(t, through.Address(), transport.Options{ClientID: "node-a"})
	if _, err := client.Set(t.Context(), "k", []byte("mine"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	will, err := client.SetWill(t.Context(), "k", []byte("mine"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := will.Silence(), 7*time.Second; got != want {
		t.Errorf("the broker bears a silence of %v, want %v", got, want)
	}
	testsupport.Eventually(t, "the key is seen", func() bool { return (await.Receive(watch.Changes())).Exists })
	through.Cut()
	await.Receive(will.Lost())
	testsupport.Eventually(t, "the key is deleted", func() bool { return !(await.Receive(watch.Changes())).Exists })
	testsupport.Eventually(t, "the Will is counted", func() bool { return s.Stats().AppliedWills == 1 })
	// The connection that follows has none.
	if _, err := client.Set(t.Context(), "k", []byte("mine"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	through.Cut()
	if _, err := client.Set(t.Context(), "other", nil, transport.SetOptions{}); errors.Is(err, transport.ErrOutcomeUnknown) {
		_, _ = client.Get(t.Context(), "other") // by the next connection
	}
	testsupport.MustHold(t, observer, "k", "mine")
	if got := s.Stats().AppliedWills; got != 1 {
		t.Errorf("%d Wills were applied, want 1", got)
	}
}

func TestRequestsUnderWayMayFinishBeforeTheConnectionIsReplaced(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	client := testsupport.Dial(t, through.Address(), transport.Options{})
	through.Hold(testsupport.ToClient)
	answered := make(chan error, 1)
	go func() {
		_, err := client.Set(t.Context(), "k", nil, transport.SetOptions{})
		answered <- err
	}()
	testsupport.Eventually(t, "the request arrives", func() bool { return s.State().Totals.Requests == 1 })
	replaced := make(chan error, 1)
	lost := client.Lost()
	go func() {
		_, err := client.SetWill(t.Context(), "other", nil)
		replaced <- err
	}()
	// Too early for both: if the connection were closed, the request would fail.
	select {
	case err := <-answered:
		t.Errorf("the request: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	through.Release(testsupport.ToClient)
	if err := await.Receive(answered); err != nil {
		t.Errorf("the request: %v", err)
	}
	if err := await.Receive(replaced); err != nil {
		t.Errorf("SetWill: %v", err)
	}
	await.Receive(lost)
}

func TestInstantFailoverOverMQTT(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	options := lease.Options{TTL: 5 * time.Second, InstantFailover: true}
	acquire := func(client *transport.Client) (*lease.Tenure, error) {
		l, err := lease.New(client, "press-7/active", options)
		if err != nil {
			t.Fatal(err)
		}
		return l.Acquire(t.Context())
	}
	holder, err := acquire(testsupport.Dial(t, through.Address(), transport.Options{ClientID: "node-a"}))
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		tenure *lease.Tenure
		err    error
	}
	acquired := make(chan outcome, 1)
	go func() {
		tenure, err := acquire(testsupport.Dial(t, address, transport.Options{ClientID: "node-b"}))
		acquired <- outcome{tenure, err}
	}()
	testsupport.Eventually(t, "the waiter has its Will and its watch", func() bool { return s.Stats().Connected >= 2 })
	through.Cut()
	next := await.Receive(acquired)
	if next.err != nil {
		t.Fatal(next.err)
	}
	// The server may have seen it a moment earlier than the holder.
	await.Receive(holder.Context().Done())
	if _, err := holder.Token(); !errors.Is(err, lease.ErrConnectionLost) {
		t.Errorf("the former holder's token: %v, want ErrConnectionLost", err)
	}
	testsupport.Eventually(t, "the Will is counted", func() bool { return s.Stats().AppliedWills == 1 })
}
