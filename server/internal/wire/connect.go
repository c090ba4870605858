package wire

import (
	"bytes"
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
	connectProperties = mqtt.SetOf(packets.PropSessionExpiryInterval, packets.PropReceiveMaximum,
		packets.PropMaximumPacketSize, packets.PropTopicAliasMaximum,
		packets.PropRequestResponseInfo, packets.PropRequestProblemInfo, packets.PropUser,
		packets.PropAuthMethod, packets.PropAuthData) // [MQTT-3.1.2.11]
	willProperties = mqtt.SetOf(packets.PropWillDelayInterval, packets.PropPayloadFormat,
		packets.PropMessageExpiry, packets.PropContentType,
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

const tooShort = "it is too short"

func (g *Gate) readConnect(in *mqtt.Reader) *mqtt.Refusal {
	name, named := in.Binary()
	version, ok := in.Byte()
	switch {
	case !named || !ok:
		return mqtt.Refuse(mqtt.Malformed, tooShort)
	case string(name) != "MQTT" && string(name) != "MQIsdp":
		return mqtt.Refuse(mqtt.UnsupportedVersion, "its protocol is not MQTT") // [MQTT-3.1.2-1]
	case version != mqtt.Version:
		g.Version = max(version, 1) // not 0, which is unknown
		// [MQTT-3.1.2-2]
		return mqtt.Refuse(mqtt.UnsupportedVersion, "it has version %d of the protocol: connect with MQTT 5", version)
	}
	g.Version = version
	flags, _ := in.Byte()
	c := Connect{CleanStart: flags&cleanStartFlag != 0}
	willQoS := flags >> willQoSShift & qosMask
	c.KeepAlive, ok = in.Uint16()
	switch {
	case !ok:
		return mqtt.Refuse(mqtt.Malformed, tooShort)
	case flags&reservedFlag != 0:
		return mqtt.Refuse(mqtt.Malformed, "its reserved flag is set") // [MQTT-3.1.2-3]
	case willQoS > 2:
		return mqtt.Refuse(mqtt.Malformed, "the QoS of its Will is 3") // [MQTT-3.1.2-12]
	case flags&willFlag == 0 && (willQoS != 0 || flags&willRetainFlag != 0):
		return mqtt.Refuse(mqtt.Malformed, "it has flags of a Will, and no Will") // [MQTT-3.1.2-11, MQTT-3.1.2-13]
	}
	var properties mqtt.Properties
	if refusal := g.readProperties(&c, &properties, in); refusal != nil {
		return refusal
	}
	client, ok := in.Text()
	if c.ClientID = string(client); !ok {
		return mqtt.Refuse(mqtt.Malformed, "its client identifier is malformed") // [MQTT-3.1.3-4]
	}
	if flags&willFlag != 0 {
		c.Will = &mqtt.Publish{QoS: willQoS, Retain: flags&willRetainFlag != 0}
		if refusal := readWill(c.Will, &properties, in); refusal != nil {
			refusal.Reason = "in its Will, " + refusal.Reason
			return refusal
		}
	}
	if flags&userNameFlag != 0 {
		user, ok := in.Text()
		if c.User = string(user); !ok {
			return mqtt.Refuse(mqtt.Malformed, "its user name is malformed") // [MQTT-3.1.3-11]
		}
	}
	if flags&passwordFlag != 0 {
		password, ok := in.Binary()
		if c.Password = bytes.Clone(password); !ok {
			return mqtt.Refuse(mqtt.Malformed, "its password is malformed")
		}
	}
	g.Connect = &c
	return nil
}

func (g *Gate) readProperties(c *Connect, properties *mqtt.Properties, in *mqtt.Reader) *mqtt.Refusal {
	refusal := properties.Each(in, connectProperties, &limits, func(property mqtt.Property) *mqtt.Refusal {
		switch property.Identifier {
		case packets.PropSessionExpiryInterval:
			g.SessionExpiry = property.Number
		case packets.PropMaximumPacketSize:
			g.Maximum = min(g.Maximum, property.Number)
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

func readWill(will *mqtt.Publish, properties *mqtt.Properties, in *mqtt.Reader) *mqtt.Refusal {
	text, refusal := will.ReadProperties(in, properties, willProperties, &limits)
	if refusal != nil {
		return refusal
	}
	topic, named := in.Text()
	payload, ok := in.Binary()
	if !named || !ok {
		return mqtt.Refuse(mqtt.Malformed, "the topic or the payload is malformed") // [MQTT-3.1.3-11]
	}
	will.Topic, will.Payload = topic, payload
	if text && !utf8.Valid(payload) {
		return mqtt.Refuse(mqtt.InvalidPayloadFormat, "the payload is marked as UTF-8, and is not") // [MQTT-3.1.3.2.3]
	}
	return mqtt.CheckTopic(topic, &limits)
}
