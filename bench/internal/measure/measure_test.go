package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) {
	peer.ServeChild(nil)
	os.Exit(testprocess.Run(m))
}

// lock is a Locker in memory. A broken one grants a name to all.
type lock struct {
	broken bool

	mu   sync.Mutex // guards held
	held map[string]bool
}

func newLock(broken bool) *lock { return &lock{broken: broken, held: make(map[string]bool)} }

func (l *lock) TryObtain(_ context.Context, name string) (peer.Held, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[name] && !l.broken {
		return nil, peer.ErrHeld
	}
	l.held[name] = true
	return &name, nil
}

func (l *lock) Obtain(ctx context.Context, name string) (peer.Held, error) {
	for ctx.Err() == nil {
		if held, err := l.TryObtain(ctx, name); err == nil {
			return held, nil
		}
		time.Sleep(time.Millisecond)
	}
	return nil, ctx.Err()
}

func (l *lock) Release(_ context.Context, held peer.Held) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, *held.(*string))
	return nil
}

func (l *lock) Renewal(context.Context, peer.Held) (func(context.Context) error, error) {
	return func(context.Context) error { return nil }, nil
}

func (l *lock) Writer(context.Context, peer.Held, string) (func(context.Context, []byte) error, error) {
	return func(context.Context, []byte) error { return peer.ErrStale }, nil
}

func (l *lock) Close() {}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

func cellOf(l *lock, operation peer.Operation, operations int) *cell {
	s := &subject{Peer: &peer.Peer{Name: "fake"}, server: &peer.Server{}, lockers: [2]peer.Locker{l, l}}
	s.rename()
	return &cell{subject: s, operation: operation, inFlight: 2, times: make([]time.Duration, operations)}
}

func TestATurnTimesItsOperationsAndFreesItsNames(t *testing.T) {
	for _, operation := range []peer.Operation{peer.Pair, peer.Renewal, peer.HandOver} {
		t.Run(string(operation), func(t *testing.T) {
			l := newLock(false)
			c := cellOf(l, operation, 6)
			got, _, err := c.turn(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			if got.time <= 0 || got.p50 <= 0 || got.p99 < got.p50 {
				t.Errorf("the turn is %+v", got)
			}
			if len(l.held) > 0 {
				t.Errorf("after the turn these names are held: %v", l.held)
			}
		})
	}
}

func TestAHandOverFindsTwoHoldersOfOneName(t *testing.T) {
	_, _, err := cellOf(newLock(true), peer.HandOver, 1).turn(bounded(t))
	if err == nil || !strings.Contains(err.Error(), "two clients") {
		t.Errorf("two clients have the same name, and the turn ends with %v", err)
	}
}

func TestARefusedWriteFailsTheTurn(t *testing.T) {
	if _, _, err := cellOf(newLock(false), peer.Write, 4).turn(bounded(t)); !errors.Is(err, peer.ErrStale) {
		t.Errorf("a write is refused, and the turn ends with %v", err)
	}
}

func TestOnlyATurnThatTakesTooLongIsForgiven(t *testing.T) {
	late := fmt.Errorf("obtain: %w", context.DeadlineExceeded)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name     string
		ctx      context.Context
		err      error
		forgiven bool
	}{
		{"fake", t.Context(), late, true},
		{"fake", t.Context(), peer.ErrStale, false},
		{peer.Reference, t.Context(), late, false},
		{"fake", ended, late, false},
	} {
		c := cellOf(newLock(false), peer.Pair, 1)
		c.Name = test.name
		name := c.names[0]
		if err := c.forgive(test.ctx, test.err); (err == nil) != test.forgiven || (c.late == 1) != test.forgiven || (c.names[0] != name) != test.forgiven {
			t.Errorf("%v of %s: %v, %d turns were late, the name is %q", test.err, test.name, err, c.late, c.names[0])
		}
	}
}

func TestWorkersStopAtTheFirstError(t *testing.T) {
	failure := errors.New("a wrong answer")
	var mu sync.Mutex
	calls := 0
	err := workers(bounded(t), 4, make([]time.Duration, 1000), func(context.Context, int) (time.Duration, error) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls >= 10 {
			return 0, failure
		}
		return 1, nil
	})
	if !errors.Is(err, failure) || calls > 13 {
		t.Errorf("%d calls, and the error %v", calls, err)
	}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{3: {9, 3, 1}, 2.5: {4, 1, 2, 3}, 7: {7}} {
		if got := median(values); got != want {
			t.Errorf("median of %v: %v, want %v", values, got, want)
		}
	}
}

// The raw echo stands for all: it needs no program that is not in this executable.
func TestARunHasARowForEachPeerOperationAndNumberInFlight(t *testing.T) {
	host, err := peer.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	all := peer.All()
	raw := all[len(all)-1]
	result, err := Run(bounded(t), host, Options{
		Peers: []*peer.Peer{raw}, InFlight: []int{1, 4}, Rounds: 2,
		Turn: time.Millisecond, HandOverTurn: time.Millisecond, Progress: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	figures, lacks := 0, 0
	for _, row := range result.Rows {
		switch {
		case row.Lacks != "":
			lacks++
		case row.Time > 0 && row.Ratio == 1:
			figures++
		default:
			t.Errorf("the row is %+v", row)
		}
	}
	if figures != 6 || lacks != 2 {
		t.Errorf("%d rows with figures and %d without, want 6 and 2", figures, lacks)
	}
}
