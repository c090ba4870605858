// Package growth measures what a store and its clients cost as their number grows: leases, connections,
// keys, watchers of one key; and how long renewals take as the load grows.
//
// For each size there is a new server and a new process with all clients, so that nothing that an
// earlier size left behind is counted.
package growth

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/bench/internal/table"
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

// Subject is what grows: a table with a line for each size.
type Subject struct {
	// Name names what grows.
	Name string
	// About says in a sentence or two what is measured.
	About string
	// Columns are what is measured at each size.
	Columns []Column

	sizes, quick []int
	run          func(ctx context.Context, c *client) ([]float64, error)
}

// Column is what is measured at each size.
type Column struct {
	Name string
	// Format writes a value: bytes, seconds of processor time or of latency, or a number.
	Format func(float64) string
	// Letter stands for the value at the largest size in the formulas of docs/performance.md, if it does.
	Letter string
}

// Point is a size, and what was measured with it: a value for each column.
type Point struct {
	Size   int
	Values []float64
	// Lacks says why there are no values.
	Lacks string
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
			fmt.Fprintf(options.Progress, "%s: %s\n", s.Name, table.Thousands(size))
			point, others, err := measurePoint(ctx, host, s, size, options.Quick)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", s.Name, table.Thousands(size), err)
			}
			if point.Lacks != "" {
				fmt.Fprintf(options.Progress, "%s: %s: failed: %s\n", s.Name, table.Thousands(size), point.Lacks)
			}
			series.Points = append(series.Points, point)
			result.Others = max(result.Others, others)
		}
		result.Series = append(result.Series, series)
	}
	return result, nil
}

// childName is the process of the clients.
const childName = "growth"

// Children are what [peer.ServeChild] needs for Run.
var Children = map[string]peer.Child{childName: serve}

// order is what a process of clients is to measure.
type order struct {
	Subject string
	Size    int
	Address string
	Server  int // the id of its process
	Quick   bool
}

// measurePoint measures one size, with a server and a process of clients of its own.
func measurePoint(ctx context.Context, host *peer.Host, s *Subject, size int, quick bool) (Point, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, pointPatience)
	defer cancel()
	// The limits are above what so many connections need.
	arguments := []string{
		"--memory", "--max-clients", fmt.Sprint(size + spareClients),
		"--max-unauthenticated", "1024", "--max-unauthenticated-per-address", "1024",
	}
	server, err := host.Tenure(ctx, arguments...)
	if err != nil {
		return Point{}, 0, err
	}
	defer server.Stop()
	argument, err := json.Marshal(order{s.Name, size, server.Address, server.Processes[0], quick})
	if err != nil {
		return Point{}, 0, err
	}
	watch, err := measure.WatchOthers(ctx, []int{os.Getpid(), server.Processes[0]})
	if err != nil {
		return Point{}, 0, err
	}
	clients, err := host.Child(ctx, childName, string(argument))
	if err != nil {
		if ctx.Err() != nil {
			return Point{}, 0, context.Cause(ctx)
		}
		said := err.Error()
		return Point{Size: size, Lacks: said[strings.LastIndexByte(said, '\n')+1:]}, 0, nil
	}
	defer clients.Stop()
	point := Point{Size: size}
	if err := json.Unmarshal([]byte(clients.Address), &point.Values); err != nil {
		return Point{}, 0, fmt.Errorf("the process of the clients said %q: %w", clients.Address, err)
	}
	watch.Add(clients.Processes[0])
	others, err := watch.Share(ctx)
	return point, others, err
}

// spareClients is how many clients there are beside the items.
const spareClients = 16

// serve is the process of the clients: it measures, and says its values.
func serve(ctx context.Context, argument string, said func(string)) error {
	c := &client{}
	if err := json.Unmarshal([]byte(argument), &c.order); err != nil {
		return err
	}
	i := slices.IndexFunc(All(), func(s *Subject) bool { return s.Name == c.Subject })
	if i < 0 {
		return fmt.Errorf("there is no subject %q", c.Subject)
	}
	var err error
	if c.probe, err = c.dial(ctx, "probe"); err != nil {
		return err
	}
	if c.base, err = c.cost(ctx); err != nil {
		return err
	}
	values, err := All()[i].run(ctx, c)
	if err != nil {
		return err
	}
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	said(string(text))
	<-ctx.Done() // until then the processor time of this process can be asked for
	return nil
}
