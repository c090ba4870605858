package mqtt

import "github.com/eclipse/paho.golang/packets"

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

// PropertySet is a set of properties by their identifiers.
type PropertySet uint64

// SetOf returns the set of these properties.
func SetOf(identifiers ...byte) PropertySet {
	var set PropertySet
	for _, identifier := range identifiers {
		set |= 1 << identifier
	}
	return set
}

// Has reports whether a property is in the set.
func (s PropertySet) Has(identifier byte) bool {
	return identifier < properties && s&(1<<identifier) != 0
}

// Property is one property. Its slices are parts of the buffer.
type Property struct {
	Identifier byte
	Number     uint32 // its value, if that is a number
	Name       []byte // of a user property
	Value      []byte // any other value
}

// Properties reads the properties of a packet one by one. It refuses a property that the
// packet cannot have or cannot repeat, and one with a value that the standard does not allow. User
// properties and Subscription Identifiers may be repeated: a SUBSCRIBE, which has one at most, needs a
// check of its own. The zero value has no properties; see Begin.
type Properties struct {
	Seen PropertySet // since Begin

	in      Reader
	allowed PropertySet
	limits  *Limits
	users   int // the number of user properties, also from before Begin
	size    int // their length in bytes
}

// Begin reads the length of the properties at the beginning of in, makes Next return them,
// and moves in behind them. User properties that were read before still count for the
// limits.
func (p *Properties) Begin(in *Reader, allowed PropertySet, limits *Limits) *Refusal {
	length, ok := in.Variable()
	if !ok || length > len(*in) {
		return Refuse(Malformed, "the length of the properties is malformed, or longer than the packet")
	}
	p.in, *in = (*in)[:length:length], (*in)[length:]
	p.allowed, p.limits, p.Seen = allowed, limits, 0
	return nil
}

// Each begins with the properties at the beginning of in, as Begin does, and calls do, unless
// it is nil, for every one. It returns the refusal of Begin, Next or do.
func (p *Properties) Each(in *Reader, allowed PropertySet, limits *Limits, do func(Property) *Refusal) *Refusal {
	if refusal := p.Begin(in, allowed, limits); refusal != nil {
		return refusal
	}
	for {
		var property Property
		if more, refusal := p.Next(&property); !more {
			return refusal
		}
		if do == nil {
			continue
		}
		if refusal := do(property); refusal != nil {
			return refusal
		}
	}
}

var repeatable = SetOf(packets.PropUser, packets.PropSubscriptionIdentifier)

// Next reads the next property. It reports false when there is none left or the next is wrong.
func (p *Properties) Next(property *Property) (bool, *Refusal) {
	if len(p.in) == 0 {
		return false, nil
	}
	identifier := p.in[0]
	switch {
	case identifier >= properties || known[identifier].kind == unknown:
		return false, Refuse(Malformed, "there is no property 0x%02X", identifier) // [MQTT-2.2.2.2]
	case !p.allowed.Has(identifier):
		return false, Refuse(Malformed, "it cannot have a %s", known[identifier].name) // [MQTT-2.2.2.2]
	case p.Seen.Has(identifier) && !repeatable.Has(identifier):
		return false, Refuse(ProtocolError, "it has more than one %s", known[identifier].name)
	}
	p.Seen |= 1 << identifier
	ok, inRange := p.in.Property(property), true
	switch known[identifier].kind {
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
		return false, Refuse(Malformed, "its %s is malformed", known[identifier].name)
	case !inRange:
		return false, Refuse(ProtocolError, "its %s cannot be %d", known[identifier].name, property.Number)
	case Over(p.users, p.limits.UserProperties):
		return false, Refuse(QuotaExceeded, "it has more than %d user properties", p.limits.UserProperties)
	case Over(p.size, p.limits.UserPropertyBytes):
		return false, Refuse(QuotaExceeded, "its user properties have more than %d bytes", p.limits.UserPropertyBytes)
	}
	return true, nil
}

// Property reads a property whose identifier is known, and does not check its value.
func (r *Reader) Property(property *Property) (ok bool) {
	property.Identifier, _ = r.Byte()
	switch known[property.Identifier].kind {
	case flag:
		var value byte
		value, ok = r.Byte()
		property.Number = uint32(value)
	case short, positive:
		var value uint16
		value, ok = r.Uint16()
		property.Number = uint32(value)
	case long, size:
		property.Number, ok = r.Uint32()
	case variable:
		var value int
		value, ok = r.Variable()
		property.Number = uint32(value)
	case pair:
		if property.Name, ok = r.Binary(); !ok {
			return false
		}
		fallthrough
	default:
		property.Value, ok = r.Binary()
	}
	return ok
}
