package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestJSONLogsShowWords(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure, ended := n.mustAcquire(t), (*lease.Tenure)(nil)
		token := mustToken(t, tenure)
		if other, err := lease.New(n.client, "press-8", lease.Options{TTL: ttl}); err != nil {
			t.Fatal(err)
		} else if ended, err = other.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := ended.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		holder := lease.Holder{Held: true, Name: "node-a", Value: "node-a:1", Version: hlc.Timestamp{Wall: 7, Node: "s"}}
		for _, test := range []struct {
			value any
			want  string
		}{
			{tenure.String(), fmt.Sprintf(`"press-7/active, token %v, 1.8s remaining"`, token)},
			{ended.String(), `, ended: given up by its holder"`},
			{(*lease.Tenure)(nil).String(), `"<nil>"`},
			{&lease.HeldError{Holder: holder}, `"held by \"node-a\""`},
			{&lease.HeldError{}, `"not granted: `},
		} {
			var line bytes.Buffer
			slog.New(slog.NewJSONHandler(&line, nil)).Info("it", "value", test.value)
			if !strings.Contains(line.String(), test.want) {
				t.Errorf("%swant %s", line.String(), test.want)
			}
		}
	})
}

func TestAnErrorNamesTheLeaseOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n, other := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
		tenure := n.mustAcquire(t)
		_, held := other.TryAcquire(t.Context())
		store.Authorize(func(string, statestore.Verb, string) bool { return false })
		_, refused := other.TryAcquire(t.Context())
		_, unread := other.Holder(t.Context())
		var observed error
		for _, observed = range other.Observe(t.Context()) {
			break
		}
		released := tenure.Release(t.Context())
		_, token := tenure.Token()
		for _, err := range []error{held, refused, unread, observed, released, token, context.Cause(tenure.Context())} {
			if err == nil || strings.Count(err.Error(), name) != 1 {
				t.Errorf("%v\ndoes not name the lease once", err)
			}
		}
		if !errors.Is(refused, transport.ErrNotAuthorized) {
			t.Errorf("TryAcquire: %v, want ErrNotAuthorized", refused)
		}
		store.Authorize(nil)
		n.conn.Cut()
		for _, options := range []lease.Options{{}, {AcquireDelay: time.Second}, {InstantFailover: true}} {
			l, _, conn := newFailing(t, store, "node-c", options)
			conn.set(failing(&transport.RefusedError{Text: "not authorized"}))
			ctx, cancel := context.WithTimeout(t.Context(), ttl)
			_, err := l.Acquire(ctx)
			cancel()
			if err == nil || strings.Count(err.Error(), name) != 1 {
				t.Errorf("%v\ndoes not name the lease once", err)
			}
		}
	})
}

// A lock of the Go SDK of Azure IoT Operations is SET NEX PX and VDEL with the client id as the value,
// or with the client id, a colon and a session.
func TestALeaseAndALockOfAnotherSDKExcludeEachOther(t *testing.T) {
	for _, value := range []string{"sdk-client", "sdk-client:session"} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			sdk, _ := store.Client(t, "sdk-client", transport.ClientOptions{})
			lock := func() error {
				_, err := sdk.Set(t.Context(), name, []byte(value), transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: ttl})
				return err
			}
			n := newNode(t, store, "gateway-a", lease.Options{})
			if err := lock(); err != nil {
				t.Fatal(err)
			}
			_, err := n.TryAcquire(t.Context())
			if held := (*lease.HeldError)(nil); !errors.As(err, &held) || held.Holder.Name != "sdk-client" {
				t.Fatalf("while %q holds the lock: %v", value, err)
			}
			acquired := make(chan *lease.Tenure, 1)
			n.client.Go(func(ctx context.Context) {
				tenure, err := n.Acquire(ctx)
				if err != nil {
					t.Error(err)
				}
				acquired <- tenure
			})
			time.Sleep(ttl / 2)
			if err := lock(); err != nil { // it renews
				t.Fatal(err)
			}
			time.Sleep(ttl * 3 / 4)
			synctest.Wait()
			if len(acquired) > 0 {
				t.Fatalf("the lease was acquired while %q holds the lock", value)
			}
			if released, err := sdk.VDel(t.Context(), name, []byte(value), transport.DelOptions{}); !released || err != nil {
				t.Fatal(released, err)
			}
			began := time.Now()
			tenure := await.Receive(acquired)
			if took := time.Since(began); took > ttl/20 {
				t.Errorf("after %q released the lock the lease took %v", value, took)
			}
			if tenure == nil {
				return
			}
			if err := lock(); !errors.Is(err, transport.ErrConditionFailed) {
				t.Errorf("while a tenure holds the lease, %q got %v", value, err)
			}
			if err := tenure.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := lock(); err != nil {
				t.Errorf("after the release %q got %v", value, err)
			}
		})
	}
}
