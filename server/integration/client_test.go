package integration_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

func TestTheClientGetsEachOutcomeOfTheStore(t *testing.T) {
	ctx := t.Context()
	client := testsupport.Dial(t, testsupport.Start(t, server.Options{Store: statestore.Options{MaxKeys: 2}}), transport.Options{})
	key := "any \x00 bytes +/#"
	first, err := client.Set(ctx, key, []byte("v"), transport.SetOptions{TTL: time.Minute})
	if err != nil || first.IsZero() {
		t.Fatalf("Set: %v, %v", first, err)
	}
	if entry, err := client.Get(ctx, key); err != nil || string(entry.Value) != "v" || entry.Version != first {
		t.Errorf("Get: %+v, %v", entry, err)
	}
	if version, err := client.Set(ctx, key, []byte("w"), transport.SetOptions{Condition: transport.IfMissing}); version != first || !errors.Is(err, transport.ErrConditionFailed) {
		t.Errorf("Set NX of a key that exists: %v, %v; want %v and ErrConditionFailed", version, err, first)
	}
	renewed, err := client.Set(ctx, key, []byte("v"), transport.SetOptions{Condition: transport.IfMissingOrEqual})
	if err != nil || renewed.Compare(first) <= 0 {
		t.Errorf("Set NEX of the same value: %v, %v", renewed, err)
	}
	if _, err := client.VDel(ctx, key, []byte("w"), transport.DelOptions{}); !errors.Is(err, transport.ErrConditionFailed) {
		t.Errorf("VDel of another value: %v", err)
	}
	if deleted, err := client.VDel(ctx, key, []byte("v"), transport.DelOptions{}); !deleted || err != nil {
		t.Errorf("VDel: %v, %v", deleted, err)
	}
	if deleted, err := client.Del(ctx, key, transport.DelOptions{}); deleted || err != nil {
		t.Errorf("Del of a missing key: %v, %v", deleted, err)
	}
	if entry, err := client.Get(ctx, key); err != nil || entry.Exists {
		t.Errorf("Get of a missing key: %+v, %v", entry, err)
	}
	token := hlc.Token(renewed)
	if _, err := client.Set(ctx, "fenced", nil, transport.SetOptions{FencingToken: token}); err != nil {
		t.Errorf("Set with a token: %v", err)
	}
	if _, err := client.Del(ctx, "fenced", transport.DelOptions{}); !errors.Is(err, transport.ErrFencingTokenRequired) {
		t.Errorf("Del without a token: %v", err)
	}
	if _, err := client.Set(ctx, "fenced", nil, transport.SetOptions{FencingToken: hlc.Token(first)}); !errors.Is(err, transport.ErrFencingTokenLower) {
		t.Errorf("Set with an older token: %v", err)
	}
	if _, err := client.Get(ctx, ""); !errors.Is(err, transport.ErrKeyLengthZero) {
		t.Errorf("an empty key: %v", err)
	}
	_, _ = client.Set(ctx, "second", nil, transport.SetOptions{})
	_, err = client.Set(ctx, "third", nil, transport.SetOptions{})
	var refused *transport.RefusedError
	if !errors.As(err, &refused) || !errors.Is(err, transport.ErrQuotaExceeded) || !strings.Contains(err.Error(), `SET "third"`) {
		t.Errorf("over the quota: %v", err)
	}
}

// Our stores keep all keys alike, and accept a SET with Persist.
func TestASetThatAsksForPersistenceIsTakenByEveryStoreOfOurs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		start func(t *testing.T) (address string)
	}{
		{"our server", func(t *testing.T) string { return testsupport.Start(t, server.Options{}) }},
		{"attached", func(t *testing.T) string {
			address := mosquitto.Start(t, "").Address
			testsupport.Attach(t, address, attach.Options{})
			return address
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := testsupport.Dial(t, test.start(t), transport.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
			defer cancel()
			if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{Persist: true}); err != nil {
				t.Fatal(err)
			}
			if entry, err := client.Get(ctx, "k"); err != nil || string(entry.Value) != "v" {
				t.Errorf("%+v, %v", entry, err)
			}
		})
	}
}

