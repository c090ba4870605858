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
	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant22TwoProcessesWithOneHolderNameExcludeEachOther(t *testing.T) {
	for _, instant := range []bool{false, true} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			a, b := twoNodes(t, store, lease.Options{Holder: "gateway:left", InstantFailover: instant}) // a colon is allowed
			tenure, lost := a.mustAcquire(t), b.client.Lost()
			for _, n := range []node{a, b} { // not even the same process twice
				_, err := n.TryAcquire(t.Context())
				var held *lease.HeldError
				if !errors.Is(err, lease.ErrHeld) || !errors.As(err, &held) || held.Holder.Name != "gateway:left" || held.Holder != n.LastHolder() {
					t.Errorf("a second tenure under the same name: %v, want a HeldError with the name", err)
				}
			}
			if b.LastHolder().Value != tenure.Value() || tenure.Name() != b.Name() || closed.Is(lost) {
				t.Errorf("%+v holds; the connection was replaced: %t", b.LastHolder(), closed.Is(lost))
			}
		})
	}
}

func TestInvariant25ADeadHolderIsSucceededWithinTTLAndJitterWithoutAnyNotification(t *testing.T) {
	for _, test := range []struct {
		name  string
		harm  func(node)
		limit time.Duration
	}{
		{"notifications arrive", func(node) {}, ttl + 10*time.Millisecond},
		{"every notification is lost", func(n node) { n.conn.Silence(true) }, ttl + ttl/10},
		{"no watch can be registered", func(n node) {
			n.scripted("KEYNOTIFY", always(transporttest.Fault{LoseRequest: true}))
		}, ttl + ttl/10},
	} {
		for _, delay := range []time.Duration{0, acquireDelay} {
			for _, lifetime := range []time.Duration{0, ttl / 2, 5*ttl + ttl/7, 20 * ttl} {
				t.Run(fmt.Sprint(test.name, delay, lifetime), func(t *testing.T) {
					inBubble(t, func(t *testing.T, store *transporttest.Store) {
						a := newNode(t, store, "node-a", lease.Options{})
						b := newNode(t, store, "node-b", lease.Options{AcquireDelay: delay})
						test.harm(b)
						a.mustAcquire(t)
						acquired := acquireInBackground(t.Context(), t, b)
						time.Sleep(lifetime)
						synctest.Wait()
						died := time.Now()
						a.conn.Cut()
						await.Receive(acquired)
						if waited := time.Since(died); waited > test.limit+delay {
							t.Errorf("the successor came %v after the death, want at most %v", waited, test.limit+delay)
						}
					})
				})
			}
		}
	}
}

func TestInvariant10AProcessThatStoodStillDuringItsAcquisitionAsksAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var stop skewed
		n := newNode(t, store, "node-a", lease.Options{Clock: stop.clock()})
		n.knowsStore(t)
		requests := n.scripted("SET", func(number int64) transporttest.Fault {
			if number == 1 {
				stop.jump(ttl) // between the sending and the reply, unseen by any timer
			}
			return transporttest.Fault{}
		})
		if left := n.mustAcquire(t).Remaining(); left != ttl-ttl/10 || requests() != 2 {
			t.Errorf("%v are left after %d requests, want 2", left, requests())
		}
	})
}

func TestInvariant28AFloodOfForgedDeletionsHastensNoTry(t *testing.T) {
	for _, test := range []struct {
		name        string
		refused     bool // by the store, for another reason than a holder
		every       time.Duration
		least, most int64
	}{
		{"a store that refuses, in ten TTL", true, ttl / 100, 10, 120}, // RenewEvery is a sixth of the TTL
		{"another holder, at once", false, 0, 1, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				holder, n := twoNodes(t, store, lease.Options{})
				holder.mustAcquire(t)
				if test.refused {
					store.Authorize(func(id string, verb statestore.Verb, _ string) bool {
						return id == "node-a" || verb != statestore.VerbSet
					})
				}
				go func() { _, _ = n.Acquire(t.Context()) }()
				time.Sleep(10 * ttl) // the backoff has grown
				tries := n.scripted("SET", harmless)
				for range 1000 {
					n.forgeDeletion()
					time.Sleep(test.every)
					synctest.Wait()
				}
				time.Sleep(ttl / 100)
				if got := tries(); got < test.least || got > test.most {
					t.Errorf("%d tries", got)
				}
			})
		})
	}
}

