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

// Parallel calls do for each of n numbers, from as many goroutines as are said. It returns the first
// error, when all goroutines have ended.
func Parallel(ctx context.Context, n, workers int, do func(ctx context.Context, worker, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var working sync.WaitGroup
	for worker := range min(workers, n) {
		working.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := do(ctx, worker, int(i)); err != nil {
					cancel(err)
				}
			}
		})
	}
	working.Wait() // bounded: what is done ends with ctx
	return context.Cause(ctx)
}

// holding is what workers hold.
type holding struct {
	*subject
	holders []holder
	waiting sync.WaitGroup // the goroutines that wait for a name

	mu    sync.Mutex
	times []float64 // of hand-overs, in nanoseconds
}

type holder struct {
	held peer.Held
	by   int // index in lockers
}

// prepare prepares an operation of each worker. For all but a pair each obtains a name, which release frees.
func (h *holding) prepare(ctx context.Context, operation peer.Operation,
	inFlight int) (func(ctx context.Context, worker int) error, error) {
	first := h.lockers[0]
	if operation == peer.Pair {
		return func(ctx context.Context, worker int) error {
			held, err := first.TryObtain(ctx, h.names[worker])
			if err != nil {
				return err
			}
			return first.Release(ctx, held)
		}, nil
	}
	requests := make([]func(context.Context) error, inFlight)
	for worker := range inFlight {
		held, err := first.TryObtain(ctx, h.names[worker])
		if err != nil {
			return nil, err
		}
		h.holders = append(h.holders, holder{held: held})
		switch operation {
		case peer.Renewal:
			requests[worker], err = first.Renewal(ctx, held)
		case peer.Write:
			var write func(context.Context, []byte) error
			write, err = first.Writer(ctx, held, fmt.Sprintf("press-7/setpoint-%03d", worker))
			requests[worker] = func(ctx context.Context) error { return write(ctx, value) }
		default:
			requests[worker] = func(ctx context.Context) error { return h.handOver(ctx, worker) }
		}
		if err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, worker int) error { return requests[worker](ctx) }, nil
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
const quietMin, quietMax = 110 * time.Millisecond, 150 * time.Millisecond

// handOver lets the other client wait, releases, and notes the time from the call of the release
// until the other client has the name.
func (h *holding) handOver(ctx context.Context, worker int) error {
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
	steady := time.NewTimer(quietMin + rand.N(quietMax-quietMin))
	defer steady.Stop()
	select {
	case early := <-obtained:
		if early.err == nil {
			early.err = errors.Join(errors.New("two clients have the same name"), h.lockers[next].Release(ctx, early.held))
		}
		return early.err
	case <-steady.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	released := time.Now()
	if err := h.lockers[current.by].Release(ctx, current.held); err != nil {
		return err
	}
	got := <-obtained // bounded by ctx
	if got.err != nil {
		return got.err
	}
	*current = holder{held: got.held, by: next}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times = append(h.times, float64(got.at.Sub(released)))
	return nil
}
