package mqtt

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"
)

// Version is the version of MQTT, as CONNECT names it [MQTT-3.1.2-2].
const Version = 5

// MaxHeader is the length of the longest fixed header.
const MaxHeader = 5

// Size returns the length of the packet at the beginning of b, and the length of its fixed
// header. It reports false while b is too short to tell, and always if b cannot be the
// beginning of a packet (see [Broken]).
func Size(b []byte) (size, header int, ok bool) {
	if len(b) == 0 {
		return 0, 0, false
	}
	rest := Reader(b[1:])
	remaining, ok := rest.Variable()
	if !ok {
		return 0, 0, false
	}
	header = len(b) - len(rest)
	return header + remaining, header, true
}

// Broken reports whether b cannot be the beginning of a packet, because its length has more
// than four bytes or more than it needs [MQTT-1.5.5-1].
func Broken(b []byte) bool {
	_, _, ok := Size(b)
	isLast := func(digit byte) bool { return digit < 0x80 } // the length is complete, and invalid
	return !ok && len(b) > 0 && (len(b) >= MaxHeader || slices.ContainsFunc(b[1:], isLast))
}

// Reader is the unread part of a buffer. The slices that its methods return are parts of the
// buffer. A method that reports false found too little or an invalid value, and has read
// nothing of it.
type Reader []byte

// Byte reads a byte.
func (r *Reader) Byte() (byte, bool) {
	value, ok := r.number(1)
	return byte(value), ok
}

// Uint16 reads a two byte integer [MQTT-1.5.2].
func (r *Reader) Uint16() (uint16, bool) {
	value, ok := r.number(2)
	return uint16(value), ok
}

// number reads an integer of some bytes, four at most.
func (r *Reader) number(bytes int) (number uint32, ok bool) {
	if len(*r) < bytes {
		return 0, false
	}
	for _, b := range (*r)[:bytes] {
		number = number<<8 | uint32(b)
	}
	*r = (*r)[bytes:]
	return number, true
}

// Variable reads a variable byte integer: at most four bytes, and no more than its value
// needs [MQTT-1.5.5-1].
func (r *Reader) Variable() (int, bool) {
	value := 0
	for i := range min(len(*r), 4) {
		digit := (*r)[i]
		value |= int(digit&0x7f) << (7 * i)
		if digit < 0x80 {
			if digit == 0 && i > 0 {
				return 0, false
			}
			*r = (*r)[i+1:]
			return value, true
		}
	}
	return 0, false
}

// Binary reads binary data [MQTT-1.5.6].
func (r *Reader) Binary() ([]byte, bool) {
	length, ok := r.Uint16()
	if !ok || int(length) > len(*r) {
		return nil, false
	}
	value := (*r)[:length:length]
	*r = (*r)[length:]
	return value, true
}

// Text reads a string, which must be UTF-8 without surrogates and without U+0000
// [MQTT-1.5.4-1, MQTT-1.5.4-2].
func (r *Reader) Text() ([]byte, bool) {
	value, ok := r.Binary()
	return value, ok && isText(value)
}

func isText(value []byte) bool { return bytes.IndexByte(value, 0) < 0 && utf8.Valid(value) }

// PacketID reads a packet identifier, which cannot be 0 [MQTT-2.2.1-3].
func PacketID(in *Reader) (uint16, *Refusal) {
	id, ok := in.Uint16()
	switch {
	case !ok:
		return 0, Refuse(Malformed, "it ends before its packet identifier")
	case id == 0:
		return 0, Refuse(ProtocolError, "its packet identifier is 0")
	}
	return id, nil
}