func TestARequestUnderWayFailsAtOnceAsUnknownWhenTheConnectionDrops(t *testing.T) {
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{}))
	client := testsupport.Dial(t, through.Address(), transport.Options{})
	through.Hold(testsupport.ToClient)
	failed := make(chan error, 1)
	go func() {
		_, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{})
		failed <- err
	}()
	other := testsupport.Dial(t, *through.Target.Load(), transport.Options{})
	for { // it was applied, and the answer is held
		if entry, err := other.Get(t.Context(), "k"); err != nil || entry.Exists {
			break
		}
	}
	began := time.Now()
	through.Release(testsupport.ToClient)
	through.Cut()
	select {
	case err := <-failed:
		// The reply may have passed when the hold ended.
		if err != nil && !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("after %v: %v, want ErrOutcomeUnknown", time.Since(began), err)
		}
	case <-time.After(testsupport.Patience):
		t.Error("it hangs")
	}
}

func TestInvariant21ARequestThatWaitsForAConnectionIsSentInTimeOrNever(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	client, other := testsupport.Dial(t, through.Address(), transport.Options{}), testsupport.Dial(t, address, transport.Options{})
	through.Refuse(true)
	through.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for { // until the loss was noticed
		_, err := client.Set(ctx, "never", nil, transport.SetOptions{})
		if errors.Is(err, transport.ErrNotSent) && errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if !errors.Is(err, transport.ErrOutcomeUnknown) && !errors.Is(err, transport.ErrNotSent) {
			t.Fatalf("Set without a connection: %v, want ErrNotSent", err)
		}
	}
	_, _ = other.Del(t.Context(), "never", transport.DelOptions{}) // in case the first try got through
	waiting := make(chan error, 1)
	go func() {
		_, err := client.Set(t.Context(), "later", nil, transport.SetOptions{})
		waiting <- err
	}()
	through.Refuse(false)
	if err := await.Receive(waiting); err != nil {
		t.Errorf("a Set that could wait: %v", err)
	}
	if entry, err := other.Get(t.Context(), "never"); err != nil || entry.Exists {
		t.Errorf("the request that was given up was sent later: %+v, %v", entry, err)
	}
}

func TestInvariant27AfterAReconnectWatchesAreRegisteredAndReadAgain(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	client, other := testsupport.Dial(t, through.Address(), transport.Options{}), testsupport.Dial(t, address, transport.Options{})
	watch, err := client.Watch("k")
	if err != nil {
		t.Fatal(err)
	}
	next := func() transport.Change {
		t.Helper()
		select {
		case change := <-watch.Changes():
			return change
		case <-time.After(testsupport.Patience):
			t.Fatal("no change arrives")
			return transport.Change{}
		}
	}
	set := func(value string) {
		t.Helper()
		if _, err := other.Set(t.Context(), "k", []byte(value), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if change := next(); change.Exists || change.Missed {
		t.Errorf("at first: %+v", change)
	}
	set("1")
	if change := next(); string(change.Value) != "1" || change.Missed || change.Version.IsZero() {
		t.Errorf("after the first Set: %+v", change)
	}
	through.Refuse(true)
	through.Cut()
	set("2") // without a notification
	through.Refuse(false)
	if change := next(); string(change.Value) != "2" || !change.Missed {
		t.Errorf("after the reconnect: %+v, want the value 2 and Missed", change)
	}
	set("3")
	if change := next(); string(change.Value) != "3" || change.Missed {
		t.Errorf("then: %+v", change)
	}
	if _, err := other.Del(t.Context(), "k", transport.DelOptions{}); err != nil {
		t.Fatal(err)
	}
	if change := next(); change.Exists {
		t.Errorf("after Del: %+v", change)
	}
	watch.Close()
	if _, open := await.Next(watch.Changes()); open || watch.Err() != nil {
		t.Errorf("after Close: open %v, %v", open, watch.Err())
	}
}

func TestInvariant46ATakenOverClientGivesUp(t *testing.T) {
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{}))
	first := testsupport.Dial(t, through.Address(), transport.Options{ClientID: "twin"})
	second := testsupport.Dial(t, through.Address(), transport.Options{ClientID: "twin"})
	deadline := time.Now().Add(testsupport.Patience)
	for {
		_, err := first.Get(t.Context(), "k")
		if errors.Is(err, transport.ErrSessionTakenOver) && errors.Is(err, transport.ErrNotSent) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the first client: %v, want ErrSessionTakenOver", err)
		}
	}
	for range 20 {
		if _, err := second.Get(t.Context(), "k"); err != nil {
			t.Errorf("the second client: %v", err)
		}
	}
	if got := through.Accepted.Load(); got != 2 {
		t.Errorf("%d connections, want 2: the first client must not come back", got)
	}
}

