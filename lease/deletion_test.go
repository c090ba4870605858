package lease_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestATenureWhoseKeyIsDeletedEndsAtOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		meet func(*testing.T, *transport.Client) // somebody meddles with the key
		want error
	}{
		{"deleted", func(t *testing.T, other *transport.Client) {
			if _, err := other.Del(t.Context(), name, transport.DelOptions{}); err != nil {
				t.Fatal(err)
			}
		}, lease.ErrDeleted},
		{"overwritten", func(t *testing.T, other *transport.Client) {
			if _, err := other.Set(t.Context(), name, []byte("other:1"), transport.SetOptions{}); err != nil {
				t.Fatal(err)
			}
		}, lease.ErrLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{})
				other, _ := store.Client(t, "other", transport.ClientOptions{})
				tenure := n.mustAcquire(t)
				time.Sleep(ttl / 10) // before the first renewal
				test.meet(t, other)
				synctest.Wait()
				if _, err := tenure.Token(); !errors.Is(err, test.want) {
					t.Errorf("Token: %v, want %v", err, test.want)
				}
				if err := tenure.Err(); !errors.Is(err, test.want) {
					t.Errorf("cause %v, want %v", err, test.want)
				}
			})
		})
	}
}

func TestADeletionWhileTheConnectionIsDownIsNoticedWhenItIsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		other, _ := store.Client(t, "other", transport.ClientOptions{})
		tenure := n.mustAcquire(t)
		time.Sleep(ttl / 20)
		synctest.Wait()
		n.conn.Cut()
		if _, err := other.Del(t.Context(), name, transport.DelOptions{}); err != nil {
			t.Fatal(err)
		}
		n.conn.Restore()
		synctest.Wait()
		if err := tenure.Err(); !errors.Is(err, lease.ErrDeleted) {
			t.Errorf("cause %v, want ErrDeleted", err)
		}
	})
}

func TestATenureWithoutAWatchSendsNothingButItsRenewals(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{NoWatch: true})
		watching, reading := n.scripted("KEYNOTIFY", harmless), 0
		n.mustAcquire(t)
		n.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if request.Timestamp == "" { // every SET has one
				reading++
			}
			return transporttest.Fault{}
		})
		time.Sleep(5 * ttl)
		if watching() > 0 || reading > 0 {
			t.Errorf("%d KEYNOTIFYs and %d other requests beside the renewals", watching(), reading)
		}
	})
}

func TestATenureOnAStoreThatGrantsNoWatchIsRenewedAllTheSame(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		store.Authorize(allButWatches)
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		time.Sleep(5 * ttl)
		mustToken(t, tenure)
	})
}

func TestInvariant26AForgedDeletionEndsNothingAndAFloodOfThemAsksTheStoreSeldom(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		options := lease.Options{RetryAfter: ttl / 40}
		n := newNode(t, store, "node-a", options)
		tenure := n.mustAcquire(t)
		synctest.Wait()
		questions := n.scripted("GET", harmless)
		const length = ttl / 2
		for began := time.Now(); time.Since(began) < length; time.Sleep(time.Millisecond) {
			n.conn.Forge(transport.Notification{
				Key:       name,
				Payload:   []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"),
				Timestamp: "1:0:StateStore",
			})
		}
		mustToken(t, tenure)
		if got, limit := questions(), int64(length/options.RetryAfter)+1; got == 0 || got > limit {
			t.Errorf("the store was asked %d times, want at least once and at most %d times", got, limit)
		}
	})
}