// Body checks the fixed header of a complete packet [MQTT-2.1.3-1], which has one of these types, and returns what
// follows it.
func Body(packet []byte, first, last byte) (Reader, *Refusal) {
	size, header, ok := Size(packet)
	if !ok || size != len(packet) {
		return nil, Refuse(Malformed, "it is not as long as its header says")
	}
	flags := packet[0] & 0x0f
	switch kind := Type(packet); {
	case kind < first || kind > last:
		return nil, Refuse(ProtocolError, "it has the type %d", kind)
	case kind == packets.SUBSCRIBE, kind == packets.UNSUBSCRIBE:
		flags ^= 2
	case kind == packets.PUBLISH:
		flags = 0 // it has flags of its own
	}
	if flags != 0 {
		return nil, Refuse(Malformed, "its flags are reserved")
	}
	return packet[header:], nil
}

// VariableLength returns how many bytes AppendVariable adds.
func VariableLength(value int) int {
	length := 1
	for ; value > 0x7f; value >>= 7 {
		length++
	}
	return length
}

// AppendVariable appends a variable byte integer. It must not be above 268,435,455.
func AppendVariable(dst []byte, value int) []byte {
	for ; value > 0x7f; value >>= 7 {
		dst = append(dst, byte(value)|0x80)
	}
	return append(dst, byte(value))
}

// AppendString appends a string or binary data of at most [MaxString] bytes.
func AppendString[T string | []byte](dst []byte, text T) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	return append(dst, text...)
}

const properties = packets.PropSharedSubAvailable + 1 // identifiers of properties are below [MQTT-2.2.2.2]

// kind is the encoding of a property's value, and its range.
type kind byte

const (
	unknown  kind = iota
	flag          // a byte, 0 or 1
	short         // a two byte integer
	positive      // a two byte integer that is not 0
	long          // a four byte integer
	size          // a four byte integer that is not 0
	variable      // a variable byte integer that is not 0
	text
	binaryData
	pair // two strings
)

// widths has the bytes of an integer.
var widths = [...]int{flag: 1, short: 2, positive: 2, long: 4, size: 4}

// known are the properties of the standard, with its names for them.
var known = [properties]struct {
	kind kind
	name string
}{
	packets.PropPayloadFormat:          {flag, "Payload Format Indicator"},
	packets.PropMessageExpiry:          {long, "Message Expiry Interval"},
	packets.PropContentType:            {text, "Content Type"},
	packets.PropResponseTopic:          {text, "Response Topic"},
	packets.PropCorrelationData:        {binaryData, "Correlation Data"},
	packets.PropSubscriptionIdentifier: {variable, "Subscription Identifier"},
	packets.PropSessionExpiryInterval:  {long, "Session Expiry Interval"},
	packets.PropAssignedClientID:       {text, "Assigned Client Identifier"},
	packets.PropServerKeepAlive:        {short, "Server Keep Alive"},
	packets.PropAuthMethod:             {text, "Authentication Method"},
	packets.PropAuthData:               {binaryData, "Authentication Data"},
	packets.PropRequestProblemInfo:     {flag, "Request Problem Information"},
	packets.PropWillDelayInterval:      {long, "Will Delay Interval"},
	packets.PropRequestResponseInfo:    {flag, "Request Response Information"},
	packets.PropResponseInfo:           {text, "Response Information"},
	packets.PropServerReference:        {text, "Server Reference"},
	packets.PropReasonString:           {text, "Reason String"},
	packets.PropReceiveMaximum:         {positive, "Receive Maximum"},
	packets.PropTopicAliasMaximum:      {short, "Topic Alias Maximum"},
	packets.PropTopicAlias:             {short, "Topic Alias"},
	packets.PropMaximumQOS:             {flag, "Maximum QoS"},
	packets.PropRetainAvailable:        {flag, "Retain Available"},
	packets.PropUser:                   {pair, "User Property"},
	packets.PropMaximumPacketSize:      {size, "Maximum Packet Size"},
	packets.PropWildcardSubAvailable:   {flag, "Wildcard Subscription Available"},
	packets.PropSubIDAvailable:         {flag, "Subscription Identifier Available"},
	packets.PropSharedSubAvailable:     {flag, "Shared Subscription Available"},
}

// Set is a set of properties by their identifiers, or of packets by their types.
type Set uint64

