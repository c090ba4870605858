// Package growth measures what a store and its clients cost as their number grows: leases, connections,
// keys, candidates for one lease and watchers of one key.
//
// For each size there is a new server, `tenure serve --memory`, and a new process with all clients, so
// that nothing that an earlier size left behind is counted.
package growth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/bench/internal/peer"
)

// Options say what is measured.
type Options struct {
	// Subjects are what grows.
	Subjects []*Subject
	// Largest leaves out sizes above it; 0 leaves out none.
	Largest int
	// Quick takes small sizes and short times: it shows that everything works.
	Quick bool
	// Progress gets a line now and then.
	Progress io.Writer
}

// Subject is what grows: a chart.
type Subject struct {
	// Name is the name of the chart and of its file, and Item is one of what grows.
	Name, Item string
	// About says in a sentence what is measured.
	About string
	// Metrics are what is measured at each size.
	Metrics []Metric

	sizes, quick []int
	need         func(size int) need
	run          func(ctx context.Context, c *client) error
}

// Kind says how a metric is compared between sizes.
type Kind int

const (
	// Total is of all items together; it is shown divided by their number, and what one more item costs
	// should not grow.
	Total Kind = iota
	// Each is of one operation, and should not grow.
	Each
)

// Unit is the unit of a metric.
type Unit int

// The units.
const (
	Bytes   Unit = iota
	Seconds      // of processor time, or of latency
)

// Metric is a column of a table and a line in a chart.
type Metric struct {
	// Panel is the title of the part of the chart that shows it, and Name the name of the line.
	Panel, Name string
	Unit        Unit
	Kind        Kind
	// Noise is a difference of totals, in bytes or seconds, that means nothing.
	Noise float64

	key string // in the values of a Point
}

// Point is a size, and what was measured with it.
type Point struct {
	Size   int
	Values map[string]float64 // by key of the metrics: bytes or seconds
	// Lacks says why there are no values.
	Lacks string
}

// Value returns what is shown of a metric: for a Total the share of one item. ok is false if the point
// has no value.
func (p Point) Value(m Metric) (value float64, ok bool) {
	value, ok = p.Values[m.key]
	if m.Kind == Total {
		value /= float64(p.Size)
	}
	return value, ok
}

// Series is a subject with its points.
type Series struct {
	*Subject
	Points []Point
}

// Result is what was measured.
type Result struct {
	Series []Series
	// Others is the largest share of the processors that other programs used while a size was measured,
	// from 0 to 1.
	Others float64
}

// pointPatience bounds the measurement of one size.
const pointPatience = 10 * time.Minute

// Sizes returns the sizes of the subject that the options ask for.
func (o Options) Sizes(s *Subject) []int {
	sizes := s.sizes
	if o.Quick {
		sizes = s.quick
	}
	return slices.DeleteFunc(slices.Clone(sizes), func(size int) bool { return o.Largest > 0 && size > o.Largest })
}

// Run measures. host must have built the command tenure. A size that fails has no values, and the
// next sizes go on; only the end of ctx, and a server that does not start, end the run.
func Run(ctx context.Context, host *peer.Host, options Options) (*Result, error) {
	result := &Result{}
	for _, s := range options.Subjects {
		series := Series{Subject: s}
		for _, size := range options.Sizes(s) {
			fmt.Fprintf(options.Progress, "%s: %s\n", s.Name, thousands(size))
			began := time.Now()
			point, others, err := measurePoint(ctx, host, s, size, options)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", s.Name, thousands(size), err)
			}
			if point.Lacks != "" {
				fmt.Fprintf(options.Progress, "%s: %s: failed: %s\n", s.Name, thousands(size), point.Lacks)
			}
			fmt.Fprintf(options.Progress, "%s: %s: took %v\n", s.Name, thousands(size), time.Since(began).Round(100*time.Millisecond))
			series.Points = append(series.Points, point)
			result.Others = max(result.Others, others)
		}
		result.Series = append(result.Series, series)
	}
	return result, nil
}

// measurePoint measures one size, with a server and a process of clients of its own.
func measurePoint(ctx context.Context, host *peer.Host, s *Subject, size int, options Options) (point Point, others float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pointPatience)
	defer cancel()
	server, err := host.Tenure(ctx, arguments(s.need(size).files)...)
	if err != nil {
		return Point{}, 0, err
	}
	defer server.Stop()
	order, err := json.Marshal(order{
		Subject: s.Name, Size: size, Address: server.Address, Server: server.Processes[0], Quick: options.Quick,
	})
	if err != nil {
		return Point{}, 0, err
	}
	command, input, err := peer.Command(ctx, childVariable+"="+string(order))
	if err != nil {
		return Point{}, 0, err
	}
	var answer, failure strings.Builder
	command.Stdout, command.Stderr = &answer, &failure
	if err := command.Start(); err != nil {
		return Point{}, 0, err
	}
	watch, watchErr := measure.WatchOthers(ctx, []int{os.Getpid(), server.Processes[0], command.Process.Pid})
	err = command.Wait() // bounded: ctx ends the process
	_ = input.Close()
	switch {
	case ctx.Err() != nil:
		return Point{}, 0, context.Cause(ctx)
	case err != nil:
		return Point{Size: size, Lacks: reason(failure.String(), err)}, 0, nil
	case watchErr != nil:
		return Point{}, 0, watchErr
	}
	point.Size = size
	var said reply
	if err := json.Unmarshal([]byte(answer.String()), &said); err != nil {
		return Point{}, 0, fmt.Errorf("the process of the clients said %q: %w", answer.String(), err)
	}
	point.Values = said.Values
	share, err := watch.Share(ctx)
	// The process of the clients is gone, and with it the clock of its processor time, so it says itself
	// what it used.
	return point, max(0, share-said.shareOf(watch.Elapsed())), err
}

// reason returns the last line that a process that failed has written.
func reason(output string, err error) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return err.Error()
}

// arguments lift the limits of the server above what so many connections need.
func arguments(connections int) []string {
	return []string{
		"--max-clients", fmt.Sprint(connections + spareClients),
		"--max-unauthenticated", "1024", "--max-unauthenticated-per-address", "1024",
	}
}

// spareClients is how many clients there are beside the items.
const spareClients = 16

// Check refuses what the machine cannot hold: open files, memory, ports. The error says for each size
// what is missing and what to do.
func (o Options) Check(have Machine) error {
	var errs []error
	sizes := 0
	for _, s := range o.Subjects {
		for _, size := range o.Sizes(s) {
			sizes++
			if err := have.holds(s.need(size)); err != nil {
				errs = append(errs, fmt.Errorf("%s %s: %w", thousands(size), s.Name, err))
			}
		}
	}
	if sizes == 0 {
		return errors.New("no size is left: choose a larger --largest")
	}
	if len(errs) > 0 {
		errs = append(errs, errors.New("give the machine more, or leave these sizes out with --largest"))
	}
	return errors.Join(errs...)
}
