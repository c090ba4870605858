package attach

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/defaults"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/events"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// ErrAnotherStore is what errors.Is finds in the error of Store.Serve if another store
// answers requests on the broker already, or has begun to while this one was disconnected.
// Two stores would grant the same lease twice.
var ErrAnotherStore = errors.New("another state store answers on this broker")

// ErrStaleData is what errors.Is finds in the error of Store.Serve if another store, with other data,
// has answered requests on the broker since the data in Options.Journal was in use. It may have
// granted a lease that this store would grant again.
var ErrStaleData = errors.New("another state store has answered on this broker since the data of this one was in use")

// Options configures a Store. The zero value is right for a broker that asks for no
// credentials.
type Options struct {
	// Username and Password authenticate at the broker; empty sends none.
	Username string
	Password []byte
	// TLS is for a broker with the scheme mqtts or wss; nil: the system's authorities, and the
	// host name of the URL. Where CipherSuites is nil, TLS 1.2 is limited to suites with
	// ECDHE and AEAD.
	TLS *tls.Config
	// WebSocket is for a broker with the scheme ws or wss, like transport.Options.WebSocket: set it
	// to Upgrade of the module contrib/tenurews.
	WebSocket func(ctx context.Context, conn net.Conn, server *url.URL) (net.Conn, error)

	// Store limits the store, and makes it strict, like server.Options.Store.
	Store statestore.Options
	// MaxPacketSize bounds each MQTT packet from the broker in bytes, and with it each key and
	// value; at least 1,024. The store announces it, and the broker passes on no larger request:
	// its sender gets no answer. Default 1 MiB, like server.Options.MaxPacketSize.
	MaxPacketSize uint32
	// MaxClients bounds for how many clients the store remembers requests and watches. One more replaces
	// the one that has been silent for longest, but up to three quarters of them stay that were heard for more
	// than a minute: such a client gives way to another such one after ten minutes of silence. Default 10,000.
	MaxClients int
	// Journal keeps the data of the store, as server.Options.Journal does: a store that starts
	// again on its journal goes on with its keys, leases and fences, and its tenures go on. nil
	// keeps everything in memory. The program that opened the journal closes it, after Serve has
	// returned.
	//
	// If another store has answered on the broker since the data was in use, its leases and changes
	// are not there, and Serve ends with ErrStaleData: begin with an empty journal then, and a
	// Store.HoldOff.
	//
	// Requests that must wait for a commit have a bounded backlog, which the clients share. Half of it is for
	// small requests of clients that were heard for more than a minute. The store refuses what does not fit,
	// with the status 503: the error of a client matches transport.ErrServerBusy and
	// transport.ErrOutcomeUnknown. Leases try again by themselves.
	// Renewals need no commit, so they always fit.
	Journal statestore.Journal
	// Shared says that several processes share Journal, of which one at a time has it, as with
	// package cluster. Journal.Standing then says whether this process may answer. So the store
	// does not wait for another one with the same data that is silent, and takes its place at
	// once.
	Shared bool
	// Logger receives what happens; nil keeps silent.
	Logger *slog.Logger
}

// DropReason is why a request was not given to the store, as server.DropReason. Its text says it.
type DropReason = envelope.DropReason

// DroppedLongClient: the response topic names a client id of more than 256 bytes.
const DroppedLongClient DropReason = "the client id has more than 256 bytes"

// Store is a state store without a broker of its own: it is a client of one. Its methods are
// safe for concurrent use.
type Store struct {
	options          Options
	broker           *url.URL
	tls              *tls.Config // of the broker; nil: not encrypted
	instance         string      // its name on presenceTopic; it ends with data
	data             string      // names the data of a journal; empty without one
	engine           *engine.Engine
	clients          *clientLRU
	queue            *queue[pendingNotification]
	queuedBytes      atomic.Int64 // of them
	backlog          *backlog
	drops, oversized *loglimit.Lines
	seen             *events.Clients
	log              *events.Log
	ready            chan struct{}
	objectionWait    time.Duration                     // objectionTimeout, but for tests that know that no store objects
	silence          func(time.Duration) time.Duration // silenceTimeout, likewise
	memory           presenceMemory                    // of Serve's goroutine
	outage           loglimit.Limiter

	once sync.Once

	mu    sync.Mutex
	stats Stats // but Clients
}