// SetOf returns the set of these.
func SetOf(identifiers ...byte) Set {
	var set Set
	for _, identifier := range identifiers {
		set |= 1 << identifier
	}
	return set
}

// Has reports whether a property or a type of packets is in the set.
func (s Set) Has(identifier byte) bool {
	return identifier < properties && s&(1<<identifier) != 0
}

// Property is one property. Its slices are parts of the buffer.
type Property struct {
	Identifier byte
	Number     uint32 // its value, if that is a number
	Name       []byte // of a user property
	Value      []byte // any other value
}

// Properties reads the properties of packets. It refuses a property that the packet cannot have or cannot
// repeat, and one with a value that the standard does not allow. User properties may be repeated.
type Properties struct {
	Seen Set    // by the latest call of Each
	Raw  []byte // what it read, without the length

	users int // the number of user properties, by all calls
	size  int // their length in bytes
}

// Each reads the properties at the beginning of in, moves in behind them, and calls do, unless it is
// nil, for every one. It returns what is wrong with them, or the refusal of do. User properties of earlier
// calls count for the limits.
func (p *Properties) Each(in *Reader, allowed Set, limits *Limits, do func(Property) *Refusal) *Refusal {
	length, ok := in.Variable()
	if !ok || length > len(*in) {
		return Refuse(Malformed, "the length of the properties is malformed, or longer than the packet")
	}
	rest := (*in)[:length:length]
	p.Seen, p.Raw, *in = 0, rest, (*in)[length:]
	for len(rest) > 0 {
		identifier := rest[0]
		switch {
		case identifier >= properties || known[identifier].kind == unknown:
			return Refuse(Malformed, "there is no property 0x%02X", identifier) // [MQTT-2.2.2.2]
		case !allowed.Has(identifier):
			return Refuse(Malformed, "it cannot have a %s", known[identifier].name) // [MQTT-2.2.2.2]
		case p.Seen.Has(identifier) && identifier != packets.PropUser:
			return Refuse(ProtocolError, "it has more than one %s", known[identifier].name)
		}
		p.Seen |= 1 << identifier
		property, ok := rest.Property()
		if refusal := p.check(&property, ok, limits); refusal != nil {
			return refusal
		}
		if do != nil {
			if refusal := do(property); refusal != nil {
				return refusal
			}
		}
	}
	return nil
}

// check returns what is wrong with the value of a property, or nil. ok says that it is complete.
func (p *Properties) check(property *Property, ok bool, limits *Limits) *Refusal {
	inRange, name := true, known[property.Identifier].name
	switch known[property.Identifier].kind {
	case flag:
		inRange = property.Number <= 1
	case positive, size, variable:
		inRange = property.Number > 0
	case text:
		ok = ok && isText(property.Value)
	case pair:
		ok = ok && isText(property.Name) && isText(property.Value)
		p.users++
		p.size += len(property.Name) + len(property.Value)
	}
	switch {
	case !ok:
		return Refuse(Malformed, "its %s is malformed", name)
	case !inRange:
		return Refuse(ProtocolError, "its %s cannot be %d", name, property.Number)
	case Over(p.users, limits.UserProperties):
		return Refuse(QuotaExceeded, "it has more than %d user properties", limits.UserProperties)
	case Over(p.size, limits.UserPropertyBytes):
		return Refuse(QuotaExceeded, "its user properties have more than %d bytes", limits.UserPropertyBytes)
	}
	return nil
}

// Property reads a property whose identifier is known, and does not check its value.
func (r *Reader) Property() (property Property, ok bool) {
	property.Identifier, _ = r.Byte()
	switch kind := known[property.Identifier].kind; kind {
	case variable:
		var value int
		value, ok = r.Variable()
		property.Number = uint32(value)
	case text, binaryData:
		property.Value, ok = r.Binary()
	case pair:
		if property.Name, ok = r.Binary(); ok {
			property.Value, ok = r.Binary()
		}
	default:
		property.Number, ok = r.number(widths[kind])
	}
	return property, ok
}
