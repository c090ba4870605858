package statestore

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
)

// Verb is what a command does.
type Verb uint8

// The verbs of the protocol. A request that could not be parsed has VerbUnknown.
const (
	VerbUnknown Verb = iota
	VerbSet
	VerbGet
	VerbDel
	VerbVDel
	VerbKeyNotify
)

var verbNames = []string{"unknown", protocol.VerbSet, protocol.VerbGet, protocol.VerbDel,
	protocol.VerbVDel, protocol.VerbKeyNotify}

// String returns the verb as the protocol spells it.
func (v Verb) String() string { return nameOf("Verb", verbNames, v) }

// MarshalText implements [encoding.TextMarshaler]; it returns the text of String.
func (v Verb) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// nameOf returns the name of an enumerated value, or a text such as "Verb(9)" for a value
// that has none.
func nameOf[E ~uint8](kind string, names []string, value E) string {
	if int(value) < len(names) {
		return names[value]
	}
	return kind + "(" + strconv.Itoa(int(value)) + ")"
}

// Condition says when a SET applies.
type Condition = protocol.Condition

const (
	// Always applies in any case.
	Always = protocol.Always
	// IfMissing (NX) applies only to a key that does not exist.
	IfMissing = protocol.IfMissing
	// IfMissingOrEqual (NEX) applies to a key that does not exist or that has
	// Command.Expected. A holder renews its lease with it.
	IfMissingOrEqual = protocol.IfMissingOrEqual
)

// Request is a request as it arrived, before any check.
type Request struct {
	// Client is the MQTT client id of the connection that the request came over. It is
	// never taken from the message, which any client could forge.
	Client string
	// Payload is the RESP3 array. Parse does not modify it.
	Payload []byte
	// Correlation is the request's correlation data, by which the store recognizes a
	// redelivery. Nil: the request cannot be delivered again.
	Correlation []byte
	// Delivery says whether the request can be a redelivery.
	Delivery Delivery
	// PacketID is the MQTT packet id, which a redelivery has too; 0: a broker in between hides it.
	PacketID uint16
	// Dialect is the dialect of the client, in which its replies and notifications are written
	// unless Options.Dialect says otherwise: see DialectOf.
	Dialect Dialect
	// Timestamp and FencingToken are the user properties __ts and __ft. Nil means
	// absent; an empty text is malformed.
	Timestamp, FencingToken *string
	// Store is the user property tenure-store: the identity of the only store that may
	// apply the request. Nil: any store may apply it.
	Store *string
	// Expires is when the message expires, on Instant.Elapsed: from then on Apply does
	// not apply the request. Zero means never.
	Expires time.Duration
}

// Command is a parsed request. If the request was malformed the command has a refusal,
// with which [Store.Apply] replies.
type Command struct {
	Request
	// Verb is what the command does; VerbUnknown if that could not be parsed.
	Verb Verb
	// Key is the key; any bytes, and empty only in a refused command.
	Key string
	// Value is the value of a SET, or the one that a VDEL deletes. It aliases the request's
	// payload.
	Value []byte
	// Condition says when a SET applies.
	Condition Condition
	// Expected is the value that IfMissingOrEqual accepts: that of the NEX, or Value if it has none.
	Expected []byte
	// Lifetime is the time from the SET to the expiry of the key; zero means that the
	// key does not expire.
	Lifetime time.Duration
	// Stop says that a KEYNOTIFY ends the watch instead of beginning it.
	Stop bool
	// User is the name with which the client has authenticated; empty: it has not. Will says that the command
	// is a Will, whose client has lost its connection, and Forced why it takes a lease by force, as the client
	// tells. They say who changed a lease and why, and change nothing else. Parse never sets them.
	User   string
	Will   bool
	Forced string
	// Waits says that the client of a KEYNOTIFY waits for the lease with that key. It is only shown. Parse never
	// sets it.
	Waits bool
	// Arrived is when the request was read, on Instant.Elapsed; zero: not known. It changes nothing. Parse
	// never sets it.
	Arrived time.Duration
	// Willed says that the key of a SET ends with the connection that the SET came over, unless a later SET says
	// otherwise. Parse never sets it: the caller does, if it applies the Will of that connection, and ReleasedBy says
	// that it deletes the value. The caller's Wills end with its process, and so do all its connections, so a store
	// that is restored removes such a key at once. The key stays Willed when its client has dropped the Will: to take
	// that away would be a write for each connection that ends, for keys that are released first.
	Willed bool

	timestamp hlc.Timestamp // zero: absent or malformed
	token     hlc.Token     // zero: absent or malformed
	// Malformed text is refused only after authorization (docs/protocol.md §4.4), so Parse notes it.
	badTimestamp, badToken bool
	refusal                protocol.Refusal
	fingerprint            fingerprint
}

