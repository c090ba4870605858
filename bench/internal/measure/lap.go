package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tenurelock/tenure/bench/internal/peer"
)

// lap performs an operation for each of times, and sets how long it took.
type lap func(ctx context.Context, times []time.Duration) error

// subject is a peer that is measured.
type subject struct {
	*peer.Peer
	server  *peer.Server
	lockers [2]peer.Locker // nil for an echo; the second one waits for the first
	echo    peer.Echo
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
	if p.IsEcho() {
		s.echo, err = p.Echo(ctx, server)
	} else {
		for i := range s.lockers {
			if s.lockers[i], err = p.Lock(ctx, server, fmt.Sprintf("client-%d", i)); err != nil {
				break
			}
		}
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("%s: connect: %w", p.Name, err)
	}
	return s, nil
}

func (s *subject) close() {
	if s.echo != nil {
		s.echo.Close()
	}
	for _, locker := range s.lockers {
		if locker != nil {
			locker.Close()
		}
	}
}

// maxInFlight is how many names there are.
const maxInFlight = 256

// rename gives each worker a name that was not used before. Names and keys are made ahead: naming is
// not the work of a library.
func (s *subject) rename() {
	s.renamed++
	for i := range s.names {
		s.names[i] = fmt.Sprintf("press-%d-%03d/active", s.renamed, i)
	}
}

var (
	keys = func() (keys [maxInFlight]string) {
		for i := range keys {
			keys[i] = fmt.Sprintf("press-7/setpoint-%03d", i)
		}
		return keys
	}()
	value = []byte("sixteen bytes --")
)

// lap prepares an operation. end frees what it holds.
func (s *subject) lap(ctx context.Context, operation peer.Operation, inFlight int) (l lap, end func(context.Context) error, err error) {
	end = func(context.Context) error { return nil }
	switch {
	case s.IsEcho():
		exchanges := 1
		if operation == peer.Pair {
			exchanges = 2
		}
		return func(ctx context.Context, times []time.Duration) error {
			return s.echo.Lap(ctx, exchanges, inFlight, times)
		}, end, nil
	case operation == peer.Pair:
		return workers(inFlight, s.pair), end, nil
	}
	h, err := s.hold(ctx, inFlight)
	if err != nil {
		return nil, nil, err
	}
	switch operation {
	case peer.Renewal:
		l, err = h.renewals(ctx)
	case peer.Write:
		l, err = h.writes(ctx)
	case peer.HandOver:
		l = func(ctx context.Context, times []time.Duration) error {
			return peer.Workers(ctx, inFlight, times, h.handOver)
		}
	}
	return l, h.release, err
}

// workers makes a lap of an operation that is timed from its call to its return.
func workers(inFlight int, operation func(ctx context.Context, worker int) error) lap {
	return func(ctx context.Context, times []time.Duration) error {
		return peer.Workers(ctx, inFlight, times, func(ctx context.Context, worker int) (time.Duration, error) {
			began := time.Now()
			err := operation(ctx, worker)
			return time.Since(began), err
		})
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

// hold obtains a name for each worker.
func (s *subject) hold(ctx context.Context, inFlight int) (*holding, error) {
	h := &holding{subject: s}
	for worker := range inFlight {
		held, err := s.lockers[0].TryObtain(ctx, s.names[worker])
		if err != nil {
			return nil, errors.Join(err, h.release(ctx))
		}
		h.holders = append(h.holders, holder{held: held})
	}
	return h, nil
}

// release frees all names. The context of the lap has ended, so waiting ends too.
func (h *holding) release(ctx context.Context) error {
	h.waiting.Wait()
	var errs []error
	for _, holder := range h.holders {
		errs = append(errs, h.lockers[holder.by].Release(ctx, holder.held))
	}
	return errors.Join(errs...)
}

func (h *holding) renewals(ctx context.Context) (lap, error) {
	renew := make([]func(context.Context) error, len(h.holders))
	for i, holder := range h.holders {
		var err error
		if renew[i], err = h.lockers[0].Renewal(ctx, holder.held); err != nil {
			return nil, err
		}
	}
	return workers(len(renew), func(ctx context.Context, worker int) error { return renew[worker](ctx) }), nil
}

func (h *holding) writes(ctx context.Context) (lap, error) {
	write := make([]func(context.Context, []byte) error, len(h.holders))
	for i, holder := range h.holders {
		var err error
		if write[i], err = h.lockers[0].Writer(ctx, holder.held, keys[i]); err != nil {
			return nil, err
		}
	}
	return workers(len(write), func(ctx context.Context, worker int) error { return write[worker](ctx, value) }), nil
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
