package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// ErrAnotherStore is what errors.Is finds in the error of Attached.Serve where somebody
// else answers requests on the broker already, or has begun to while this store was away.
// Two stores would grant the same lease twice.
var ErrAnotherStore = errors.New("another state store answers on this broker")

// AttachOptions configures an Attached. The zero value is right for a broker that asks
// for no credentials.
type AttachOptions struct {
	// User and Password are for the broker; empty: none.
	User     string
	Password []byte
	// TLS is for a broker with the scheme mqtts; nil: the system's authorities, and the
	// host name of the URL. Where CipherSuites is nil, TLS 1.2 is limited to suites with
	// ECDHE and AEAD.
	TLS *tls.Config

	// Store limits the store, and makes it strict, like Options.Store.
	Store statestore.Options
	// Dialect chooses how the store writes replies that differ between the published
	// protocol and what is deployed.
	Dialect statestore.Dialect
	// MaxPacketSize bounds each MQTT packet from the broker in bytes, and with it each key
	// and value; at least 1,024. The broker is told, and passes on no request that is
	// larger: its sender gets no answer. Default 1 MiB, like Options.MaxPacketSize.
	MaxPacketSize uint32
	// MaxClients bounds for how many clients the store remembers requests and watches.
	// For one more, it forgets those of another: of the one that was silent for longest among
	// those that were not heard of again after a minute. A client that was, and that sends something every
	// ten minutes, is never forgotten, whatever names other clients claim; at most three quarters of
	// MaxClients are such. Default 10,000.
	MaxClients int
	// ProbeMessages is how many messages the store sends to itself, once, before it answers
	// for the first time, to find out whether the broker loses requests when so many clients
	// send at once; Logger gets a warning if it does, or if that cannot be known. They have QoS 1 and
	// 256 bytes, and a topic below clients/ and the store's own client id; the probe ends after fifteen seconds
	// at the latest. Default 5,000, at most 60,000; a negative number means none.
	ProbeMessages int
	// Logger receives what happens; nil keeps silent.
	Logger *slog.Logger
}

// Attached is a state store without a broker of its own: it is a client of one. Its
// methods are safe for concurrent use.
type Attached struct {
	options          AttachOptions
	broker           brokerAddress
	instance         string
	logger           *slog.Logger
	engine           *engine.Engine
	roster           *roster
	unsent           *unsent
	drops, oversized *logs.Limiter
	ready            chan struct{}
	patience         time.Duration                        // objectionPatience, but for tests that know that nobody objects
	silence          func(keepAlive uint16) time.Duration // silencePatience, likewise
	memory           presenceMemory                       // of Serve's goroutine

	once           sync.Once
	readyOnce      sync.Once
	receiveMaximum uint16 // attachedReceiveMaximum, but for tests
	queueProbed    bool   // of the goroutine that connects
	begun          bool   // it has subscribed to requests; of the goroutine that connects
	connected      atomic.Bool

	mu    sync.Mutex
	stats AttachedStats // but Attached, Clients and LostNotifications
}

// AttachedStats counts what happened since the store was made.
type AttachedStats struct {
	// Attached is whether the store answers now.
	Attached bool
	// Attachments is how many times it began to: once, and after each loss of the
	// connection.
	Attachments uint64
	// Clients is how many clients the store remembers.
	Clients int
	// Requests is how many requests the store has answered, refusals and repetitions
	// included.
	Requests uint64
	// Dropped is how many were not given to the store, by reason.
	Dropped map[Dropped]uint64
	// DroppedWatches is how many watches ended because nobody read a notification.
	DroppedWatches uint64
	// LostNotifications is how many were not sent because too many waited for the
	// broker, and Oversized how many messages because they were larger than the broker
	// takes.
	LostNotifications, Oversized uint64
}