func TestInvariant50AcquireOutlastsWhatCanPassWithoutAHotLoop(t *testing.T) {
	notSent := func(err error) error { return fmt.Errorf("%w: %w", transport.ErrNotSent, err) }
	unknown := func(err error) error { return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err) }
	for _, test := range []struct{ obstacle, want error }{
		{refusal(transport.ErrNotAuthorized), transport.ErrNotAuthorized},
		{refusal(transport.ErrQuotaExceeded), transport.ErrQuotaExceeded},
		{refusal(transport.ErrTimestampTooFarAhead), transport.ErrTimestampTooFarAhead},
		{refusal(transport.ErrFencingTokenRequired), transport.ErrFencingTokenRequired},
		{&transport.RefusedError{Text: "words that are not listed"}, nil},
		{&transport.RejectedError{Code: 0x87}, transport.ErrNotAuthorized}, // by the broker
		{&transport.RejectedError{Code: 403}, nil},                         // in front of the store
		{notSent(transport.ErrNoStore), transport.ErrNoStore},
		{notSent(&transport.ConnectionError{Code: 0x89}), transport.ErrServerBusy},
		{unknown(&transport.ConnectionError{Ended: true, Code: 0x95}), transport.ErrPacketTooLarge},
		{unknown(errors.New("the reply is lost")), transport.ErrOutcomeUnknown},
	} {
		for _, options := range []lease.Options{{}, {AcquireDelay: acquireDelay}, {InstantFailover: true}} {
			t.Run(fmt.Sprint(test.obstacle, options.AcquireDelay, options.InstantFailover), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					var waiting waitingCauses
					options.OnWaiting = waiting.hear
					n, conn := newFailing(t, store, "node-a", options)
					conn.fail(test.obstacle)
					acquired := acquireInBackground(t.Context(), t, n)
					time.Sleep(30 * ttl)
					if asked := conn.count(); asked < 30 || asked > 240 { // a pause is TTL/6 on average, soon
						t.Errorf("%d requests in 30 TTL", asked)
					}
					if len(acquired) > 0 {
						t.Fatal("Acquire has returned")
					}
					if causes := waiting.all(); len(causes) != 1 || test.want != nil && !errors.Is(causes[0], test.want) {
						t.Errorf("OnWaiting was told %v, want %v once", causes, test.want)
					}
					conn.fail(nil)
					cured := time.Now()
					await.Receive(acquired)
					if took := time.Since(cured); took > ttl/2+2*acquireDelay+ttl/10 {
						t.Errorf("it acquired the lease %v after nothing stood in the way", took)
					}
				})
			})
		}
	}
}

// lateContext ends later than its deadline, as one may on a busy machine.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// What comes after the deadline of Acquire comes from the deadline. It does not say what was wrong.
func TestAcquireThatGaveUpSaysWhatWasWrongBeforeItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n, conn := newFailing(t, store, "node-a", lease.Options{})
		conn.fail(refusal(transport.ErrQuotaExceeded))
		ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
		defer cancel()
		time.AfterFunc(ttl, func() { conn.fail(fmt.Errorf("%w: %w", transport.ErrNotSent, context.DeadlineExceeded)) })
		if _, err := n.Acquire(lateContext{ctx, time.Now().Add(ttl)}); !errors.Is(err, transport.ErrQuotaExceeded) {
			t.Error(err)
		}
	})
}

