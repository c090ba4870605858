package transport

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/resp3"
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

// Client speaks the state store protocol over a [Conn]. It is safe for
// concurrent use. Close it when done.
type Client struct {
	conn    Conn
	timeout time.Duration
	logger  *slog.Logger
	trace   Trace
	now     func() time.Time

	warnings loglimit.Limiter // by their texts

	life  context.Context // ends with Close
	end   context.CancelCauseFunc
	tasks sync.WaitGroup

	program     *dispatcher         // calls the functions of the program
	registering *semaphore.Weighted // has registeringShares

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
	asking     bool          // a notification made the client ask which store answers
	skew       error         // what Skew returns
	answered   time.Time     // when a store last answered
	storeless  bool          // the latest news of a store was ErrNoStore
	era        uint64        // changes when the store may have forgotten all watches
}

// NewClient returns a client that sends its requests over conn and closes conn with Close.
// The error says which option makes no sense; conn is then still the caller's.
func NewClient(conn Conn, options ClientOptions) (*Client, error) {
	options.RequestTimeout = cmp.Or(options.RequestTimeout, defaultRequestTimeout)
	if options.RequestTimeout < 0 {
		return nil, fmt.Errorf("transport: RequestTimeout %v is negative; 0 means %v", options.RequestTimeout, defaultRequestTimeout)
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
		registering: semaphore.NewWeighted(registeringShares),
		trace:       *cmp.Or(options.Trace, &Trace{}),
		now:         options.Now,
		watched:     make(map[string]*registration),
		lost:        alreadyLost,
		status:      ConnectionStatus{State: Connecting},
	}
	if _, ours := conn.(*mqttConn); !ours {
		client.conn = boundedConn{conn}
	}
	client.unbroken = client.lost
	client.life, client.end = context.WithCancelCause(context.Background())
	conn.Start(Events{
		Up: client.up, Down: client.down, Ended: client.finish, Notify: client.notify,
		trying: client.trying, failed: client.connectFailed,
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
	c.tasks.Add(1)
	go func() {
		defer c.tasks.Done()
		task(c.life)
	}()
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

// ConnectionState says whether a client has a connection.
type ConnectionState string

const (
	// Connecting: there is no connection. The client tries to connect, for the first time
	// or again.
	Connecting ConnectionState = "connecting"
	// Connected: there is a connection.
	Connected ConnectionState = "connected"
	// Ended: there is no connection, and there will be none.
	Ended ConnectionState = "ended"
)

// ConnectionStatus describes a client's connection at one moment.
type ConnectionStatus struct {
	// State says whether there is a connection.
	State ConnectionState
	// Broker is the address of the present connection or of the latest attempt. Empty:
	// there was no attempt, or the Conn has no broker.
	Broker string
	// Connections counts the connections so far. If it rises by more than one from one
	// status to the next, the client lost connections in between.
	Connections int
	// Err says why there is no connection: how it was lost, why the latest attempt
	// failed, or why there will be none. Nil while Connected.
	Err error
}

// MarshalJSON returns the fields under their names, with the error as text. It implements [json.Marshaler].
func (s ConnectionStatus) MarshalJSON() ([]byte, error) {
	type fields ConnectionStatus
	return json.Marshal(struct {
		fields
		Err string
	}{fields(s), operror.Text(s.Err)})
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
	c.changeLocked(Connecting, err, c.trace.ConnectFailed)
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
	c.era++
	c.wakeAllLocked() // the pauses between two connections bound how often
	c.changeLocked(Connected, nil, c.trace.Connected)
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
	c.changeLocked(Connecting, cmp.Or(cause, errConnectionLost), c.trace.Lost)
}

// finish ends the client's life, and with it all watches. No connection and no request begins after it.
func (c *Client) finish(cause error) {
	c.end(cause)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changeLocked(Ended, context.Cause(c.life), nil)
	for _, registered := range c.watched {
		registered.endAllLocked(context.Cause(c.life))
	}
}

// changeLocked notes the status of the connection, unless the client has ended, and traces it.
func (c *Client) changeLocked(state ConnectionState, err error, trace func(ConnectionStatus)) {
	if c.status.State != Ended {
		c.status.State, c.status.Err = state, err
	}
	if trace != nil {
		status := c.status
		status.Err = err
		c.Dispatch(func() { trace(status) }, false)
	}
}

// Condition says when a Set applies. The store's rules have the same type.
type Condition = protocol.Condition

const (
	// Always sets the key whatever it holds.
	Always = protocol.Always
	// IfMissing (NX) sets the key only if it does not exist.
	IfMissing = protocol.IfMissing
	// IfMissingOrEqual (NEX) sets the key only if it does not exist or already
	// holds the value being set.
	IfMissingOrEqual = protocol.IfMissingOrEqual
)

// SetOptions configures a Set. The zero value sets the key unconditionally, without an
// expiry and without a fencing token.
type SetOptions struct {
	// Condition says when the Set applies. Default: Always.
	Condition Condition
	// TTL lets the key expire; whole milliseconds, at least one. Zero means that
	// it does not expire, and clears an earlier TTL.
	TTL time.Duration
	// FencingToken protects the key: from then on the store refuses writes to it without a
	// token or with an older one. Zero: no token.
	FencingToken hlc.Token
	// Binding ties the request to one store. Zero: any store may apply it.
	Binding Binding
	// Persist asks the store to keep the key on disk, so that it survives a restart of the
	// store. A store may ignore it: Azure IoT Operations keeps such keys if
	// persistence is configured there; ours treats all keys alike.
	Persist bool
	// Urgent makes the request leave before all waiting requests of this client that are
	// not urgent. Leases use it for their own requests. It is for few and small requests.
	Urgent bool
}

// DelOptions configures a Del or VDel.
type DelOptions struct {
	// FencingToken is needed for a protected key. Zero: no token.
	FencingToken hlc.Token
	// Binding ties the request to one store. Zero: any store may apply it.
	Binding Binding
	// Urgent makes the request leave early, like SetOptions.Urgent.
	Urgent bool
	// Forced says that the request takes a lease from its holder on purpose, and why, or which
	// person asks for it: UTF-8 without control characters, 256 bytes at most. The log of a
	// Tenure store has it, with the client, its user and its address. Other stores ignore it.
	Forced string
}

// GetOptions configures a GetWith.
type GetOptions struct {
	// Binding ties the request to one store. Zero: any store may answer.
	Binding Binding
	// Urgent makes the request leave early, like SetOptions.Urgent.
	Urgent bool
}

// Entry is the content of a key.
type Entry struct {
	// Exists is false for a missing key; the other fields are then zero.
	Exists bool
	// Value is a copy of its own.
	Value []byte
	// Version rises with every Set of the key. It is the zero Timestamp if the
	// store sent none.
	Version hlc.Timestamp
}

// Set sets key to value and returns the new version, which is greater than every
// version that the store issued before. For an empty key the error matches
// ErrKeyLengthZero.
//
// If the store refuses the request because this node's clock is ahead, Set repeats it once,
// with a timestamp from the store's clock: see [Client.Skew].
//
// If the Condition is not met, Set returns the present version of the key and an error that
// matches ErrConditionFailed. An error that matches ErrOutcomeUnknown means that the value
// may have been set, or may yet be.
func (c *Client) Set(ctx context.Context, key string, value []byte, options SetOptions) (hlc.Timestamp, error) {
	timestamp, early := c.tick()
	payload, wrong := encodeSet(key, value, &options)
	answer, err := c.do(ctx, protocol.VerbSet, key, cmp.Or(early, wrong), Request{
		Payload:      payload,
		Timestamp:    timestamp,
		FencingToken: tokenText(options.FencingToken),
		Binding:      options.Binding,
		Persist:      options.Persist,
		Urgent:       options.Urgent,
	})
	return answer.version, err
}

// Get reads a key. A missing key is not an error.
func (c *Client) Get(ctx context.Context, key string) (Entry, error) {
	return c.GetWith(ctx, key, GetOptions{})
}

// GetWith is Get with options. With a Binding the error matches ErrOtherStore if another
// store answers, and ErrNotSent if the connection of the binding is over.
func (c *Client) GetWith(ctx context.Context, key string, options GetOptions) (Entry, error) {
	answer, err := c.do(ctx, protocol.VerbGet, key, nil, Request{
		Payload: resp3.AppendCommand(nil, protocol.VerbGet, key),
		Binding: options.Binding,
		Urgent:  options.Urgent,
	})
	if err != nil || answer.verdict() == missing {
		return Entry{}, err
	}
	return Entry{Exists: true, Value: answer.value.Text, Version: answer.version}, nil
}

// Del deletes a key and reports whether it existed.
//
// Deleting a protected key deletes its protection too: a write with an old
// token is accepted afterwards. Set the key to an empty value to keep it.
func (c *Client) Del(ctx context.Context, key string, options DelOptions) (deleted bool, err error) {
	payload := resp3.AppendCommand(nil, protocol.VerbDel, key)
	return c.delete(ctx, protocol.VerbDel, key, payload, options)
}

// VDel deletes a key if it holds value, and reports whether it existed. If it holds another
// value, the error matches ErrConditionFailed.
func (c *Client) VDel(ctx context.Context, key string, value []byte, options DelOptions) (deleted bool, err error) {
	return c.delete(ctx, protocol.VerbVDel, key, encode(protocol.VerbVDel, key, value, 0), options)
}

func (c *Client) delete(ctx context.Context, verb, key string, payload []byte, options DelOptions) (bool, error) {
	var wrong error
	forced := options.Forced
	if strings.ContainsFunc(forced, unicode.IsControl) || !utf8.ValidString(forced) || len(forced) > protocol.MaxForced {
		wrong = fmt.Errorf("DelOptions.Forced must be UTF-8 without control characters, %d bytes at most",
			protocol.MaxForced)
	}
	answer, err := c.do(ctx, verb, key, wrong, Request{
		Payload:      payload,
		FencingToken: tokenText(options.FencingToken),
		Binding:      options.Binding,
		Urgent:       options.Urgent,
		Forced:       forced,
	})
	return err == nil && answer.verdict() == deleted, err
}

// keyNotify starts or stops the notifications about a key.
func (c *Client) keyNotify(ctx context.Context, key string, options ...string) error {
	var wrong error
	if !protocol.CanNotify(c.ClientID(), key) { // other stores may take it
		wrong = ErrKeyTooLong
	}
	arguments := append([]string{protocol.VerbKeyNotify, key}, options...)
	_, err := c.do(ctx, protocol.VerbKeyNotify, key, wrong, Request{Payload: resp3.AppendCommand(nil, arguments...)})
	return err
}

// A verdict is the kind of a reply, and the number in it.
type verdict struct {
	kind   resp3.Kind
	number int64
}

var (
	done    = verdict{kind: resp3.Simple} // +OK
	found   = verdict{kind: resp3.Bulk}
	missing = verdict{kind: resp3.Null}
	deleted = verdict{resp3.Integer, 1}
	nothing = verdict{resp3.Integer, 0}
	differs = verdict{resp3.Integer, -1} // the condition was not met
)

// verdicts are what a store answers to each verb, errors apart.
var verdicts = map[string][]verdict{
	protocol.VerbSet:  {done, differs},
	protocol.VerbGet:  {found, missing},
	protocol.VerbDel:  {deleted, nothing},
	protocol.VerbVDel: {deleted, nothing, differs},
	// ":0" answers a STOP for a key that was not watched and, at some stores, a repeated KEYNOTIFY.
	protocol.VerbKeyNotify: {done, nothing},
}

// do sends a request, unless something is wrong with it, and reads the reply. It traces the request. Its error has
// the verb and the key.
func (c *Client) do(ctx context.Context, verb, key string, wrong error, request Request) (answer answer, err error) {
	began := time.Now()
	if wrong != nil {
		err = notSent(wrong)
	} else {
		answer, err = c.request(ctx, request, began.Add(c.timeout))
	}
	switch {
	case err != nil:
	case !slices.Contains(verdicts[verb], answer.verdict()):
		err = unknown(fmt.Errorf("%w: %v", ErrBadReply, answer.value.Kind))
	case answer.verdict() == differs:
		err = ErrConditionFailed
	}
	if c.trace.Request != nil {
		info := RequestInfo{Verb: verb, Key: key, Began: began, Duration: time.Since(began), Err: err}
		c.Dispatch(func() { c.trace.Request(ctx, info) }, false)
	}
	if err != nil { // the names are joined for it alone, which allocates
		err = operror.New("transport: "+verb, key, err)
	}
	return answer, err
}

// request sends a request and reads the reply, by limit at the latest. If the store refuses the timestamp, it
// repeats the request once with another: the first changed nothing, and the second is a new request.
func (c *Client) request(ctx context.Context, request Request, limit time.Time) (answer, error) {
	if until := request.Binding.Until; !until.IsZero() && until.Before(limit) {
		limit = until
	}
	if deadline, ok := ctx.Deadline(); ok && !deadline.After(limit) {
		limit = time.Time{} // the context bounds it
	}
	request.Binding.Until = limit
	answer, err := c.exchange(ctx, &request)
	if err != nil && c.adapt(&request, answer.version, err) {
		var unusable error
		if request.Timestamp, unusable = c.tick(); unusable == nil {
			answer, err = c.exchange(ctx, &request)
		}
	}
	if err != nil {
		answer.version = hlc.Timestamp{} // a refusal has no version; this may be the store's clock
	}
	return answer, err
}

// exchange sends a request once and reads the reply.
func (c *Client) exchange(ctx context.Context, request *Request) (answer, error) {
	reply, err := c.conn.RoundTrip(ctx, *request)
	if err != nil {
		c.unanswered(err)
		return answer{}, err
	}
	answer, err := c.read(reply)
	if err != nil {
		err = c.explainSkew(request, answer.version, err)
	}
	return answer, err
}

func (c *Client) read(reply Reply) (answer, error) {
	value, err := resp3.DecodeValue(reply.Payload)
	if err != nil {
		// The request arrived, but nothing says what it did.
		return answer{}, unknown(fmt.Errorf("%w: %w", ErrBadReply, err))
	}
	c.answeredBy(reply.Store, reply.Instance)
	answer := answer{value: value}
	if reply.Timestamp != "" {
		answer.version, err = hlc.Parse(reply.Timestamp)
		if err != nil {
			return answer, unknown(fmt.Errorf("%w: version: %w", ErrBadReply, err))
		}
		c.observe(answer.version)
	}
	if value.Kind == resp3.Error {
		return answer, &RefusedError{Text: protocol.ErrorText(string(value.Text))}
	}
	return answer, nil
}

// answer is a decoded reply.
type answer struct {
	value   resp3.Value
	version hlc.Timestamp
}

func (a answer) verdict() verdict {
	if a.value.Kind == resp3.Simple && string(a.value.Text) != "OK" {
		return verdict{}
	}
	return verdict{a.value.Kind, a.value.Integer}
}

func encodeSet(key string, value []byte, options *SetOptions) ([]byte, error) {
	var condition []string
	switch options.Condition {
	case Always:
	case IfMissing:
		condition = []string{protocol.OptionNX}
	case IfMissingOrEqual:
		condition = []string{protocol.OptionNEX}
	default:
		return nil, fmt.Errorf("SetOptions.Condition %d does not exist", options.Condition)
	}
	if options.TTL < 0 || options.TTL%time.Millisecond != 0 {
		return nil, fmt.Errorf("SetOptions.TTL %v is not a whole number of milliseconds", options.TTL)
	}
	return encode(protocol.VerbSet, key, value, options.TTL, condition...), nil
}

// encode returns the payload of a request with a value, in one allocation. ttl 0: the value has no lifetime.
func encode(verb, key string, value []byte, ttl time.Duration, options ...string) []byte {
	const overhead = 100 // bytes at most, in addition to the key and the value
	arguments := 3 + len(options)
	if ttl > 0 {
		arguments += 2
	}
	payload := resp3.AppendArray(make([]byte, 0, overhead+len(key)+len(value)), arguments)
	payload = resp3.AppendBulk(resp3.AppendBulk(payload, verb), key)
	payload = resp3.AppendBulk(payload, value)
	for _, option := range options {
		payload = resp3.AppendBulk(payload, option)
	}
	if ttl > 0 {
		var digits [20]byte
		payload = resp3.AppendBulk(payload, protocol.OptionPX)
		payload = resp3.AppendBulk(payload, strconv.AppendInt(digits[:0], ttl.Milliseconds(), 10))
	}
	return payload
}

func tokenText(token hlc.Token) string {
	if token.IsZero() {
		return ""
	}
	return token.String()
}

// isRefusal reports whether the store or the broker refused the request, or would, so that a
// repetition would be refused too.
func isRefusal(err error) bool {
	var refused *RefusedError
	var rejected *RejectedError
	return (errors.As(err, &refused) || errors.As(err, &rejected) || errors.Is(err, ErrKeyTooLong)) && !errors.Is(err, ErrOutcomeUnknown)
}

// log writes a line to the client's log. A peer can cause each of them as often as it likes: a text that comes
// again and again is worth a warning with growing pauses, and otherwise has level Debug.
func (c *Client) log(level slog.Level, text string, args ...any) {
	if level > slog.LevelDebug {
		level = c.warnings.Level(level, text)
	}
	c.logger.Log(context.Background(), level, text, args...)
}

// Store returns the identity of the store that answered last, and a channel that is
// closed when another store answers. A store that starts without the data of an earlier one
// has a new identity, and the leases that the earlier one granted are void. Any other store
// refuses a request with a [Binding] to the identity.
//
// Stores deployed today have no identity: it is empty. Before the first answer identity is
// empty and replaced is nil.
func (c *Client) Store() (identity string, replaced <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.store, c.replaced
}

// answeredBy notes which store sent a reply. Another instance of it has the same data, and no
// watches.
func (c *Client) answeredBy(identity, instance string) {
	now := time.Now()
	c.mu.Lock()
	before, first, again := c.store, c.replaced == nil, c.storeless
	another := !first && before != identity
	restarted := !first && c.instance != instance
	c.answered, c.storeless, c.instance = now, false, instance
	if again && c.connection != 0 {
		c.unbroken = make(chan struct{})
	}
	if another {
		close(c.replaced)
	}
	if first || another {
		c.store, c.replaced = identity, make(chan struct{})
	}
	if another || restarted || again {
		c.newEraLocked(now) // this store may have no watches of ours
	}
	c.mu.Unlock()
	if another {
		c.log(slog.LevelWarn, "another store answers: the leases of the earlier one are void", "before", mqtt.Shown(before), "now", mqtt.Shown(identity))
	}
}

// newEraLocked has all watches registered again: at once, or leastRepeat after the latest time. Otherwise
// each reply of a store whose identity changes with each reply would cost a look at each watch.
func (c *Client) newEraLocked(now time.Time) {
	c.era++
	if c.eraDue || c.closed {
		return
	}
	c.eraDue = true
	wait := leastRepeat - now.Sub(c.eraBegan)
	c.tasks.Go(func() {
		sleep.For(c.life, wait)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.eraBegan, c.eraDue = time.Now(), false
		c.wakeAllLocked()
	})
}

func (c *Client) wakeAllLocked() {
	// In an order: a map has none, and a simulation would take a new course each time.
	for _, key := range slices.Sorted(maps.Keys(c.watched)) {
		c.watched[key].wakeLocked()
	}
}

// unanswered notes that no store is connected to the broker, if err says so. The next store
// that answers may have restarted in between, and forgotten all watches.
func (c *Client) unanswered(err error) {
	if !errors.Is(err, ErrNoStore) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storeless = true
	c.breakLocked()
}

// Unbroken returns a channel that is closed when the store may have been replaced by one
// without an identity: when the present connection is lost, as with [Client.Lost], or when
// a request met no store (ErrNoStore). It stays closed until there is a connection and a
// store answers over it.
func (c *Client) Unbroken() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unbroken
}

func (c *Client) breakLocked() {
	if !isClosed(c.unbroken) {
		close(c.unbroken)
	}
}

// suspectStore asks the store for its identity if a notification has another one than the
// latest reply. A notification alone proves nothing: it may be forged or late.
func (c *Client) suspectStore(notification Notification) {
	c.mu.Lock()
	ask := c.replaced != nil && notification.Store != c.store && notification.Store != "" && !c.asking
	c.asking = c.asking || ask
	c.mu.Unlock()
	if !ask {
		return
	}
	c.Go(func(ctx context.Context) {
		if _, err := c.Get(ctx, notification.Key); err != nil {
			c.logger.Debug("cannot ask the store for its identity", "error", err)
		}
		sleep.For(ctx, suspectEvery)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asking = false
	})
}

// suspectEvery bounds how often notifications can make the client ask.
const suspectEvery = time.Second
