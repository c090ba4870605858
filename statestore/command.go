package statestore

import (
	"math"
	"strconv"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
)

// Verb is what a command does.
type Verb uint8

// The verbs of the protocol. VerbUnknown is that of a request which could not
// be read.
const (
	VerbUnknown Verb = iota
	VerbSet
	VerbGet
	VerbDel
	VerbVDel
	VerbKeyNotify
)

// String returns the verb as it is sent.
func (v Verb) String() string {
	switch v {
	case VerbSet:
		return protocol.VerbSet
	case VerbGet:
		return protocol.VerbGet
	case VerbDel:
		return protocol.VerbDel
	case VerbVDel:
		return protocol.VerbVDel
	case VerbKeyNotify:
		return protocol.VerbKeyNotify
	default:
		return "unknown"
	}
}

// Condition says when a SET applies.
type Condition uint8

const (
	// Always applies whatever is stored.
	Always Condition = iota
	// IfMissing (NX) applies only to a key that does not exist.
	IfMissing
	// IfMissingOrEqual (NEX) applies to a key that does not exist or that
	// already holds the value being set. It is how a holder renews a lease.
	IfMissingOrEqual
)

// Request is a request as it arrived, before anything in it was believed.
type Request struct {
	// Client is the MQTT client id of the sender, as the connection it came
	// over proves it; never what the message says of itself.
	Client string
	// Payload is the RESP3 array. Parse does not modify it.
	Payload []byte
	// Correlation is the request's correlation data, by which a redelivery is
	// recognised. Nil: it cannot be delivered twice.
	Correlation []byte
	// Last says that the request is not delivered again, as a Will is not. It may repeat
	// another one, but is not remembered: it would take the place of one that can be
	// delivered again.
	Last bool
	// Timestamp and FencingToken are the user properties __ts and __ft. Nil
	// means absent, which is not the same as empty: an empty one is malformed.
	Timestamp, FencingToken *string
	// Store is the user property tenure-store: the identity of the only store that may
	// apply the request. Nil: any store may.
	Store *string
	// Expires is when the message expires, on Instant.Elapsed: one that is
	// applied then or later is not applied at all. Zero means never.
	Expires time.Duration
}

// Command is a request that was read, and possibly found wanting: a Command
// that could not be read carries its refusal, and [Store.Apply] answers with it.
type Command struct {
	Client    string
	Verb      Verb
	Key       string
	Value     []byte // aliases the request's payload
	Condition Condition
	// Lifetime is how long the key lives from when the SET is applied; zero
	// means until it is deleted.
	Lifetime time.Duration
	// Stop ends the watch that KEYNOTIFY would otherwise begin.
	Stop bool

	timestamp property[hlc.Timestamp]
	token     property[hlc.Token]
	store     *string // that may apply it; nil: any
	refusal   protocol.Refusal
	identity  identity
	last      bool
	expires   time.Duration // on Instant.Elapsed; zero: never
}

// property is a user property that should hold a timestamp or a token. Malformed text
// is refused only after authorization (docs/protocol.md §4.4), so Parse notes it.
type property[T hlc.Timestamp | hlc.Token] struct {
	value              T // zero if absent or malformed
	present, malformed bool
}

// Parse reads a request. It does every check that needs neither the store nor a
// clock, in the order that the protocol gives: well-formed, verb, argument
// count, key length, options. It never fails: what is wrong is in the Command.
// It needs no lock and allocates in proportion to the payload.
func Parse(request Request) Command {
	command := Command{
		Client:    request.Client,
		timestamp: parseProperty(request.Timestamp, hlc.Parse),
		token:     parseProperty(request.FencingToken, hlc.ParseToken),
		store:     request.Store,
		identity:  identify(request),
		last:      request.Last,
		expires:   request.Expires,
	}
	var room [6][]byte // the longest command, SET key value NEX PX ms
	arguments, err := resp3.DecodeArray(room[:0], request.Payload)
	if err != nil || len(arguments) == 0 {
		command.refusal = protocol.SyntaxError
		return command
	}
	command.refusal = command.read(arguments)
	return command
}

// Err returns the refusal of a command that will not be applied, and nil
// otherwise.
func (c Command) Err() error {
	if c.refusal == "" {
		return nil
	}
	return c.refusal
}

// Deny returns the command refused with "not authorized", unless it was
// already refused for a reason that the protocol checks earlier.
func (c Command) Deny() Command {
	if c.refusal == "" {
		c.refusal = protocol.NotAuthorized
	}
	return c
}