func TestAcquireReturnsPermanentErrorsAtOnce(t *testing.T) {
	for _, want := range []error{
		protocol.SyntaxError, protocol.UnknownCommand, protocol.WrongNumberOfArguments, transport.ErrKeyLengthZero,
		protocol.MissingTimestamp, protocol.MalformedTimestamp, transport.ErrLockRule,
		transport.ErrPacketTooLarge, transport.ErrSessionTakenOver, transport.ErrClosed,
	} {
		obstacle := refusal(want)
		switch want {
		case transport.ErrPacketTooLarge:
			obstacle = &transport.RejectedError{Code: 0x95}
		case transport.ErrSessionTakenOver, transport.ErrClosed:
			obstacle = fmt.Errorf("%w: %w", transport.ErrNotSent, want)
		}
		for _, options := range []lease.Options{{}, {AcquireDelay: acquireDelay}} {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n, conn := newFailing(t, store, "node-a", options)
				conn.fail(obstacle)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				began := time.Now()
				if _, err := n.Acquire(ctx); !errors.Is(err, want) || time.Since(began) > 2*acquireDelay {
					t.Errorf("Acquire: %v after %v, want %v at once", err, time.Since(began), want)
				}
			})
		}
	}
}

func TestAnAcquireThatIsGivenUpNamesTheReasonAndTheHolder(t *testing.T) {
	tired := errors.New("tired of waiting")
	noConnection := fmt.Errorf("%w: %w", transport.ErrNotSent, &transport.ConnectionError{Code: 0x86})
	noAnswer := fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.DeadlineExceeded)
	for _, test := range []struct {
		name     string
		held     bool
		obstacle error // met by a request later than the first, if it is held
		want     []error
		text     []string
	}{
		{"another has it", true, nil, []error{lease.ErrHeld}, []string{`"node-a"`}},
		{"it is refused", false, refusal(transport.ErrNotAuthorized), []error{transport.ErrNotAuthorized}, []string{"not authorized"}},
		{"another had it, and it is refused", true, refusal(transport.ErrNotAuthorized),
			[]error{transport.ErrNotAuthorized, lease.ErrHeld}, []string{`"node-a"`, "not authorized"}},
		{"there is no connection", false, noConnection, []error{transport.ErrNotSent}, []string{"0x86"}},
		{"nothing answers", false, noAnswer, []error{transport.ErrOutcomeUnknown}, []string{"outcome unknown"}},
	} {
		for _, delay := range []time.Duration{0, acquireDelay} {
			t.Run(fmt.Sprint(test.name, delay), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					n, conn := newFailing(t, store, "node-b", lease.Options{AcquireDelay: delay})
					if test.held {
						newNode(t, store, "node-a", lease.Options{}).mustAcquire(t)
					} else {
						conn.fail(test.obstacle)
					}
					ctx, cancel := context.WithCancelCause(t.Context())
					failed := make(chan error, 1)
					go func() {
						_, err := n.Acquire(ctx)
						failed <- err
					}()
					time.Sleep(3 * ttl)
					conn.fail(test.obstacle)
					conn.Silence(true) // it must ask, when the holder seems to be dead
					if test.obstacle != nil {
						time.Sleep(3 * ttl)
					}
					cancel(tired)
					err := await.Receive(failed)
					for _, sentinel := range []error{
						tired, lease.ErrHeld, transport.ErrNotAuthorized, transport.ErrNotSent, transport.ErrOutcomeUnknown, context.DeadlineExceeded,
					} {
						wanted := sentinel == tired
						for _, want := range test.want {
							// A look leaves nothing behind.
							wanted = wanted || want == sentinel && !(delay > 0 && want == transport.ErrOutcomeUnknown)
						}
						if errors.Is(err, sentinel) != wanted {
							t.Errorf("%v\nmatches %v: %t", err, sentinel, !wanted)
						}
					}
					var refused *transport.RefusedError
					if errors.As(err, &refused) != errors.Is(err, transport.ErrNotAuthorized) {
						t.Errorf("%v\nhas the refusal %v", err, refused)
					}
					for _, text := range test.text {
						if !strings.Contains(err.Error(), text) {
							t.Errorf("%v\ndoes not say %s", err, text)
						}
					}
				})
			})
		}
	}
}