// Parse parses a request. It does each check that needs neither the store nor a clock, in
// the order of the protocol: syntax, verb, number of arguments, key length, options. If one
// fails, the Command has the refusal; see [Command.Err]. Parse needs no lock and allocates
// in proportion to the payload. The Value of the result aliases the payload.
func Parse(request Request) Command {
	command := Command{Request: request, fingerprint: fingerprintOf(request)}
	command.timestamp, command.badTimestamp = parseProperty(request.Timestamp, hlc.Parse)
	command.token, command.badToken = parseProperty(request.FencingToken, hlc.ParseToken)
	var buffer [7][]byte // the longest command, SET key value NEX value PX ms
	arguments, err := resp3.DecodeArray(buffer[:0], request.Payload)
	if err != nil || len(arguments) == 0 {
		command.refusal = protocol.SyntaxError
		return command
	}
	command.refusal = command.parse(arguments)
	return command
}

// Err returns the refusal of a command that will not be applied, and nil otherwise. Its
// text is the protocol's.
func (c Command) Err() error {
	if c.refusal == "" {
		return nil
	}
	return c.refusal
}

// Deny returns the command with the refusal "not authorized", unless Parse refused it: the
// protocol does the checks of Parse before authorization.
func (c Command) Deny() Command {
	if c.refusal == "" {
		c.refusal = protocol.NotAuthorized
	}
	return c
}

// Timestamp returns the clock of the sender, the user property __ts. It reports false if the request has
// none, or a malformed one.
func (c *Command) Timestamp() (hlc.Timestamp, bool) {
	return c.timestamp, !c.timestamp.IsZero()
}

// ReleasedBy reports whether will, as the Will of the connection, deletes what the command sets there:
// whether it is Willed.
func (c *Command) ReleasedBy(will *Command) bool {
	return c.Verb == VerbSet && will.Verb == VerbVDel && c.Key == will.Key && bytes.Equal(c.Value, will.Value)
}

func parseProperty[T hlc.Timestamp | hlc.Token](text *string, parse func(string) (T, error)) (value T, malformed bool) {
	if text == nil {
		return value, false
	}
	value, err := parse(*text)
	return value, err != nil
}

// grammar is the syntax of one verb.
type grammar struct {
	verb     Verb
	min, max int  // arguments, the verb included; max 0: options follow
	value    bool // whether a value follows the key
}

var grammars = map[string]grammar{
	protocol.VerbSet:       {verb: VerbSet, min: 3, value: true},
	protocol.VerbGet:       {verb: VerbGet, min: 2, max: 2},
	protocol.VerbDel:       {verb: VerbDel, min: 2, max: 2},
	protocol.VerbVDel:      {verb: VerbVDel, min: 3, max: 3, value: true},
	protocol.VerbKeyNotify: {verb: VerbKeyNotify, min: 2},
}

func (c *Command) parse(arguments [][]byte) (refusal protocol.Refusal) {
	var w word
	grammar, ok := grammars[string(w.upper(arguments[0]))]
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
		return c.parseSetOptions(options)
	case VerbKeyNotify:
		return c.parseKeyNotifyOptions(options)
	default:
		return ""
	}
}

func (c *Command) parseSetOptions(options [][]byte) protocol.Refusal {
	var w word
	for ; len(options) > 0; options = options[1:] {
		switch option := string(w.upper(options[0])); {
		case option == protocol.OptionNX && c.Condition == Always:
			c.Condition = IfMissing
		case option == protocol.OptionNEX && c.Condition == Always:
			c.Condition, c.Expected = IfMissingOrEqual, c.Value
			// A word that is no option is the value of the NEX: docs/protocol.md §6.
			if len(options) > 1 && !slices.Contains(setOptions, string(w.upper(options[1]))) {
				options = options[1:]
				c.Expected = options[0]
			}
		case option == protocol.OptionPX && c.Lifetime == 0 && len(options) > 1:
			options = options[1:]
			if c.Lifetime = parseMillis(options[0]); c.Lifetime == 0 {
				return protocol.SyntaxError
			}
		default:
			return protocol.SyntaxError
		}
	}
	return ""
}

var setOptions = []string{protocol.OptionNX, protocol.OptionNEX, protocol.OptionPX}

// parseKeyNotifyOptions accepts STOP, and GET of older clients, which has no effect.
func (c *Command) parseKeyNotifyOptions(options [][]byte) protocol.Refusal {
	var w word
	seenGet := false
	for _, text := range options {
		switch option := string(w.upper(text)); {
		case option == protocol.OptionStop && !c.Stop:
			c.Stop = true
		case option == protocol.VerbGet && !seenGet:
			seenGet = true
		default:
			return protocol.SyntaxError
		}
	}
	return ""
}

// parseMillis parses a positive number of milliseconds. Numbers above the largest Duration
// (292 years) count as the largest Duration. For anything else it returns 0.
func parseMillis(text []byte) time.Duration {
	millis, err := strconv.ParseUint(string(text), 10, 63) // ParseInt would accept "+5"
	if err != nil {
		return 0
	}
	return time.Duration(min(millis, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}

// word is a buffer for the longest verb or option of the protocol.
type word [len(protocol.VerbKeyNotify)]byte

// upper returns a verb or option in upper case, in the buffer w. It returns nil for a longer
// word, which no verb or option is. It converts ASCII only: to strings.ToUpper "\u017fet",
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
