package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/url"
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

	// network is how long the network took for a round trip: a TCP connection of the broker that answers.
	network time.Duration
}

// Run examines the way to the store. It ends with the first step without which the others are
// impossible. It returns when all its connections are closed. When ctx ends, it first removes its key, for a
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
	step.Found, step.Cure = oneLine(step.Found), oneLine(step.Cure)
	d.report.Steps = append(d.report.Steps, step)
	if d.options.OnStep != nil {
		d.options.OnStep(step)
	}
	return step.Status != Failed
}

// at adds a step of one broker.
func (d *doctor) at(server *url.URL, step Step) bool {
	step.Broker = server.Host
	return d.add(step)
}

// oneLine returns text without line breaks.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// step returns a context for one step.
func (d *doctor) step(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.options.Timeout)
}

// examine goes from the address to the store.
func (d *doctor) examine(ctx context.Context) {
	servers, err := mqtt.ParseAddresses(d.options.Address)
	if err != nil {
		d.add(failed(Usage, "address", err.Error(), "correct --broker"))
		return
	}
	var client *transport.Client
	for _, server := range servers {
		if ctx.Err() != nil {
			break
		}
		connected := d.reach(ctx, server, client == nil)
		if client == nil {
			client = connected
		}
	}
	if client == nil {
		return
	}
	defer client.Close()
	d.examineStore(ctx, client)
}

// reach goes from a name to an accepted MQTT connection, which it returns if there is one; else nil. Of
// several brokers only the first that accepts the client gets a connection.
func (d *doctor) reach(ctx context.Context, server *url.URL, first bool) *transport.Client {
	if !d.resolve(ctx, server) || !d.dialTCP(ctx, server) || !d.handshake(ctx, server) {
		return nil
	}
	if !first {
		d.at(server, skipped("MQTT 5", "not tried: this client is connected to another broker, and a client id has one connection at a time"))
		return nil
	}
	return d.connect(ctx, server)
}
