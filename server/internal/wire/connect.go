package wire

import (
	"bytes"
	"math"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// Flags of a CONNECT [MQTT-3.1.2.3].
const (
	reservedFlag   = 0x01
	cleanStartFlag = 0x02
	willFlag       = 0x04
	willQoSShift   = 3
	willRetainFlag = 0x20
	passwordFlag   = 0x40
	userNameFlag   = 0x80
)

var (
	connectProperties = mqtt.SetOf(packets.PropSessionExpiryInterval, packets.PropReceiveMaximum, packets.PropMaximumPacketSize, packets.PropTopicAliasMaximum,
		packets.PropRequestResponseInfo, packets.PropRequestProblemInfo, packets.PropUser,
		packets.PropAuthMethod, packets.PropAuthData) // [MQTT-3.1.2.11]
	willProperties = mqtt.SetOf(packets.PropWillDelayInterval, packets.PropPayloadFormat, packets.PropMessageExpiry, packets.PropContentType,
		packets.PropResponseTopic, packets.PropCorrelationData, packets.PropUser) // [MQTT-3.1.3.2]
)

// Connect is a decoded CONNECT. Only its Will shares the bytes of the packet.
type Connect struct {
	ClientID       string
	CleanStart     bool
	KeepAlive      uint16 // seconds
	ReceiveMaximum uint16 // 0: not limited
	User           string
	Password       []byte
	Will           *mqtt.Publish // nil: none
}

// tlsHandshake is the first byte of a TLS connection [RFC 8446, 5.1]. As MQTT it begins a
// CONNECT with reserved flags.
const tlsHandshake = 0x16

// checkConnect checks a CONNECT, which may be incomplete if it is too large.
func (g *Gate) checkConnect(packet []byte, in *mqtt.Reader) *mqtt.Refusal {
	if packet[0] == tlsHandshake {
		return mqtt.Refuse(mqtt.Malformed, "its flags are reserved: the client speaks TLS to an address that has none")
	}
	if packet[0]&0x0f != 0 {
		return mqtt.Refuse(mqtt.Malformed, "its flags are reserved") // [MQTT-2.1.3-1]
	}
	if refusal := g.readVersion(in); refusal != nil {
		return refusal
	}
	if size, _, _ := mqtt.Size(packet); mqtt.Over(size, g.limits.FirstPacket) {
		return mqtt.Refuse(mqtt.PacketTooLarge, "it has %d bytes, and at most %d are accepted", size, g.limits.FirstPacket)
	}
	if _, refusal := mqtt.Body(packet, packets.CONNECT, packets.CONNECT); refusal != nil {
		return refusal
	}
	flags, ok := in.Byte()
	if !ok {
		return mqtt.Refuse(mqtt.Malformed, tooShort)
	}
	if refusal := g.checkConnectFlags(flags); refusal != nil {
		return refusal
	}
	c := Connect{CleanStart: flags&cleanStartFlag != 0}
	if c.KeepAlive, ok = in.Uint16(); !ok {
		return mqtt.Refuse(mqtt.Malformed, tooShort)
	}
	var properties mqtt.Properties
	switch {
	case g.Version >= mqtt.Version5:
		if refusal := g.readConnectProperties(&c, &properties, in); refusal != nil {
			return refusal
		}
	case !c.CleanStart:
		g.SessionExpiry = math.MaxUint32 // a session of an earlier version has no end [MQTT-3.1.2.11.2]
	}
	client, ok := in.Text()
	switch c.ClientID = string(client); {
	case !ok:
		return mqtt.Refuse(mqtt.Malformed, "its client identifier is malformed") // [MQTT-3.1.3-4]
	case c.ClientID == "" && g.Version < mqtt.Version5 && !c.CleanStart:
		return mqtt.Refuse(mqtt.InvalidClientID, "a session that is kept needs a client identifier") // [MQTT 3.1.1: MQTT-3.1.3-8]
	}
	if flags&willFlag != 0 {
		c.Will = &mqtt.Publish{QoS: flags >> willQoSShift & qosMask, Retain: flags&willRetainFlag != 0}
		if refusal := g.readWill(c.Will, &properties, in); refusal != nil {
			return refusal
		}
	}
	if flags&userNameFlag != 0 {
		name, ok := in.Text()
		if !ok {
			return mqtt.Refuse(mqtt.Malformed, "its user name is malformed") // [MQTT-3.1.3-11]
		}
		c.User = string(name)
	}
	if flags&passwordFlag != 0 {
		password, ok := in.Binary()
		if !ok {
			return mqtt.Refuse(mqtt.Malformed, "its password is malformed")
		}
		c.Password = bytes.Clone(password)
	}
	g.Connect = &c
	return nil
}

const tooShort = "it is too short"

// readVersion reads the name and the version of the protocol. It notes the version before it
// can fail, because the form of the answer depends on it.
func (g *Gate) readVersion(in *mqtt.Reader) *mqtt.Refusal {
	name, named := in.Binary()
	version, ok := in.Byte()
	if !named || !ok {
		return mqtt.Refuse(mqtt.Malformed, tooShort)
	}
	if string(name) != "MQTT" && string(name) != "MQIsdp" {
		return mqtt.Refuse(mqtt.UnsupportedVersion, "its protocol is not MQTT") // [MQTT-3.1.2-1]
	}
	g.Version = max(version, 1) // not 0, which is unknown
	if string(name) == "MQTT" && (version == mqtt.Version311 || version == mqtt.Version5) ||
		string(name) == "MQIsdp" && version == mqtt.Version31 {
		return nil
	}
	return mqtt.Refuse(mqtt.UnsupportedVersion, "only MQTT 3.1, 3.1.1 and 5 are supported") // [MQTT-3.1.2-2]
}

func (g *Gate) checkConnectFlags(flags byte) *mqtt.Refusal {
	switch {
	case flags&reservedFlag != 0:
		return mqtt.Refuse(mqtt.Malformed, "its reserved flag is set") // [MQTT-3.1.2-3]
	case flags>>willQoSShift&qosMask > 2:
		return mqtt.Refuse(mqtt.Malformed, "the QoS of its Will is 3") // [MQTT-3.1.2-12]
	case flags&willFlag == 0 && (flags>>willQoSShift&qosMask != 0 || flags&willRetainFlag != 0):
		return mqtt.Refuse(mqtt.Malformed, "it has flags of a Will, and no Will") // [MQTT-3.1.2-11, MQTT-3.1.2-13]
	case flags&passwordFlag != 0 && flags&userNameFlag == 0 && g.Version < mqtt.Version5:
		return mqtt.Refuse(mqtt.Malformed, "it has a password, and no user name") // [MQTT 3.1.1: MQTT-3.1.2-22]
	}
	return nil
}

func (g *Gate) readConnectProperties(c *Connect, properties *mqtt.Properties, in *mqtt.Reader) *mqtt.Refusal {
	refusal := properties.Each(in, connectProperties, &g.limits.Limits, func(property mqtt.Property) *mqtt.Refusal {
		switch property.Identifier {
		case packets.PropSessionExpiryInterval:
			g.SessionExpiry = property.Number
		case packets.PropMaximumPacketSize:
			g.Maximum = property.Number
		case packets.PropReceiveMaximum:
			c.ReceiveMaximum = uint16(property.Number)
		}
		return nil
	})
	switch {
	case refusal != nil:
		return refusal
	case properties.Seen.Has(packets.PropAuthMethod):
		return mqtt.Refuse(mqtt.BadAuthentication, "this server has no authentication methods") // [MQTT-4.12.0-1]
	case properties.Seen.Has(packets.PropAuthData):
		return mqtt.Refuse(mqtt.ProtocolError, "it has Authentication Data, and no method") // [MQTT-3.1.2.11.10]
	}
	return nil
}

func (g *Gate) readWill(will *mqtt.Publish, properties *mqtt.Properties, in *mqtt.Reader) (refusal *mqtt.Refusal) {
	text, ok := false, false
	if g.Version >= mqtt.Version5 {
		if text, refusal = will.ReadProperties(in, properties, willProperties, &g.limits.Limits); refusal != nil {
			refusal.Reason = "in the properties of its Will, " + refusal.Reason
			return refusal
		}
	}
	if will.Topic, ok = in.Text(); !ok {
		return mqtt.Refuse(mqtt.Malformed, "the topic of its Will is malformed") // [MQTT-3.1.3-11]
	}
	if refusal := mqtt.CheckTopic(will.Topic, &g.limits.Limits); refusal != nil {
		refusal.Reason = "in its Will, " + refusal.Reason
		return refusal
	}
	if will.Payload, ok = in.Binary(); !ok {
		return mqtt.Refuse(mqtt.Malformed, "the payload of its Will is malformed")
	}
	if text && !utf8.Valid(will.Payload) {
		return mqtt.Refuse(mqtt.InvalidPayloadFormat, "the payload of its Will is marked as UTF-8, and is not") // [MQTT-3.1.3.2.3]
	}
	return nil
}