// Stats counts what happened since the store was made.
type Stats struct {
	// Attached is whether the store answers now.
	Attached bool
	// Attachments is how many times it began to: once, and after each loss of the connection.
	Attachments uint64
	// Clients is how many clients the store remembers.
	Clients int
	// Requests is how many requests the store has answered, refusals and repetitions included.
	Requests uint64
	// Busy is how many requests the store did not take, because too much waited for Options.Journal.
	Busy uint64
	// Dropped is how many requests were not given to the store, by reason.
	Dropped map[DropReason]uint64
	// DroppedWatches is how many watches ended because no client had subscribed to their
	// notifications.
	DroppedWatches uint64
	// LostNotifications is how many notifications were not sent because too many waited for
	// the broker.
	LostNotifications uint64
	// Oversized is how many messages were not sent because they exceed what the broker takes.
	Oversized uint64
}

// OptionError says which field of [Options] makes no sense, and what would do.
type OptionError = optionerror.Error

func optionError(field string, value any, problem string) error {
	return &OptionError{Package: "attach", Field: field, Value: value, Problem: problem}
}

// New returns a store for an MQTT 5 broker at a URL, with the schemes of transport.Dial:
// mqtt://host:1883, mqtts://host:8883 for TLS, ws://host/path or wss://host/path with
// Options.WebSocket. It does not connect; Serve does. The error says which option makes no sense.
//
// docs/attach.md says what the broker has to be configured for, and what such a store cannot
// know.
func New(broker string, options Options) (*Store, error) {
	return Open(context.Background(), broker, options)
}

// Open is New with a context, which ends the loading of Options.Journal: that may take seconds for
// each million keys, and the log says how far it is. After Open, ctx has no effect. If Open
// returns an error, the journal cannot be used again, except for its Close.
func Open(ctx context.Context, broker string, options Options) (store *Store, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("attach: %w", err)
		}
	}()
	address, err := mqtt.ParseAddress(broker)
	if err != nil {
		return nil, err
	}
	if err := mqtt.CheckWebSocket(address, options.WebSocket != nil); err != nil {
		return nil, err
	}
	var config *tls.Config
	if mqtt.IsEncrypted(address) {
		if config, err = (mqtt.TLS{Config: options.TLS}).ClientConfig(address); err != nil {
			return nil, err
		}
	} else if options.TLS != nil {
		return nil, optionError("TLS", nil, fmt.Sprintf("is set, and %s does not encrypt: write mqtts or wss", address))
	}
	if options.MaxClients < 0 {
		return nil, optionError("MaxClients", options.MaxClients, fmt.Sprintf("is negative; 0 means %d", defaults.Clients))
	}
	options.MaxClients = cmp.Or(options.MaxClients, defaults.Clients)
	options.MaxPacketSize = cmp.Or(options.MaxPacketSize, defaults.PacketSize)
	if options.MaxPacketSize < leastPacket {
		return nil, optionError("MaxPacketSize", options.MaxPacketSize,
			fmt.Sprintf("is below %d; 0 means %d", leastPacket, defaults.PacketSize))
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	if options.Shared && options.Journal == nil {
		return nil, errors.New("Options.Shared needs a Journal that several processes share")
	}
	defaults.FillWatches(&options.Store, defaults.AllWatchBytes)
	if config == nil && len(options.Password) > 0 {
		options.Logger.Warn("the connection is not encrypted, so the network can read the password: write mqtts or wss",
			"broker", address.Host)
	}
	s := &Store{
		options:  options,
		broker:   address,
		tls:      config,
		instance: rand.Text(),
		queue:    newQueue[pendingNotification](),
		ready:    make(chan struct{}),
		drops:    loglimit.NewLines(options.Logger, slog.LevelWarn, "a request was not given to the store"),
		oversized: loglimit.NewLines(options.Logger, slog.LevelWarn,
			"a message is larger than the broker takes; not sent"),
		log:           events.NewLog(options.Logger),
		objectionWait: objectionTimeout,
		silence:       silenceTimeout,
		outage:        loglimit.Limiter{Min: outageRepeat, Max: outageRepeatMax},
		stats:         Stats{Dropped: make(map[DropReason]uint64)},
	}
	began := time.Now()
	if s.engine, err = engine.Open(ctx, options.Store, options.Journal, s.deliver); err != nil {
		return nil, err
	}
	if options.Journal != nil {
		options.Logger.Info("loaded the journal", "keys", s.engine.Usage().Keys, "took", time.Since(began))
		name := sha256.Sum256([]byte(s.engine.Identity()))
		s.data = fmt.Sprintf(".%x", name[:4])
		s.instance += s.data
	}
	s.seen = events.NewClients(s.engine.RestoredUntil())
	s.clients = newClientLRU(s.engine, options.MaxClients, s.seen)
	s.clients.restore(s.engine.RestoredClients())
	s.backlog = newBacklog(int64(options.MaxPacketSize), s.engine.Waiting)
	return s, nil
}

