package transport

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/storeconn"
)

// defaultRequestTimeout bounds a request whose context has no earlier deadline.
const defaultRequestTimeout = 10 * time.Second

// ClientOptions configures a Client. The zero value is ready to use.
type ClientOptions struct {
	// RequestTimeout bounds each request whose context ends later or never. Default:
	// 10 s.
	RequestTimeout time.Duration
	// Now is the wall clock below the client's hybrid logical clock. It may step. Tests
	// inject clocks that are wrong. Each goroutine that makes a request calls it, several at the same
	// time: it must not block. Default: time.Now.
	Now func() time.Time
	// Logger receives what no call can return, such as changes of the connection. Default:
	// no log, except that Dial logs to slog.Default that it cannot connect yet. The client waits for its
	// handler only in Close, and calls it with the functions of Trace, one at a time and in order.
	Logger *slog.Logger
	// Trace has functions that the client calls with each request that has ended and each change
	// of the connection. It must not be changed afterwards. Default: none.
	Trace *Trace

	program *dispatcher // nil but from Dial, whose Conn has it too
}

// Client speaks the state store protocol. It is safe for concurrent use. Close it when done.
type Client struct {
	conn    storeconn.Conn
	timeout time.Duration
	logger  *slog.Logger
	trace   Trace
	now     func() time.Time

	warnings loglimit.Limiter // by their texts

	life  context.Context // ends with Close
	end   context.CancelCauseFunc
	tasks sync.WaitGroup

	program     *dispatcher         // calls the functions of the program
	registering *semaphore.Weighted // for the registrations that make requests

	mu         sync.Mutex
	closed     bool
	status     ConnectionStatus
	connection int // the number of the connection; 0 while down
	watched    map[string]*registration
	eraBegan   time.Time     // when an answer last made all registrations look what there is to do
	eraDue     bool          // one will do so again
	lost       chan struct{} // closed when the present connection is over
	unbroken   chan struct{} // closed when lost is, and when no store took a request
	will       *Will         // the one in use; nil: none
	clock      clock
	store      string        // the identity of the store that answered last
	instance   string        // the name of its process; may be empty
	replaced   chan struct{} // closed when another store answers; nil before the first answer
	answered   time.Time     // when a store last answered
	storeless  bool          // the latest news of a store was ErrNoStore
	epoch      uint64        // changes when the store may have forgotten all watches
}

// NewClient returns a client that sends its requests over conn, such as one of package transporttest, and
// closes conn with Close. The error says which option makes no sense; conn is then still the caller's.
func NewClient(conn storeconn.Conn, options ClientOptions) (*Client, error) {
	options.RequestTimeout = cmp.Or(options.RequestTimeout, defaultRequestTimeout)
	if options.RequestTimeout < 0 {
		return nil, fmt.Errorf("transport: RequestTimeout %v is negative; 0 means %v", options.RequestTimeout,
			defaultRequestTimeout)
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	program := cmp.Or(options.program, new(dispatcher))
	// A client id may contain a colon. A node id may not: it separates the parts of a timestamp.
	node := strings.ReplaceAll(conn.ClientID(), ":", "_")
	clock, err := newClock(node)
	if err != nil {
		return nil, err
	}
	client := &Client{
		conn:        conn,
		clock:       clock,
		timeout:     options.RequestTimeout,
		logger:      program.logger(options.Logger),
		program:     program,
		registering: semaphore.NewWeighted(mostRegistering),
		trace:       *cmp.Or(options.Trace, &Trace{}),
		now:         options.Now,
		watched:     make(map[string]*registration),
		lost:        alreadyLost,
	}
	client.unbroken = client.lost
	client.life, client.end = context.WithCancelCause(context.Background())
	conn.Start(storeconn.Events{
		Up: client.up, Down: client.down, Ended: client.finish, Notify: client.notify,
		Trying: client.trying, Failed: client.connectFailed,
	})
	return client, nil
}

// ClientID returns the MQTT client id.
func (c *Client) ClientID() string { return c.conn.ClientID() }

// Close ends the connection, all watches and the tasks started with Go, and returns when
// all goroutines of the client have ended. Requests under way fail with ErrClosed. Close may
// be called more than once, but not from a task started with Go.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.finish(ErrClosed)
	err := c.conn.Close()
	c.tasks.Wait()
	c.program.close()
	return err
}

