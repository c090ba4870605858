package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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
	held   sync.Map
}

func (l *lock) TryObtain(_ context.Context, name string) (peer.Held, error) {
	if _, held := l.held.LoadOrStore(name, true); held && !l.broken {
		return nil, peer.ErrHeld
	}
	return name, nil
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
	l.held.Delete(held)
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
	return &cell{subject: s, operation: operation, inFlight: 2, operations: operations}
}

func TestATurnTimesItsOperationsFreesItsNamesAndEndsWithAWrongAnswer(t *testing.T) {
	for _, test := range []struct {
		operation peer.Operation
		broken    bool
		want      string // in the error
	}{
		{peer.Pair, false, ""},
		{peer.Renewal, false, ""},
		{peer.HandOver, false, ""},
		{peer.HandOver, true, "two clients have the same name"},
		{peer.Write, false, peer.ErrStale.Error()},
	} {
		l := &lock{broken: test.broken}
		one, all, err := cellOf(l, test.operation, 6).turn(bounded(t))
		if err == nil && (test.want != "" || one <= 0 || all <= 0) || err != nil && (test.want == "" || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s, broken %t: %v, %v, %v; want the error %q", test.operation, test.broken, one, all, err, test.want)
		}
		l.held.Range(func(name, _ any) bool {
			t.Errorf("%s: after the turn %v is held", test.operation, name)
			return true
		})
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
		c := cellOf(&lock{}, peer.Pair, 1)
		c.Name = test.name
		name := c.names[0]
		if err := c.forgive(test.ctx, test.err); (err == nil) != test.forgiven || (c.late == 1) != test.forgiven || (c.names[0] != name) != test.forgiven {
			t.Errorf("%v of %s: %v, %d turns were late, the name is %q", test.err, test.name, err, c.late, c.names[0])
		}
	}
}

func TestWorkersStopAtTheFirstError(t *testing.T) {
	failure := errors.New("a wrong answer")
	var calls atomic.Int64
	err := Parallel(bounded(t), 1000, 4, func(context.Context, int, int) error {
		if calls.Add(1) >= 10 {
			return failure
		}
		return nil
	})
	if !errors.Is(err, failure) || calls.Load() > 13 {
		t.Errorf("%d calls, and the error %v", calls.Load(), err)
	}
}

// NATS stands for all: it needs no program that is not in this executable.
func TestARunHasATableForEachOperation(t *testing.T) {
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
	nats := all[len(all)-2]
	nats.Lacks = map[peer.Operation]string{peer.HandOver: "it is not asked"}
	result, err := Run(bounded(t), host, Options{
		Peers: []*peer.Peer{nats}, InFlight: []int{1, 4}, Rounds: 2,
		Turn: time.Millisecond, HandOverTurn: time.Millisecond, Progress: io.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range result.groups {
		c := g.cells[0]
		c.turns = []turn{{time: 900}, {time: 45_900, ratio: 1}, {time: 1e6, ratio: 20.217}}
		if g.operation == peer.HandOver {
			c.turns = nil
		}
	}
	result.groups[0].cells[0].late = 1
	for _, want := range []string{
		"### Obtain and release\n\n| µs (ratio to tenure), in flight | 1 | 4 |\n|---|--:|--:|\n| NATS KV | 45.9 (1.00) | 45.9 (1.00) |\n\n" +
			"- NATS KV: with 1 in flight 1 turns did not end within 30s.\n\n",
		"| NATS KV | n/a | n/a |\n\n- n/a for NATS KV: it is not asked.\n\n### The peers\n",
	} {
		if !strings.Contains(result.String(), want) {
			t.Errorf("the tables lack\n%s\nin\n%s", want, result)
		}
	}
}