// Ready returns a channel that is closed when the store answers for the first time.
func (s *Store) Ready() <-chan struct{} { return s.ready }

// Identity returns the identity of the store's data: 32 hexadecimal digits, or Options.Store.Identity.
func (s *Store) Identity() string { return s.engine.Identity() }

// Usage returns what the store holds now. It is cheap to call.
func (s *Store) Usage() statestore.Usage { return s.engine.Usage() }

// State returns what the status page of the store shows. It takes milliseconds, and holds up requests for
// less than one. Values of leases, which may be secret, are a part of it.
func (s *Store) State() activity.State { return events.State(s.engine, s.seen) }

// Stats returns the counts as they are now.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	stats := s.stats
	stats.Dropped = maps.Clone(s.stats.Dropped)
	s.mu.Unlock()
	stats.Clients = s.clients.size()
	return stats
}

func (s *Store) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

func (s *Store) drop(client string, why DropReason) {
	s.count(func(stats *Stats) { stats.Dropped[why]++ })
	if seen, _ := s.clients.find(client); seen != nil {
		seen.Dropped()
	}
	s.drops.Log("client", logs.Name(client), "reason", string(why))
}

const (
	reattachMin = 100 * time.Millisecond
	reattachMax = 5 * time.Second
	// stableAfter is how long a connection must have lasted for the pauses to start short again.
	stableAfter = 10 * time.Second
	// outageRepeat and outageRepeatMax are how long an outage lasts before the log repeats why: first,
	// and at most. A store may try for days, ten times a minute.
	outageRepeat    = 30 * time.Second
	outageRepeatMax = 15 * time.Minute
)

// Serve connects to the broker and answers requests until ctx ends. Then it announces on the
// broker that the store is gone, disconnects, and returns nil when no goroutine of the store
// is left. It connects again whenever the connection is lost, and keeps the keys meanwhile.
//
// Another error means that it cannot go on: ErrAnotherStore; ErrStaleData; a broker that
// refuses what the store needs; or a journal that has failed. After a failure of the journal the
// store answers nothing; all that clients were told is in the journal. A store can be served once.
func (s *Store) Serve(ctx context.Context) error {
	err := errors.New("already served")
	s.once.Do(func() { err = s.serve(ctx) })
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

func (s *Store) serve(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	running, stop := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	var failure error // of the journal
	tasks.Go(func() {
		if failure = s.engine.Run(running); failure != nil {
			fail(failure)
		}
	})
	tasks.Go(func() { s.log.Follow(running, s.engine) })
	err := s.stayAttached(ctx)
	stop() // only now, so that what was applied until the end is committed
	tasks.Wait()
	s.drops.Close()
	s.oversized.Close()
	s.log.Close()
	return cmp.Or(failure, err)
}

// stayAttached connects to the broker again and again, until ctx ends or it cannot go on.
func (s *Store) stayAttached(ctx context.Context) error {
	policy := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(reattachMin),
		backoff.WithMaxInterval(reattachMax),
		backoff.WithMaxElapsedTime(0), // never give up
	)
	for {
		began := time.Now()
		err := s.connect(ctx)
		var final finalError
		switch {
		case errors.As(err, &final):
			return final.error
		case ctx.Err() != nil:
			return nil
		case err != nil:
			level := s.outage.Level(slog.LevelWarn, err.Error())
			s.options.Logger.Log(ctx, level, "not attached; will try again", "broker", s.broker.Host, "error", err)
		}
		if time.Since(began) > stableAfter {
			policy.Reset()
		}
		if !sleep.For(ctx, policy.NextBackOff()) {
			return nil
		}
	}
}

// finalError is an error that another attempt cannot mend.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// attached notes that the store answers.
func (s *Store) attached() {
	s.outage.Reset()
	s.count(func(stats *Stats) { stats.Attachments, stats.Attached = stats.Attachments+1, true })
	if closed.Is(s.ready) {
		s.options.Logger.Warn("attached again", "broker", s.broker.Host)
	} else {
		close(s.ready)
	}
}