// Go runs task in a goroutine that belongs to the client: Close cancels its
// context, with ErrClosed as the cause, and waits for it. It reports false, and
// does not run the task, once the client is closed. Leases renew themselves in
// such tasks, so that closing the client leaves nothing behind.
func (c *Client) Go(task func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.tasks.Go(func() { task(c.life) })
	return true
}

// Probe sends a PINGREQ and, if nothing arrives within that time, ends the connection:
// requests under way then fail with ErrOutcomeUnknown, and the client connects again. Called
// when a request was not answered in time, it makes a half-open connection cost one request
// timeout rather than one to two keep-alives. The broker has at least 100 ms to answer.
//
// It returns at once. It does nothing while there is no connection, or while an earlier Probe
// is under way.
func (c *Client) Probe(within time.Duration) {
	c.conn.Probe(within)
}

// ConnectionStatus describes a client's connection at one moment.
type ConnectionStatus struct {
	// Connected: there is a connection. Ended: there is none, and there will be none. Otherwise the client
	// tries to connect, for the first time or again.
	Connected, Ended bool
	// Broker is the address of the present connection or of the latest attempt. Empty:
	// there was no attempt, or there is no broker.
	Broker string
	// Connections counts the connections so far. If it rises by more than one from one
	// status to the next, the client lost connections in between.
	Connections int
	// Err says why there is no connection: how it was lost, why the latest attempt
	// failed, or why there will be none. Nil while Connected.
	Err error
}

// Connection returns the present status of the connection. It does not block.
func (c *Client) Connection() ConnectionStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Lost returns a channel that is closed when the present connection is lost or replaced.
// While there is no connection, the channel is closed already.
func (c *Client) Lost() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// alreadyLost is the channel while there is no connection. It is closed.
var alreadyLost = make(chan struct{})

func init() { close(alreadyLost) }

func (c *Client) trying(broker string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Broker = broker
}

func (c *Client) connectFailed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changeLocked(false, err, c.trace.ConnectFailed)
}

func (c *Client) up() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status.Connections++
	c.connection = c.status.Connections
	c.lost = make(chan struct{})
	if !c.storeless {
		c.unbroken = make(chan struct{})
	}
	c.epoch++
	c.wakeAllLocked() // the pauses between two connections bound how often
	c.changeLocked(true, nil, c.trace.Connected)
}

func (c *Client) down(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breakLocked()
	if c.connection == 0 {
		return
	}
	c.connection = 0
	close(c.lost)
	if c.life.Err() != nil {
		cause = context.Cause(c.life)
	}
	c.changeLocked(false, cmp.Or(cause, errConnectionLost), c.trace.Lost)
}

// finish ends the client's life, and with it all watches. No connection and no request begins after it.
func (c *Client) finish(cause error) {
	c.end(cause)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changeLocked(false, context.Cause(c.life), nil)
	c.status.Ended = true
	for _, registered := range c.watched {
		registered.endAllLocked(context.Cause(c.life))
	}
}

// changeLocked notes the status of the connection, unless the client has ended, and traces it.
func (c *Client) changeLocked(connected bool, err error, trace func(ConnectionStatus)) {
	if !c.status.Ended {
		c.status.Connected, c.status.Err = connected, err
	}
	if trace != nil {
		status := c.status
		status.Err = err
		c.Dispatch(func() { trace(status) })
	}
}

// log writes a line to the client's log. A peer can cause each of them as often as it likes: a text that comes
// again and again is worth a warning with growing pauses, and otherwise has level Debug.
func (c *Client) log(level slog.Level, text string, args ...any) {
	if level > slog.LevelDebug {
		level = c.warnings.Level(level, text)
	}
	c.logger.Log(context.Background(), level, text, args...)
}
