package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/bench/internal/peer"
)

// subject is a peer that is measured.
type subject struct {
	*peer.Peer
	server  *peer.Server
	lockers [2]peer.Locker // the second one waits for the first
	names   [maxInFlight]string
	renamed int // how often
}

// connect starts the server of a peer and its clients.
func connect(ctx context.Context, host *peer.Host, p *peer.Peer) (*subject, error) {
	ctx, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	server, err := p.Serve(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	s := &subject{Peer: p, server: server}
	s.rename()
	for i := range s.lockers {
		if s.lockers[i], err = p.Lock(ctx, server, fmt.Sprintf("client-%d", i)); err != nil {
			s.close()
			return nil, fmt.Errorf("%s: connect: %w", p.Name, err)
		}
	}
	return s, nil
}

func (s *subject) close() {
	for _, locker := range s.lockers {
		if locker != nil {
			locker.Close()
		}
	}
}

// maxInFlight is how many names there are.
const maxInFlight = 256

// rename gives each worker a name that was not used before. Names are made ahead: naming is not the
// work of a library.
func (s *subject) rename() {
	s.renamed++
	for i := range s.names {
		s.names[i] = fmt.Sprintf("press-%d-%03d/active", s.renamed, i)
	}
}

var value = []byte("sixteen bytes --")

// operate performs an operation as one of the workers, and returns how long it took.
type operate func(ctx context.Context, worker int) (time.Duration, error)

// workers performs an operation for each of times, from as many goroutines as may be in flight, and
// sets how long each took. It returns the first error, when all goroutines have ended.
func workers(ctx context.Context, inFlight int, times []time.Duration, operation operate) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var working sync.WaitGroup
	for worker := range min(inFlight, len(times)) {
		working.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(times)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				took, err := operation(ctx, worker)
				if err != nil {
					cancel(err)
					return
				}
				times[i] = took
			}
		})
	}
	working.Wait() // bounded: operations end with ctx
	return context.Cause(ctx)
}

// timed is an operation that is timed from its call to its return.
func timed(operation func(ctx context.Context, worker int) error) operate {
	return func(ctx context.Context, worker int) (time.Duration, error) {
		began := time.Now()
		err := operation(ctx, worker)
		return time.Since(began), err
	}
}

// pair obtains a name and releases it; each worker has its own.
func (s *subject) pair(ctx context.Context, worker int) error {
	held, err := s.lockers[0].TryObtain(ctx, s.names[worker])
	if err != nil {
		return err
	}
	return s.lockers[0].Release(ctx, held)
}

// holding is what workers hold.
type holding struct {
	*subject
	holders []holder
	waiting sync.WaitGroup // the goroutines that wait for a name
}

type holder struct {
	held peer.Held
	by   int // index in lockers
}

// prepare prepares an operation. For all but a pair each worker obtains a name, which end frees.
func (s *subject) prepare(ctx context.Context, operation peer.Operation, inFlight int) (
	do operate, end func(context.Context) error, err error,
) {
	h := &holding{subject: s}
	if operation == peer.Pair {
		return timed(s.pair), h.release, nil
	}
	for worker := range inFlight {
		held, err := s.lockers[0].TryObtain(ctx, s.names[worker])
		if err != nil {
			return nil, nil, errors.Join(err, h.release(ctx))
		}
		h.holders = append(h.holders, holder{held: held})
	}
	if operation == peer.HandOver {
		return h.handOver, h.release, nil
	}
	requests := make([]func(context.Context) error, inFlight)
	for worker, holder := range h.holders {
		if requests[worker], err = s.request(ctx, operation, worker, holder.held); err != nil {
			return nil, nil, errors.Join(err, h.release(ctx))
		}
	}
	return timed(func(ctx context.Context, worker int) error { return requests[worker](ctx) }), h.release, nil
}

// request returns a renewal or a guarded write.
func (s *subject) request(
	ctx context.Context, operation peer.Operation, worker int, held peer.Held,
) (func(context.Context) error, error) {
	if operation == peer.Renewal {
		return s.lockers[0].Renewal(ctx, held)
	}
	write, err := s.lockers[0].Writer(ctx, held, fmt.Sprintf("press-7/setpoint-%03d", worker))
	return func(ctx context.Context) error { return write(ctx, value) }, err
}

// release frees all names. The context of the operations has ended, so waiting ends too.
func (h *holding) release(ctx context.Context) error {
	h.waiting.Wait()
	var errs []error
	for _, holder := range h.holders {
		errs = append(errs, h.lockers[holder.by].Release(ctx, holder.held))
	}
	return errors.Join(errs...)
}

// A holder releases when the other client has waited for a random time in this range, so that no
// polling is in step with releases. It is more than 100 ms because etcd v3.6 looks only that often for
// watches that begin with an earlier revision, as the watches of its mutex do.
const settleMin, settleMax = 110 * time.Millisecond, 150 * time.Millisecond

// handOver lets the other client wait, releases, and returns the time from the call of the release
// until the other client has the name.
func (h *holding) handOver(ctx context.Context, worker int) (time.Duration, error) {
	current := &h.holders[worker]
	next := 1 - current.by
	type result struct {
		held peer.Held
		at   time.Time
		err  error
	}
	obtained := make(chan result, 1)
	h.waiting.Go(func() { // ends with ctx at the latest, which ends after the first error
		held, err := h.lockers[next].Obtain(ctx, h.names[worker])
		obtained <- result{held, time.Now(), err}
	})
	settled := time.NewTimer(settleMin + rand.N(settleMax-settleMin))
	defer settled.Stop()
	select {
	case early := <-obtained:
		if early.err == nil {
			early.err = errors.Join(errors.New("two clients have the same name"), h.lockers[next].Release(ctx, early.held))
		}
		return 0, early.err
	case <-settled.C:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	released := time.Now()
	if err := h.lockers[current.by].Release(ctx, current.held); err != nil {
		return 0, err
	}
	got := <-obtained // bounded by ctx
	if got.err != nil {
		return 0, got.err
	}
	*current = holder{held: got.held, by: next}
	return got.at.Sub(released), nil
}
