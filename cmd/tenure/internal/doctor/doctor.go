// Package doctor finds out why a client cannot use a state store. It goes the way of a request, step by
// step: the connection to each broker, the credentials, the store and its identity, the round-trip times,
// the rights of the client, and the clocks. Each failure has its cure.
//
// It does no harm: its key is below a prefix of its own, expires within a minute, and is removed; with ReadOnly
// it sets none.
package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/transport"
)

// partingTime bounds the last requests, which are sent also when the context of Run has ended.
const partingTime = time.Second

// Options says what to examine.
type Options struct {
	// Address is the address of a broker, or several with commas between them, and Client how a
	// client connects.
	Address string
	Client  transport.Options
	// Timeout bounds each step. It must be positive.
	Timeout time.Duration
	// ReadOnly leaves out the steps that set or delete a key.
	ReadOnly bool
	// Prefix is before the doctor's key, without a slash at its end. It must not be empty.
	Prefix string
	// Named, if not nil, returns the error of an option with the name of its flag.
	Named func(error) error
	// Now is this machine's clock. Default time.Now.
	Now func() time.Time
	// OnStep, if not nil, gets each step as soon as it is done.
	OnStep func(Step)
}

// doctor is one examination.
type doctor struct {
	options Options
	report  Report
	key     string       // of the doctor's own
	behind  atomic.Int64 // how far the timestamps of the client are behind this machine's clock

	broker  string        // that is examined, as host:port
	network time.Duration // how long the network took for a round trip: a TCP connection
}

// Run examines the way to the store over each broker. It leaves a broker at the first step without which the others
// are impossible. It returns when all its connections are closed. When ctx ends, it first removes its key, for a
// second at most, and its steps from there on fail.
func Run(ctx context.Context, options Options) Report {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Named == nil {
		options.Named = func(err error) error { return err }
	}
	if options.Client.ClientID == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "tenure"
		}
		options.Client.ClientID = fmt.Sprintf("%s-doctor-%s", host, strings.ToLower(rand.Text()[:8]))
	}
	d := &doctor{options: options, key: options.Prefix + "/" + strings.ToLower(rand.Text())}
	d.options.Client.Logger = slog.New(slog.DiscardHandler) // the steps say it
	d.options.Client.RequestTimeout = options.Timeout
	d.options.Client.Now = func() time.Time { return options.Now().Add(-time.Duration(d.behind.Load())) }
	d.report.Address, d.report.ClientID = options.Address, options.Client.ClientID
	d.examine(ctx)
	return d.report
}

// add adds a step to the report, and reports whether the next ones are possible.
func (d *doctor) add(step Step) bool {
	step.Broker, step.Found, step.Cure = d.broker, oneLine(step.Found), oneLine(step.Cure)
	d.report.Steps = append(d.report.Steps, step)
	if d.options.OnStep != nil {
		d.options.OnStep(step)
	}
	return step.Status != Failed
}

// oneLine returns text without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// step returns a context for one step.
func (d *doctor) step(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.options.Timeout)
}

// examine goes from each address to the store.
func (d *doctor) examine(ctx context.Context) {
	servers, err := mqtt.ParseAddresses(d.options.Address)
	if err != nil {
		d.add(failed(Usage, "address", err.Error(), "correct --broker"))
		return
	}
	for _, server := range servers {
		if ctx.Err() != nil {
			return
		}
		d.broker = server.Host
		if client := d.connect(ctx, server); client != nil {
			d.examineStore(ctx, client)
			_ = client.Close() // before the next one: a client id has one connection at a time
		}
	}
}
