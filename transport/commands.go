package transport

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/resp3"
)

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
}

// Binding says when and to which store a request may go, such as to the one that granted a tenure, so that a
// store that replaced it does not apply the request. The zero Binding ties it to none.
type Binding struct {
	// Store is the identity of the store, as [Client.Store] returns it. Another store
	// refuses the request with [ErrOtherStore]. Empty: the store has no identity, like
	// those deployed today.
	Store string
	// Connection, if not nil, is a channel from [Client.Lost] or [Client.Unbroken]: the
	// request leaves over that connection, before the channel is closed, or not at all
	// (ErrNotSent).
	Connection <-chan struct{}
	// While, if not nil, bounds the request beside the context of the call, such as the
	// TokenContext of a tenure: when it ends, the request is given up with its cause. Its
	// deadline and its values are not used.
	While context.Context
	// Until, if not zero, is when the request is given up at the latest.
	Until time.Time
	// Urgent makes the request leave before all waiting requests of its client that are not
	// urgent. Leases use it for their own requests. It is for few and small requests.
	Urgent bool
}

// DelOptions configures a Del or VDel.
type DelOptions struct {
	// FencingToken is needed for a protected key. Zero: no token.
	FencingToken hlc.Token
	// Binding ties the request to one store. Zero: any store may apply it.
	Binding Binding
	// Forced says that the request takes a lease from its holder on purpose, and why, or which
	// person asks for it: UTF-8 without control characters, 256 bytes at most. The log of a
	// Tenure store has it, with the client, its user and its address. Other stores ignore it.
	Forced string
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

func (e Entry) equal(other Entry) bool {
	return e.Exists == other.Exists && e.Version == other.Version && bytes.Equal(e.Value, other.Value)
}

// Set sets key to value and returns the new version, which is greater than every
// version that the store issued before. For an empty key the error matches
// ErrKeyLengthZero.
//
// If the store refuses the request because this node's clock is ahead, Set repeats it once,
// with a timestamp from the store's clock.
//
// If the Condition is not met, Set returns the present version of the key and an error that
// matches ErrConditionFailed. An error that matches ErrOutcomeUnknown means that the value
// may have been set, or may yet be.
func (c *Client) Set(ctx context.Context, key string, value []byte, options SetOptions) (hlc.Timestamp, error) {
	timestamp, early := c.tick()
	payload, wrong := encodeSet(key, value, &options)
	answer, err := c.do(ctx, protocol.VerbSet, key, cmp.Or(early, wrong), storeconn.Request{
		Payload:      payload,
		Timestamp:    timestamp,
		FencingToken: tokenText(options.FencingToken),
		Binding:      storeconn.Binding(options.Binding),
		Persist:      flag(options.Persist),
	})
	return answer.version, err
}

// Get reads a key. A missing key is not an error.
func (c *Client) Get(ctx context.Context, key string) (Entry, error) {
	return c.GetWith(ctx, key, Binding{})
}

// GetWith is Get with a Binding. The error matches ErrOtherStore if another
// store answers, and ErrNotSent if the connection of the binding is over.
func (c *Client) GetWith(ctx context.Context, key string, binding Binding) (Entry, error) {
	answer, err := c.do(ctx, protocol.VerbGet, key, nil, storeconn.Request{
		Payload: resp3.AppendCommand(nil, protocol.VerbGet, key),
		Binding: storeconn.Binding(binding),
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
	answer, err := c.do(ctx, verb, key, wrong, storeconn.Request{
		Payload:      payload,
		FencingToken: tokenText(options.FencingToken),
		Binding:      storeconn.Binding(options.Binding),
		Forced:       forced,
	})
	return err == nil && answer.verdict() == deleted, err
}

// keyNotify starts or stops the notifications about a key.
func (c *Client) keyNotify(ctx context.Context, key string, waits bool, options ...string) error {
	var wrong error
	if !protocol.CanNotify(c.ClientID(), key) { // other stores may take it
		wrong = ErrKeyTooLong
	}
	arguments := append([]string{protocol.VerbKeyNotify, key}, options...)
	request := storeconn.Request{Payload: resp3.AppendCommand(nil, arguments...), Waiting: flag(waits)}
	_, err := c.do(ctx, protocol.VerbKeyNotify, key, wrong, request)
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
func (c *Client) do(ctx context.Context, verb, key string, wrong error,
	request storeconn.Request) (answer answer, err error) {
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
		c.Dispatch(func() { c.trace.Request(ctx, info) })
	}
	if err != nil { // the names are joined for it alone, which allocates
		err = operror.New("transport: "+verb, key, err)
	}
	return answer, err
}

// request sends a request and reads the reply, by limit at the latest. If the store refuses the timestamp, it
// repeats the request once with another: the first changed nothing, and the second is a new request.
func (c *Client) request(ctx context.Context, request storeconn.Request, limit time.Time) (answer, error) {
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
func (c *Client) exchange(ctx context.Context, request *storeconn.Request) (answer, error) {
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

func (c *Client) read(reply storeconn.Reply) (answer, error) {
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

// flag returns the value of a user property that a request has or has not.
func flag(has bool) string {
	if has {
		return "true"
	}
	return ""
}

func tokenText(token hlc.Token) string {
	if token.IsZero() {
		return ""
	}
	return token.String()
}
