package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/bench/internal/table"
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

// Result is what was measured.
type Result struct {
	// Rows are the figures, in the order of operations, numbers in flight and peers.
	Rows []table.Row
	// Others is the share of the processors that other programs used, from 0 to 1.
	Others float64
}

// cell is a peer with an operation and a number in flight.
type cell struct {
	*subject
	operation peer.Operation
	inFlight  int
	times     []time.Duration // as many as there are operations in a turn
	turns     []turn          // those that ended in time
	late      int             // how many did not
}

// turn is what one turn of a cell cost, for each operation.
type turn struct {
	time, p50, p99 float64 // nanoseconds
	client, server float64 // nanoseconds of processor time; 0: not known
	allocations    float64
	ratio          float64 // of time to the reference in the same round
	round          int     // from 0
}

// Run starts the peers on host, and measures them. A wrong answer of a peer is an error.
func Run(ctx context.Context, host *peer.Host, options Options) (result Result, err error) {
	var subjects []*subject
	defer func() {
		for _, s := range subjects {
			s.close()
		}
	}()
	processes := []int{os.Getpid()}
	for _, p := range options.Peers {
		s, err := connect(ctx, host, p)
		if err != nil {
			return Result{}, err
		}
		subjects = append(subjects, s)
		processes = append(processes, s.server.Processes...)
	}
	groups := cells(subjects, options.InFlight)
	fmt.Fprintln(options.Progress, "warming up, and finding out how many operations are a turn")
	for _, group := range groups {
		for _, c := range group.cells {
			long := options.Turn
			if c.operation == peer.HandOver {
				long = options.HandOverTurn
			}
			if err := c.forgive(ctx, c.calibrate(ctx, long)); err != nil {
				return Result{}, err
			}
		}
	}
	watch, err := WatchOthers(ctx, processes)
	if err != nil {
		return Result{}, err
	}
	for round := range options.Rounds {
		fmt.Fprintf(options.Progress, "round %d of %d\n", round+1, options.Rounds)
		for _, group := range groups {
			if err := group.round(ctx, round); err != nil {
				return Result{}, err
			}
		}
	}
	if result.Others, err = watch.Share(ctx); err != nil {
		return Result{}, err
	}
	for _, group := range groups {
		for _, c := range group.cells {
			result.Rows = append(result.Rows, c.row())
		}
		for _, s := range subjects {
			if why, lacks := s.Lacks[group.operation]; lacks {
				result.Rows = append(result.Rows, table.Row{
					Peer: s.Name, Operation: string(group.operation), InFlight: group.inFlight, Lacks: why,
				})
			}
		}
	}
	return result, nil
}

// group is what is compared: an operation with a number in flight.
type group struct {
	operation peer.Operation
	inFlight  int
	cells     []*cell // the first is the reference; empty if all peers lack the operation
}

// cells returns the groups, without the operations that peers lack.
func cells(subjects []*subject, inFlights []int) (groups []group) {
	for _, operation := range peer.Operations() {
		for _, inFlight := range inFlights {
			g := group{operation: operation, inFlight: inFlight}
			for _, s := range subjects {
				if _, lacks := s.Lacks[operation]; !lacks {
					g.cells = append(g.cells, &cell{subject: s, operation: operation, inFlight: inFlight})
				}
			}
			groups = append(groups, g)
		}
	}
	return groups
}

// round lets each peer have a turn. The first one is another in each round, because the turn before
// may leave something to do.
func (g group) round(ctx context.Context, number int) error {
	for i := range g.cells {
		c := g.cells[(i+number)%len(g.cells)]
		t, _, err := c.turn(ctx)
		if err := c.forgive(ctx, err); err != nil {
			return err
		}
		if err == nil {
			t.round = number
			c.turns = append(c.turns, t)
		}
	}
	for _, c := range g.cells {
		if last := len(c.turns) - 1; last >= 0 && c.turns[last].round == number {
			c.turns[last].ratio = c.turns[last].time / g.cells[0].turns[number].time
		}
	}
	return nil
}

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
	for operations := c.inFlight; ; operations *= 2 {
		c.times = make([]time.Duration, operations)
		_, took, err := c.turn(ctx)
		if err != nil {
			c.times = c.times[:c.inFlight]
			return err
		}
		if took >= long/2 {
			wanted := int(float64(operations) * float64(long) / float64(took))
			c.times = make([]time.Duration, max(wanted, c.inFlight))
			return nil
		}
	}
}

// turn performs the operations of one turn. It begins after a garbage collection, so that no peer
// pays for the garbage of another.
func (c *cell) turn(ctx context.Context) (t turn, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, turnPatience)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s, %s, %d in flight: %w", c.Name, c.operation, c.inFlight, err)
		}
	}()
	do, end, err := c.prepare(ctx, c.operation, c.inFlight)
	if err != nil {
		return turn{}, 0, err
	}
	runtime.GC()
	before, beforeClient, beforeServer := allocations(), processors(os.Getpid()), processors(c.server.Processes...)
	began := time.Now()
	err = workers(ctx, c.inFlight, c.times, do)
	took = time.Since(began)
	server, client, allocated := processors(c.server.Processes...)-beforeServer, processors(os.Getpid())-beforeClient, allocations()-before
	if err := errors.Join(err, end(ctx)); err != nil {
		return turn{}, 0, err
	}
	operations := float64(len(c.times))
	slices.Sort(c.times)
	t = turn{
		time: float64(took) / operations,
		p50:  float64(c.times[len(c.times)/2]), p99: float64(c.times[len(c.times)*99/100]),
		client: float64(client) / operations, server: float64(server) / operations,
		allocations: float64(allocated) / operations,
	}
	if c.operation == peer.HandOver {
		t.time = t.p50 // a turn waits for most of its time
	}
	return t, took, nil
}

// allocations returns how many objects this process has allocated.
func allocations() uint64 {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return memory.Mallocs
}

// processors returns the processor time of processes together, or 0 if it is not known.
func processors(processes ...int) (sum time.Duration) {
	for _, process := range processes {
		used, _ := ProcessorTime(process)
		sum += used
	}
	return sum
}

// row returns the medians of the turns.
func (c *cell) row() table.Row {
	late := ""
	if c.late > 0 {
		late = fmt.Sprintf("with %d in flight %d of %d turns did not end within %v", c.inFlight, c.late, c.late+len(c.turns), turnPatience)
	}
	if len(c.turns) == 0 {
		return table.Row{Peer: c.Name, Operation: string(c.operation), InFlight: c.inFlight, Lacks: late}
	}
	middle := func(of func(turn) float64) float64 {
		var values []float64
		for _, t := range c.turns {
			values = append(values, of(t))
		}
		return median(values)
	}
	duration := func(of func(turn) float64) time.Duration { return time.Duration(middle(of)) }
	return table.Row{
		Peer: c.Name, Operation: string(c.operation), InFlight: c.inFlight, Note: late,
		Time:        duration(func(t turn) float64 { return t.time }),
		P50:         duration(func(t turn) float64 { return t.p50 }),
		P99:         duration(func(t turn) float64 { return t.p99 }),
		ClientTime:  duration(func(t turn) float64 { return t.client }),
		ServerTime:  duration(func(t turn) float64 { return t.server }),
		Allocations: middle(func(t turn) float64 { return t.allocations }),
		Ratio:       middle(func(t turn) float64 { return t.ratio }),
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}
