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

	"github.com/tenurelock/tenure/bench/internal/measure"
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

	about        string // in a sentence or two
	columns      []column
	sizes, quick []int
	run          func(ctx context.Context, c *client) ([]float64, error) // a value for each column
}

// column is what is measured at each size: seconds, unless it is bytes or a number.
type column struct {
	name  string
	units []string // each a thousand times the one before
	scale float64
}

// All returns the subjects, in the order of the document.
func All() []*Subject {
	return []*Subject{leases(), connections(), keys(), watchers(), load()}
}

// memoryOf and timeOf are the columns of the server and of the clients.
func memoryOf(item string) []column {
	bytes := column{"memory of a " + item + ": server", []string{"B", "kB", "MB"}, 1}
	return []column{bytes, {"clients", bytes.units, 1}}
}

func timeOf(what string) []column {
	return []column{seconds("processor time of " + what + ": server"), seconds("clients")}
}

func seconds(name string) column { return column{name, []string{"ns", "µs", "ms", "s"}, 1e9} }

func (c column) format(value float64) string {
	units := c.units
	for value *= c.scale; len(units) > 1 && value >= 1e3; units = units[1:] {
		value /= 1e3
	}
	return strings.TrimSpace(measure.Digits(value) + " " + units[0])
}

// pointPatience bounds the measurement of one size.
const pointPatience = 10 * time.Minute

// Run measures, and returns the figures as Markdown. host must have built the command tenure. A size that
// fails has no values, and the next sizes go on; only the end of ctx ends the run.
func Run(ctx context.Context, host *peer.Host, options Options) (tables *strings.Builder, err error) {
	tables = new(strings.Builder)
	for _, s := range options.Subjects {
		sizes, names, notes := s.sizes, "", ""
		if options.Quick {
			sizes = s.quick
		}
		for _, c := range s.columns {
			names += " " + c.name + " |"
		}
		fmt.Fprintf(tables, "### %s%s\n\n%s\n\n| %s |%s\n|--:|%s\n", strings.ToUpper(s.Name[:1]), s.Name[1:], s.about,
			s.Name, names, strings.Repeat("--:|", len(s.columns)))
		for _, size := range sizes {
			fmt.Fprintf(options.Progress, "%s: %d\n", s.Name, size)
			values, err := s.measure(ctx, host, size, options.Quick)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				said := err.Error()
				note := fmt.Sprintf("- n/a with %d: %s\n\n", size, said[strings.LastIndexByte(said, '\n')+1:])
				fmt.Fprintf(options.Progress, "%s: %s", s.Name, note)
				notes += note
			}
			fmt.Fprintf(tables, "| %d |", size)
			for i, c := range s.columns {
				cell := "n/a"
				if err == nil {
					cell = c.format(values[i])
				}
				fmt.Fprintf(tables, " %s |", cell)
			}
			tables.WriteString("\n")
		}
		tables.WriteString("\n" + notes)
	}
	return tables, nil
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

// measure measures one size, with a server and a process of clients of its own.
func (s *Subject) measure(ctx context.Context, host *peer.Host, size int, quick bool) (values []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, pointPatience)
	defer cancel()
	// The limits are above what so many connections need.
	server, err := host.Tenure(ctx, "tenure", "--memory", "--max-clients", fmt.Sprint(size+spareClients),
		"--max-unauthenticated", "1024", "--max-unauthenticated-per-address", "1024")
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	argument, err := json.Marshal(order{s.Name, size, server.Address, server.Process, quick})
	if err != nil {
		return nil, err
	}
	clients, err := host.Child(ctx, childName, string(argument))
	if err != nil {
		return nil, err
	}
	defer clients.Stop()
	if err := json.Unmarshal([]byte(clients.Address), &values); err != nil || len(values) != len(s.columns) {
		return nil, fmt.Errorf("the process of the clients said %q", clients.Address)
	}
	return values, nil
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
	if c.other, err = c.dial(ctx, "other"); err != nil {
		return err
	}
	if c.base, err = c.memory(); err != nil {
		return err
	}
	values, err := All()[i].run(ctx, c)
	if err != nil {
		return err
	}
	text, err := json.Marshal(values)
	said(string(text))
	return err
}