// Attach returns a store for an MQTT 5 broker at a URL: mqtt://host:1883, or
// mqtts://host:8883 for TLS. It is Serve that connects. The error says which option makes
// no sense.
//
// What the broker has to be told, and what such a store cannot know, is in docs/attach.md.
func Attach(broker string, options AttachOptions) (*Attached, error) {
	address, err := parseBroker(broker, options.TLS)
	if err != nil {
		return nil, fmt.Errorf("server: attach: %w", err)
	}
	if options.MaxClients < 0 {
		return nil, fmt.Errorf("server: attach: AttachOptions.MaxClients %d is negative; 0 means %d", options.MaxClients, defaultMaxClients)
	}
	if options.MaxClients == 0 {
		options.MaxClients = defaultMaxClients
	}
	if options.MaxPacketSize == 0 {
		options.MaxPacketSize = defaultMaxPacketSize
	}
	if options.MaxPacketSize < leastPacket {
		return nil, fmt.Errorf("server: attach: AttachOptions.MaxPacketSize %d is below %d; 0 means %d", options.MaxPacketSize, leastPacket, defaultMaxPacketSize)
	}
	if options.ProbeMessages > maxProbeMessages {
		return nil, fmt.Errorf("server: attach: AttachOptions.ProbeMessages %d is above %d; 0 means %d, and a negative number none", options.ProbeMessages, maxProbeMessages, defaultProbeMessages)
	}
	if options.ProbeMessages == 0 {
		options.ProbeMessages = defaultProbeMessages
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	limitWatches(&options.Store, defaultMaxAllWatchBytes)
	if options.Store.Identity == "" {
		options.Store.Identity = engine.NewIdentity() // it starts without what an earlier one knew
	}
	store, err := statestore.New(options.Store)
	if err != nil {
		return nil, fmt.Errorf("server: attach: %w", err)
	}
	if address.tls == nil && len(options.Password) > 0 {
		options.Logger.Warn("the connection is not encrypted, and shows the password to whoever listens: write mqtts", "broker", address.host)
	}
	instance := make([]byte, 8)
	_, _ = rand.Read(instance) // never fails, says its documentation
	a := &Attached{
		options:        options,
		broker:         address,
		instance:       hex.EncodeToString(instance),
		logger:         options.Logger,
		unsent:         newUnsent(),
		ready:          make(chan struct{}),
		drops:          logs.NewLimiter(options.Logger, slog.LevelWarn, "dropped a request"),
		oversized:      logs.NewLimiter(options.Logger, slog.LevelWarn, "a message is larger than the broker takes; not sent"),
		patience:       objectionPatience,
		silence:        silencePatience,
		receiveMaximum: attachedReceiveMaximum,
		stats:          AttachedStats{Dropped: make(map[Dropped]uint64)},
	}
	a.engine = engine.New(store, a.deliver)
	a.roster = newRoster(a.engine, options.MaxClients)
	return a, nil
}

// Ready returns a channel that is closed when the store answers for the first time.
func (a *Attached) Ready() <-chan struct{} { return a.ready }

// Usage returns what the store holds now. It is cheap to call.
func (a *Attached) Usage() statestore.Usage { return a.engine.Usage() }

// Stats returns the counts as they are now.
func (a *Attached) Stats() AttachedStats {
	a.mu.Lock()
	stats := a.stats
	stats.Dropped = maps.Clone(a.stats.Dropped)
	a.mu.Unlock()
	stats.Attached = a.connected.Load()
	stats.Clients = a.roster.size()
	stats.LostNotifications = a.unsent.overflow()
	return stats
}

func (a *Attached) count(change func(*AttachedStats)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.stats)
}

func (a *Attached) drop(client string, why Dropped) {
	a.count(func(stats *AttachedStats) { stats.Dropped[why]++ })
	a.drops.Log("client", logs.Name(client), "reason", string(why))
}

// deliver queues a notification. The engine calls it with its lock held.
func (a *Attached) deliver(notification statestore.Notification) {
	a.unsent.push(pendingNotification{Notification: notification, queued: a.roster.count.Add(1)})
}

const (
	reattachMin = 100 * time.Millisecond
	reattachMax = 5 * time.Second
	// settled is how long a connection must have lasted for the pauses to begin anew.
	settled = 10 * time.Second
)

// Serve connects to the broker and answers requests until ctx ends, then says so on the
// broker, disconnects and returns nil when nothing of the store is left. It connects
// again whenever the connection is lost, and goes on with the keys that it has.
//
// Another error means that it cannot go on: ErrAnotherStore, or a broker that refuses
// what the store needs. A store is served once.
func (a *Attached) Serve(ctx context.Context) error {
	err := errors.New("already served")
	a.once.Do(func() { err = a.serve(ctx) })
	if err != nil {
		return fmt.Errorf("server: attach: %w", err)
	}
	return nil
}

func (a *Attached) serve(ctx context.Context) error {
	expiry, stopExpiry := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { a.engine.Run(expiry) })
	defer func() {
		stopExpiry()
		tasks.Wait()
		a.drops.Close()
		a.oversized.Close()
	}()
	policy := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(reattachMin),
		backoff.WithMaxInterval(reattachMax),
		backoff.WithMaxElapsedTime(0), // never give up
	)
	for {
		began := time.Now()
		err := a.connect(ctx)
		var final finalError
		switch {
		case errors.As(err, &final):
			return final.error
		case ctx.Err() != nil:
			a.logger.Info("stopped")
			return nil
		}
		if time.Since(began) > settled {
			policy.Reset()
		}
		a.logger.Warn("not attached; will try again", "broker", a.broker.host, "error", err)
		pause := time.NewTimer(policy.NextBackOff())
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// finalError is one that trying again does not mend.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// attached notes that the store answers.
func (a *Attached) attached() {
	a.connected.Store(true)
	again := false
	a.count(func(stats *AttachedStats) {
		stats.Attachments++
		again = stats.Attachments > 1
	})
	if again { // whoever read the warnings should read this
		a.logger.Warn("attached again", "broker", a.broker.host)
	}
	a.readyOnce.Do(func() { close(a.ready) })
}