func TestTheClientOutlivesAServerThatStopsAndStarts(t *testing.T) {
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{}))
	client := testsupport.Dial(t, through.Address(), transport.Options{})
	for range 3 {
		target := testsupport.Start(t, server.Options{})
		through.Target.Store(&target)
		through.Cut()
		if _, err := client.Get(t.Context(), "k"); errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent) {
			_, err = client.Get(t.Context(), "k") // the loss had not been noticed
			if err != nil {
				t.Error(err)
			}
		} else if err != nil {
			t.Error(err)
		}
	}
}

func TestDialSaysWhyItFailed(t *testing.T) {
	unused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := unused.Addr().String()
	_ = unused.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = transport.Dial(ctx, "mqtt://"+address, transport.Options{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("nothing listens: %v", err)
	}

	broker := testsupport.StartBroker(t, &testsupport.PasswordBroker{})
	_, err = transport.Dial(t.Context(), "mqtt://"+broker, transport.Options{Username: "u", Password: []byte("wrong")})
	var refused *transport.ConnectionError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "check the username") {
		t.Errorf("bad credentials: %v, want a ConnectionError at once", err)
	}
}

func TestTheErrorNamesABrokerWithoutAStore(t *testing.T) {
	client := testsupport.Dial(t, testsupport.StartBroker(t, &testsupport.PasswordBroker{Puback: 0x10}), transport.Options{Username: "u", Password: []byte("right")})
	if _, err := client.Get(t.Context(), "k"); !errors.Is(err, transport.ErrNoStore) || errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("Get: %v, want ErrNoStore", err)
	}
	client = testsupport.Dial(t, testsupport.StartBroker(t, &testsupport.PasswordBroker{Puback: 0x87}), transport.Options{Username: "u", Password: []byte("right")})
	var rejected *transport.RejectedError
	if _, err := client.Get(t.Context(), "k"); !errors.Is(err, transport.ErrNotAuthorized) || !errors.As(err, &rejected) {
		t.Errorf("Get: %v, want ErrNotAuthorized", err)
	}
}

func TestInvariant42ClosingAClientAtAnyMomentLeavesNothing(t *testing.T) {
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{}))
	for name, disturb := range map[string]func(){
		"connected":    func() {},
		"disconnected": through.Cut,
		"connecting":   func() { through.Refuse(true); through.Cut() },
		"deaf":         func() { through.Hold(testsupport.ToClient) },
	} {
		t.Run(name, func(t *testing.T) {
			testsupport.SettleGoroutines(t)
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
			defer cancel()
			client, err := transport.Dial(ctx, "mqtt://"+through.Address(), transport.Options{})
			if err != nil {
				t.Fatal(err)
			}
			watch, err := client.Watch("k")
			if err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			disturb()
			go func() {
				var err error
				for err == nil || !errors.Is(err, transport.ErrClosed) {
					_, err = client.Get(t.Context(), "k")
				}
				failed <- err
			}()
			if err := client.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if err := await.Receive(failed); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("a request: %v, want ErrClosed", err)
			}
			for range watch.Changes() {
			}
			if err := watch.Err(); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("the watch: %v, want ErrClosed", err)
			}
			if _, err := client.Watch("k"); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("Watch after Close: %v", err)
			}
			through.Release(testsupport.ToClient)
			through.Refuse(false)
			through.Cut()
			testsupport.MustEndGoroutines(t, before)
		})
	}
}
