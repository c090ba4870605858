package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant50AcquireOutlastsWhatCanPassWithoutAHotLoop(t *testing.T) {
	notSent := func(err error) error { return fmt.Errorf("%w: %w", transport.ErrNotSent, err) }
	unknown := func(err error) error { return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err) }
	connect := func(code byte) error { return &transport.ConnectionError{Code: code} }
	for _, test := range []struct {
		name     string
		obstacle error
		want     error
	}{
		{"not authorized", refusal(transport.ErrNotAuthorized), transport.ErrNotAuthorized},
		{"a quota", refusal(transport.ErrQuotaExceeded), transport.ErrQuotaExceeded},
		{"a clock", refusal(transport.ErrTimestampTooFarAhead), transport.ErrTimestampTooFarAhead},
		{"a key with a token", refusal(transport.ErrFencingTokenRequired), transport.ErrFencingTokenRequired},
		{"words that are not listed", &transport.RefusedError{Text: "the moon is full"}, nil},
		{"a rejection by the broker", &transport.RejectedError{Code: 0x87}, transport.ErrNotAuthorized},
		{"a rejection in front of the store", &transport.RejectedError{Code: 403}, nil},
		{"a quota of the broker", &transport.RejectedError{Code: 0x97}, transport.ErrQuotaExceeded},
		{"no store", notSent(transport.ErrNoStore), transport.ErrNoStore},
		{"a broker that is busy", notSent(connect(0x89)), transport.ErrServerBusy},
		{"a broker that refuses the credentials", notSent(connect(0x87)), transport.ErrNotAuthorized},
		{"a broker that ended a connection for a large packet", unknown(&transport.ConnectionError{Ended: true, Code: 0x95}), transport.ErrPacketTooLarge},
		{"an unknown outcome", unknown(errors.New("the reply is lost")), transport.ErrOutcomeUnknown},
	} {
		for _, options := range []lease.Options{{}, {AcquireDelay: acquireDelay}, {EndOnDisconnect: true}, {InstantFailover: true}} {
			t.Run(fmt.Sprintf("%s, %v %v %v", test.name, options.AcquireDelay, options.EndOnDisconnect, options.InstantFailover), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					var waiting waitingCauses
					options.OnWaiting = waiting.hear
					l, _, conn := newFailing(t, store, "node-a", options)
					conn.set(failing(test.obstacle))
					acquired := make(chan error, 1)
					go func() {
						_, err := l.Acquire(t.Context())
						acquired <- err
					}()
					const long = 30 * ttl
					time.Sleep(long)
					if asked := conn.count(); asked < 30 || asked > 240 { // a pause is TTL/6 on average, soon
						t.Errorf("%d requests in 30 TTL", asked)
					}
					select {
					case err := <-acquired:
						t.Fatalf("Acquire returned %v", err)
					default:
					}
					if causes := waiting.all(); len(causes) != 1 || test.want != nil && !errors.Is(causes[0], test.want) {
						t.Errorf("OnWaiting was told %v, want %v once", causes, test.want)
					}
					conn.set(nil)
					cured := time.Now()
					if err := await.Receive(acquired); err != nil {
						t.Errorf("Acquire: %v", err)
					}
					if took := time.Since(cured); took > ttl/2+2*acquireDelay+ttl/10 {
						t.Errorf("it acquired the lease %v after nothing stood in the way", took)
					}
				})
			})
		}
	}
}

