// Package measure measures peers against each other in one run. Times on a shared machine differ
// from minute to minute by more than the peers do, so the peers take turns of a fraction of a second,
// and the figures are medians over rounds of turns.
package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/tenurelock/tenure/bench/internal/peer"
)

// Options say what is measured.
type Options struct {
	// Peers has the reference, peer.Reference, first.
	Peers []*peer.Peer
	// InFlight are the numbers of operations that are under way at once, 256 at most.
	InFlight []int
	// Rounds is how many turns each peer has for each operation and number in flight.
	Rounds int
	// Turn is how long a turn takes, more or less. A hand-over waits for most of its time, so a turn
	// of hand-overs takes HandOverTurn.
	Turn, HandOverTurn time.Duration
	// Progress gets a line for each round.
	Progress io.Writer
}

// turnPatience bounds a turn, with what must be prepared for it.
const turnPatience = 30 * time.Second

// group is what is compared: an operation with a number in flight.
type group struct {
	operation peer.Operation
	inFlight  int
	cells     []*cell // one for each peer; the first is the reference
}

// cell is a peer with an operation and a number in flight.
type cell struct {
	*subject
	operation  peer.Operation
	inFlight   int
	operations int    // of a turn
	turns      []turn // those that ended in time; none if the peer lacks the operation
	late       int    // how many did not
}

// turn is what one turn of a cell took.
type turn struct {
	time  float64 // of one operation, in nanoseconds
	ratio float64 // to the reference in the same round
	round int     // from 0
}

// Run starts the peers on host, and measures them. A wrong answer of a peer is an error.
func Run(ctx context.Context, host *peer.Host, options Options) (*Result, error) {
	var subjects []*subject
	defer func() {
		for _, s := range subjects {
			s.close()
		}
	}()
	for _, p := range options.Peers {
		s, err := connect(ctx, host, p)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	result := &Result{peers: options.Peers, inFlight: options.InFlight}
	for _, operation := range peer.Operations() {
		for _, inFlight := range options.InFlight {
			g := group{operation: operation, inFlight: inFlight}
			for _, s := range subjects {
				g.cells = append(g.cells, &cell{subject: s, operation: operation, inFlight: inFlight})
			}
			result.groups = append(result.groups, g)
		}
	}
	fmt.Fprintln(options.Progress, "warming up, and finding out how many operations are a turn")
	for _, g := range result.groups {
		for _, c := range g.cells {
			long := options.Turn
			if c.operation == peer.HandOver {
				long = options.HandOverTurn
			}
			if err := c.forgive(ctx, c.calibrate(ctx, long)); err != nil {
				return nil, err
			}
		}
	}
	for round := range options.Rounds {
		fmt.Fprintf(options.Progress, "round %d of %d\n", round+1, options.Rounds)
		for _, g := range result.groups {
			if err := g.round(ctx, round); err != nil {
				return nil, err
			}
		}
	}
	return result, nil
}

// round lets each peer have a turn. The first one is another in each round, because the turn before
// may leave something to do.
func (g group) round(ctx context.Context, number int) error {
	for i := range g.cells {
		c := g.cells[(i+number)%len(g.cells)]
		if c.lacks() != "" {
			continue
		}
		time, _, err := c.turn(ctx)
		if err := c.forgive(ctx, err); err != nil {
			return err
		}
		if err == nil {
			c.turns = append(c.turns, turn{time: time, round: number})
		}
	}
	for _, c := range g.cells {
		if last := len(c.turns) - 1; last >= 0 && c.turns[last].round == number {
			c.turns[last].ratio = c.turns[last].time / g.cells[0].turns[number].time
		}
	}
	return nil
}

// lacks says why the peer does not have the operation, if so.
func (c *cell) lacks() string { return c.Lacks[c.operation] }

// forgive takes note of a turn that did not end in time, so that the figures of the others are not
// lost. Other errors, and all errors of the reference, end the run.
func (c *cell) forgive(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || c.Name == peer.Reference || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	c.late++
	c.rename() // what the turn left must not be in the way of others
	return nil
}

// calibrate finds out how many operations take about so long, and warms up on the way.
func (c *cell) calibrate(ctx context.Context, long time.Duration) error {
	if c.lacks() != "" {
		return nil
	}
	for c.operations = c.inFlight; ; c.operations *= 2 {
		_, took, err := c.turn(ctx)
		if err != nil {
			c.operations = c.inFlight
			return err
		}
		if took >= long/2 {
			c.operations = max(c.inFlight, int(float64(c.operations)*float64(long)/float64(took)))
			return nil
		}
	}
}

// turn performs the operations of one turn, and returns the time of one and of all. It begins after a
// garbage collection, so that no peer pays for the garbage of another.
func (c *cell) turn(ctx context.Context) (one float64, all time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, %s, %d in flight: %w", c.Name, c.operation, c.inFlight, err)
		}
	}()
	h := &holding{subject: c.subject}
	do, err := h.prepare(ctx, c.operation, c.inFlight)
	if err != nil {
		return 0, 0, errors.Join(err, h.release(ctx))
	}
	runtime.GC()
	began := time.Now()
	err = Parallel(ctx, c.operations, c.inFlight,
		func(ctx context.Context, worker, _ int) error { return do(ctx, worker) })
	all = time.Since(began)
	if err := errors.Join(err, h.release(ctx)); err != nil {
		return 0, 0, err
	}
	if c.operation == peer.HandOver { // a turn waits for most of its time
		return median(h.times), all, nil
	}
	return float64(all) / float64(c.operations), all, nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}
