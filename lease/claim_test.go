package lease

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// The options are those of the walks: a TTL of six ticks, and one for all else.
func TestWhatAnAttemptDoesAfterAnAnswer(t *testing.T) {
	refusal := &transport.RefusedError{Text: transport.ErrNotAuthorized.Error()}
	for _, test := range []struct {
		name    string
		before  claim
		now     time.Duration
		answer  answer
		want    claimDo
		err     error // of the action
		mayHold bool
	}{
		{"granted by the store that was asked", claim{}, 0, answer{known: true}, begin, nil, true},
		{"granted by a store that was not known", claim{}, 0, answer{}, ask, nil, true},
		{"granted, and another store answered since", claim{}, 0, answer{known: true, replaced: true}, ask, nil, true},
		{"granted so again", claim{granted: true}, 0, answer{known: true, replaced: true}, pause, errUnsteady, true},
		{"granted late, in time to renew", claim{}, 2 * tick, answer{known: true}, begin, nil, true},
		{"granted too late to renew", claim{}, 3 * tick, answer{known: true}, ask, nil, true},
		{"granted too late again", claim{granted: true}, 3 * tick, answer{known: true}, stop, errTooSlow, true},
		{"granted, without the connection of its Will", claim{willed: true}, 0, answer{known: true, lost: true}, stop, errReconnected, true},
		{"held by another", claim{}, 0, answer{err: transport.ErrConditionFailed}, stop, transport.ErrConditionFailed, false},
		{"held by what was freed since", claim{}, 0, answer{err: transport.ErrConditionFailed, freed: true}, ask, nil, false},
		{"not answered", claim{}, 0, answer{err: errTimeout}, pause, transport.ErrOutcomeUnknown, true},
		{"not answered, and then refused", claim{mayHold: true}, 0, answer{err: refusal}, stop, transport.ErrNotAuthorized, true},
		{"another store, which is known now", claim{}, 0, answer{err: transport.ErrOtherStore, other: true}, ask, nil, false},
		{"another store again", claim{moved: true}, 0, answer{err: transport.ErrOtherStore, other: true}, pause, transport.ErrOtherStore, false},
		{"the client is closed", claim{}, 0, answer{err: transport.ErrClosed}, stop, transport.ErrClosed, false},
	} {
		test.before.options, test.before.backoff, test.answer.random = &explored, explored.retryBackoff(0), zero
		after, next := test.before.next(test.now, test.answer)
		if next.do != test.want || !errors.Is(next.err, test.err) || after.mayHold != test.mayHold {
			t.Errorf("%s: %v with %v, mayHold %t; want %v with %v, %t", test.name, next.do, next.err, after.mayHold, test.want, test.err, test.mayHold)
		}
	}
}

func TestHowAValueIsFreed(t *testing.T) {
	for _, test := range []struct {
		name string
		now  time.Duration
		err  error // of the deletion
		lost bool  // with its connection
		want claimDo
		left error
	}{
		{"deleted", 0, nil, false, stop, nil},
		{"another value is there", 0, transport.ErrConditionFailed, false, stop, nil},
		{"another store answers", 0, transport.ErrOtherStore, false, stop, nil},
		{"not answered", 0, errTimeout, false, pause, transport.ErrOutcomeUnknown},
		{"not answered at the end", 6 * tick, errTimeout, false, stop, transport.ErrOutcomeUnknown},
		{"the client is closed", 0, transport.ErrClosed, false, stop, transport.ErrClosed},
		{"the client is closed, and so is its connection", 0, transport.ErrClosed, true, stop, transport.ErrClosed},
		{"deleted before the connection was lost", 0, nil, true, stop, nil},
		{"not answered, and the Will releases it", 0, errTimeout, true, stop, ErrConnectionLost},
	} {
		_, next := explored.newFreeing(0, explored.TTL).next(test.now, test.err, test.lost, zero)
		if next.do != test.want || !errors.Is(next.err, test.left) {
			t.Errorf("%s: %v with %v, want %v with %v", test.name, next.do, next.err, test.want, test.left)
		}
	}
}