func TestAcquireReturnsPermanentErrorsAtOnce(t *testing.T) {
	for _, test := range []struct {
		obstacle, want error
	}{
		{refusal(protocol.SyntaxError), protocol.SyntaxError},
		{refusal(protocol.UnknownCommand), protocol.UnknownCommand},
		{refusal(protocol.WrongNumberOfArguments), protocol.WrongNumberOfArguments},
		{refusal(transport.ErrKeyLengthZero), transport.ErrKeyLengthZero},
		{refusal(protocol.MissingTimestamp), protocol.MissingTimestamp},
		{refusal(protocol.MalformedTimestamp), protocol.MalformedTimestamp},
		{refusal(transport.ErrLockRule), transport.ErrLockRule},
		{&transport.RejectedError{Code: 0x95}, transport.ErrPacketTooLarge},
		{fmt.Errorf("%w: %w", transport.ErrNotSent, transport.ErrSessionTakenOver), transport.ErrSessionTakenOver},
		{fmt.Errorf("%w: %w", transport.ErrNotSent, transport.ErrClosed), transport.ErrClosed},
	} {
		for _, options := range []lease.Options{{}, {AcquireDelay: acquireDelay}} {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				l, _, conn := newFailing(t, store, "node-a", options)
				conn.set(failing(test.obstacle))
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				began := time.Now()
				if _, err := l.Acquire(ctx); !errors.Is(err, test.want) || time.Since(began) > 2*acquireDelay {
					t.Errorf("Acquire: %v after %v, want %v at once", err, time.Since(began), test.want)
				}
			})
		}
	}
}

func TestAnAcquireThatIsGivenUpNamesTheReasonAndTheHolder(t *testing.T) {
	tired := errors.New("tired of waiting")
	for _, test := range []struct {
		name     string
		held     bool
		obstacle error // met by a request later than the first
		at       time.Duration
		want     []error
		not      []error
		text     []string
	}{
		{"another has it", true, nil, 3 * ttl,
			[]error{lease.ErrHeld}, []error{transport.ErrOutcomeUnknown, transport.ErrNotAuthorized}, []string{`"node-a"`}},
		{"it is refused", false, refusal(transport.ErrNotAuthorized), 3 * ttl,
			[]error{transport.ErrNotAuthorized}, []error{lease.ErrHeld, transport.ErrOutcomeUnknown, transport.ErrNotSent}, []string{"not authorized"}},
		{"another had it, and it is refused", true, refusal(transport.ErrNotAuthorized), 3 * ttl,
			[]error{transport.ErrNotAuthorized, lease.ErrHeld}, []error{transport.ErrOutcomeUnknown}, []string{`"node-a"`, "not authorized"}},
		{"there is no connection", false, fmt.Errorf("%w: %w", transport.ErrNotSent, &transport.ConnectionError{Code: 0x86}), 3 * ttl,
			[]error{transport.ErrNotSent}, []error{lease.ErrHeld, transport.ErrOutcomeUnknown}, []string{"0x86"}},
		{"nothing answers", false, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.DeadlineExceeded), 3 * ttl,
			[]error{transport.ErrOutcomeUnknown}, []error{lease.ErrHeld, context.DeadlineExceeded, transport.ErrNotSent}, []string{"outcome unknown"}},
	} {
		for _, acquireDelay := range []time.Duration{0, acquireDelay} {
			t.Run(fmt.Sprintf("%s, acquire delay %v", test.name, acquireDelay), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					if test.held {
						newNode(t, store, "node-a", lease.Options{}).mustAcquire(t)
					}
					l, _, conn := newFailing(t, store, "node-b", lease.Options{AcquireDelay: acquireDelay})
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					failed := make(chan error, 1)
					if test.obstacle != nil && !test.held {
						conn.set(failing(test.obstacle))
					}
					go func() {
						_, err := l.Acquire(ctx)
						failed <- err
					}()
					time.Sleep(test.at)
					if test.obstacle != nil && test.held {
						conn.set(failing(test.obstacle))
						conn.Silence(true) // it must ask, when the holder seems to be dead
						time.Sleep(test.at)
					}
					cancel(tired)
					err := await.Receive(failed)
					for _, want := range append(test.want, tired) {
						if !errors.Is(err, want) && !(acquireDelay > 0 && want == transport.ErrOutcomeUnknown) { // a look leaves nothing behind
							t.Errorf("%v\ndoes not match %v", err, want)
						}
					}
					for _, not := range test.not {
						if errors.Is(err, not) {
							t.Errorf("%v\nmatches %v", err, not)
						}
					}
					for _, text := range test.text {
						if !strings.Contains(err.Error(), text) {
							t.Errorf("%v\ndoes not say %s", err, text)
						}
					}
					var held *lease.HeldError
					if errors.As(err, &held) != test.held || test.held && held.Holder.Name != "node-a" {
						t.Errorf("the holder is %+v", held)
					}
				})
			})
		}
	}
}

