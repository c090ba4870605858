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
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/bench/internal/peer"
)

// Options say what is measured.
type Options struct {
	// Subjects are what grows.
	Subjects []*Subject
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
type Result []Series

// pointPatience bounds the measurement of one size.
const pointPatience = 10 * time.Minute

// Run measures. host must have built the command tenure. A size that fails has no values, and the
// next sizes go on; only the end of ctx, and a server that does not start, end the run.
func Run(ctx context.Context, host *peer.Host, options Options) (result Result, err error) {
	for _, s := range options.Subjects {
		series := Series{Subject: s}
		sizes := s.sizes
		if options.Quick {
			sizes = s.quick
		}
		for _, size := range sizes {
			fmt.Fprintf(options.Progress, "%s: %s\n", s.Name, thousands(size))
			point, err := measurePoint(ctx, host, s, size, options.Quick)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", s.Name, thousands(size), err)
			}
			if point.Lacks != "" {
				fmt.Fprintf(options.Progress, "%s: %s: failed: %s\n", s.Name, thousands(size), point.Lacks)
			}
			series.Points = append(series.Points, point)
		}
		result = append(result, series)
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
func measurePoint(ctx context.Context, host *peer.Host, s *Subject, size int, quick bool) (Point, error) {
	ctx, cancel := context.WithTimeout(ctx, pointPatience)
	defer cancel()
	// The limits are above what so many connections need.
	server, err := host.Tenure(ctx, "tenure", "--memory", "--max-clients", fmt.Sprint(size+spareClients),
		"--max-unauthenticated", "1024", "--max-unauthenticated-per-address", "1024")
	if err != nil {
		return Point{}, err
	}
	defer server.Stop()
	argument, err := json.Marshal(order{s.Name, size, server.Address, server.Process, quick})
	if err != nil {
		return Point{}, err
	}
	clients, err := host.Child(ctx, childName, string(argument))
	if err != nil {
		if ctx.Err() != nil {
			return Point{}, context.Cause(ctx)
		}
		said := err.Error()
		return Point{Size: size, Lacks: said[strings.LastIndexByte(said, '\n')+1:]}, nil
	}
	defer clients.Stop()
	point := Point{Size: size}
	if err := json.Unmarshal([]byte(clients.Address), &point.Values); err != nil {
		return Point{}, fmt.Errorf("the process of the clients said %q: %w", clients.Address, err)
	}
	return point, nil
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
	if c.base, err = c.cost(); err != nil {
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
	return nil
}