func parseProperty[T hlc.Timestamp | hlc.Token](text *string, parse func(string) (T, error)) property[T] {
	if text == nil {
		return property[T]{}
	}
	value, err := parse(*text)
	return property[T]{value: value, present: true, malformed: err != nil}
}

// grammar is the shape of one verb: how many arguments, the verb included, and
// how its key, value and options are read.
type grammar struct {
	verb     Verb
	min, max int // max 0: any number, options follow
	value    bool
}

func grammarOf(verb []byte) (grammar, bool) {
	var w word
	switch string(w.upper(verb)) {
	case protocol.VerbSet:
		return grammar{verb: VerbSet, min: 3, value: true}, true
	case protocol.VerbGet:
		return grammar{verb: VerbGet, min: 2, max: 2}, true
	case protocol.VerbDel:
		return grammar{verb: VerbDel, min: 2, max: 2}, true
	case protocol.VerbVDel:
		return grammar{verb: VerbVDel, min: 3, max: 3, value: true}, true
	case protocol.VerbKeyNotify:
		return grammar{verb: VerbKeyNotify, min: 2}, true
	}
	return grammar{}, false
}

func (c *Command) read(arguments [][]byte) (refusal protocol.Refusal) {
	grammar, ok := grammarOf(arguments[0])
	if !ok {
		return protocol.UnknownCommand
	}
	c.Verb = grammar.verb
	if len(arguments) < grammar.min || grammar.max > 0 && len(arguments) > grammar.max {
		return protocol.WrongNumberOfArguments
	}
	if len(arguments[1]) == 0 {
		return protocol.KeyLengthZero
	}
	c.Key = string(arguments[1])
	options := arguments[2:]
	if grammar.value {
		c.Value, options = arguments[2], arguments[3:]
	}
	switch c.Verb {
	case VerbSet:
		return c.readSetOptions(options)
	case VerbKeyNotify:
		return c.readKeyNotifyOptions(options)
	default:
		return ""
	}
}

func (c *Command) readSetOptions(options [][]byte) protocol.Refusal {
	var w word
	for len(options) > 0 {
		option := w.upper(options[0])
		options = options[1:]
		switch string(option) {
		case protocol.OptionNX, protocol.OptionNEX:
			if c.Condition != Always {
				return protocol.SyntaxError
			}
			c.Condition = IfMissing
			if string(option) == protocol.OptionNEX {
				c.Condition = IfMissingOrEqual
			}
		case protocol.OptionPX:
			if c.Lifetime != 0 || len(options) == 0 {
				return protocol.SyntaxError
			}
			lifetime, ok := parseMillis(options[0])
			if !ok {
				return protocol.SyntaxError
			}
			c.Lifetime, options = lifetime, options[1:]
		default:
			return protocol.SyntaxError
		}
	}
	return ""
}

// readKeyNotifyOptions accepts STOP, and the older GET, which changes nothing.
func (c *Command) readKeyNotifyOptions(options [][]byte) protocol.Refusal {
	var w word
	seenGet := false
	for _, option := range options {
		switch string(w.upper(option)) {
		case protocol.OptionStop:
			if c.Stop {
				return protocol.SyntaxError
			}
			c.Stop = true
		case protocol.VerbGet:
			if seenGet {
				return protocol.SyntaxError
			}
			seenGet = true
		default:
			return protocol.SyntaxError
		}
	}
	return ""
}

// parseMillis reads a positive number of milliseconds. A number beyond what a
// Duration holds (292 years) counts as that many.
func parseMillis(text []byte) (time.Duration, bool) {
	for _, digit := range text {
		if digit < '0' || digit > '9' {
			return 0, false // no signs, no fractions: ParseInt would accept "+5"
		}
	}
	millis, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || millis == 0 {
		return 0, false
	}
	return time.Duration(min(millis, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond, true
}

// word is room for the longest word of the protocol.
type word [len(protocol.VerbKeyNotify)]byte

// upper returns a verb or option in upper case, as a part of w. Longer words than the
// protocol has are not worth the copy. Only ASCII counts: to strings.ToUpper "\u017fet",
// with a long s, is SET.
func (w *word) upper(text []byte) []byte {
	if len(text) > len(w) {
		return nil
	}
	for i, c := range text {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		w[i] = c
	}
	return w[:len(text)]
}