func TestOnWaitingGetsNilWhenOnlyTheHolderIsWaitedFor(t *testing.T) {
	for _, acquireDelay := range []time.Duration{0, acquireDelay} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			newNode(t, store, "node-a", lease.Options{}).mustAcquire(t)
			var waiting waitingCauses
			l, _, conn := newFailing(t, store, "node-b", lease.Options{OnWaiting: waiting.hear, AcquireDelay: acquireDelay})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = l.Acquire(ctx)
			}()
			time.Sleep(5 * ttl)
			if causes := waiting.all(); len(causes) > 0 {
				t.Errorf("while another has the lease: told %v", causes)
			}
			conn.Silence(true)
			for _, obstacle := range []error{refusal(transport.ErrNotAuthorized), refusal(transport.ErrQuotaExceeded), nil} {
				conn.set(nil)
				if obstacle != nil {
					conn.set(failing(obstacle))
				}
				time.Sleep(10 * ttl)
			}
			causes := waiting.all()
			if len(causes) != 3 || !errors.Is(causes[0], transport.ErrNotAuthorized) || !errors.Is(causes[1], transport.ErrQuotaExceeded) || causes[2] != nil {
				t.Errorf("told %v", causes)
			}
			cancel()
			await.Receive(ended)
		})
	}
}

func TestInvariant28AFloodOfNotificationsHastensNoTryOfAStoreThatRefuses(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		store.Authorize(func(_ string, verb statestore.Verb, _ string) bool { return verb != statestore.VerbSet })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = n.Acquire(ctx)
		}()
		time.Sleep(10 * ttl) // the backoff has grown
		tries := n.scripted("SET", harmless)
		for range 1000 {
			n.conn.Forge(transport.Notification{Key: name, Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"), Timestamp: "1:0:x"})
			time.Sleep(ttl / 100)
		}
		if got := tries(); got < 10 || got > 120 { // RenewEvery is a sixth of the TTL
			t.Errorf("%d tries in 10 TTL", got)
		}
		cancel()
		await.Receive(ended)
	})
}

func TestInvariant28AFloodOfForgedDeletionsMakesAWaiterTryOnceAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		tenure := newNode(t, store, "node-a", lease.Options{}).mustAcquire(t)
		n := newNode(t, store, "node-b", lease.Options{})
		acquired := acquireInBackground(t.Context(), t, n)
		time.Sleep(5 * ttl)
		tries := n.scripted("SET", harmless)
		for range 1000 {
			n.conn.Forge(transport.Notification{Key: name, Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"), Timestamp: "1:0:x"})
			synctest.Wait()
		}
		time.Sleep(ttl / 100)
		if got := tries(); got < 1 || got > 3 {
			t.Errorf("%d tries after a thousand forged deletions at once", got)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		await.Receive(acquired)
	})
}

func TestOnWaitingGetsAMissingConnectionForInstantFailover(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var waiting waitingCauses
		n := newNode(t, store, "node-a", lease.Options{InstantFailover: true, OnWaiting: waiting.hear})
		n.conn.Cut()
		acquired := acquireInBackground(t.Context(), t, n)
		time.Sleep(ttl)
		if causes := waiting.all(); len(causes) != 1 || !errors.Is(causes[0], transport.ErrNotSent) {
			t.Errorf("told %v, want ErrNotSent", causes)
		}
		n.conn.Restore()
		await.Receive(acquired)
	})
}

func TestAcquireStartsAgainEvenIfItCannotFreeItsEarlierAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{InstantFailover: true})
		store.Authorize(func(_ string, verb statestore.Verb, _ string) bool { return verb != statestore.VerbVDel })
		n.scripted("SET", func(number int64) transporttest.Fault { return transporttest.Fault{CutAfter: number == 1} })
		acquired := acquireInBackground(t.Context(), t, n)
		synctest.Wait()
		n.conn.Restore()
		began := time.Now()
		if tenure := await.Receive(acquired); tenure != nil {
			mustToken(t, tenure)
		}
		if took := time.Since(began); took > 2*ttl {
			t.Errorf("it took %v until what it had left was gone", took)
		}
	})
}

