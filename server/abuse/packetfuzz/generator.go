// Package packetfuzz makes MQTT 5 packets that are right, or nearly, from a seed.
//
// Random bytes seldom get past the first check of a decoder. So a [Generator] knows the
// fields and the properties of each type of packet, and draws their values from small pools:
// packets of different connections meet on the same topics, keys and client ids. Some of the
// packets are then damaged, in a field or in their bytes. Its test sends them to a server
// that runs under the race detector.
package packetfuzz

import (
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// A Generator makes packets. The same seed makes the same ones in the same order. It serves
// one goroutine.
type Generator struct {
	random *rand.Rand
	own    string // a client id that no other generator has
	id     string // the client id of the last login
	// wild connections break rules. A server ends them soon, so the others keep to the
	// rules, and go further.
	wild bool
}

// New returns a generator.
func New(seed uint64) *Generator {
	return &Generator{own: "own-" + strconv.FormatUint(seed, 36), random: rand.New(rand.NewPCG(seed, 0x7e47))}
}

// clients are the client ids that take turns. The hex of "p" is "70".
var clients = []string{"a", "b", "p", "70", "C2", "long-" + strings.Repeat("x", 60), ""}

// oneIn reports true once in n times.
func (g *Generator) oneIn(n int) bool { return g.random.IntN(n) == 0 }

// wildly is oneIn on wild connections, and false on others.
func (g *Generator) wildly(n int) bool { return g.wild && g.oneIn(n) }

// maybe appends more to properties once in n times.
func (g *Generator) maybe(n int, properties, more rawmqtt.Body) rawmqtt.Body {
	if g.oneIn(n) {
		return append(properties, more...)
	}
	return properties
}

func pick[T any](g *Generator, from ...T) T { return from[g.random.IntN(len(from))] }

// Chance returns a number from 0 to n-1, for what else the user of a generator decides.
func (g *Generator) Chance(n int) int { return g.random.IntN(n) }

// Login returns a CONNECT, which is damaged less often than other packets: all that follows
// depends on it.
func (g *Generator) Login() []byte {
	g.id, g.wild = g.own, g.oneIn(2)
	if g.oneIn(2) {
		g.id = pick(g, clients...)
	}
	var flags byte
	if g.oneIn(2) {
		flags |= 0x02
	}
	var will rawmqtt.Body
	if g.oneIn(3) {
		flags |= 0x04 | pick[byte](g, 0, 0x08, 0x08, 0x10, 0x18)
		if g.oneIn(4) {
			flags |= 0x20
		}
		topic := pick(g, protocol.InvokeTopic, "a/b", g.topic())
		if !g.wild {
			flags &^= 0x30 // no QoS 2, not retained
		}
		will = will.Properties(g.willProperties()).Text(topic).Text(string(g.command()))
	}
	properties := g.maybe(2, nil, rawmqtt.Body{packets.PropSessionExpiryInterval}.Uint32(pick[uint32](g, 0, 1, 1, 3600, 1<<32-1)))
	properties = g.maybe(3, properties, rawmqtt.Body{packets.PropReceiveMaximum}.Uint16(pick[uint16](g, 1, 2, 100, 65535)))
	properties = g.maybe(4, properties, rawmqtt.Body{packets.PropMaximumPacketSize}.Uint32(pick[uint32](g, 1, 50, 400, 1<<20)))
	properties = g.maybe(6, properties, rawmqtt.Body{packets.PropTopicAliasMaximum}.Uint16(10))
	properties = g.maybe(6, properties, rawmqtt.Body{packets.PropRequestProblemInfo}.Byte(pick[byte](g, 0, 1)))
	if g.wildly(20) {
		properties = properties.Byte(packets.PropAuthMethod).Text("K8S-SAT").Byte(packets.PropAuthData).Text("data")
	}
	properties = g.maybe(6, properties, rawmqtt.Body(nil).User("k", "v"))
	version := byte(5)
	if g.wildly(15) {
		version = pick[byte](g, 3, 4, 6, 0x84)
	}
	name := "MQTT"
	if g.wildly(15) {
		name = "MQIsdp"
	}
	body := rawmqtt.Body(nil).Text(name).Byte(version)
	withUser := g.oneIn(3)
	if withUser {
		flags |= 0x80
	}
	if withUser && g.oneIn(2) {
		flags |= 0x40
	}
	body = body.Byte(flags).Uint16(pick[uint16](g, 0, 1, 60, 65535))
	if version == 5 || version == 6 {
		body = body.Properties(properties)
	}
	body = append(body.Text(g.id), will...)
	if withUser {
		body = body.Text("user")
	}
	if flags&0x40 != 0 {
		body = body.Text("password")
	}
	packet := rawmqtt.Packet(packets.CONNECT, 0, body)
	if g.wildly(6) {
		packet = g.damaged(packet)
	}
	return packet
}

// Packet returns a packet as a client sends it after its login, or what a damaged client
// might.
func (g *Generator) Packet() []byte {
	packet := g.valid()
	if g.wildly(4) {
		packet = g.damaged(packet)
	}
	return packet
}

func (g *Generator) valid() []byte {
	n := g.random.IntN(100)
	if !g.wild {
		n = g.random.IntN(94)
	}
	switch {
	case n < 30:
		return g.request()
	case n < 55:
		return g.publish()
	case n < 72:
		return g.subscribe()
	case n < 82:
		return g.unsubscribe()
	case n < 90:
		return g.acknowledgement()
	case n < 94:
		return rawmqtt.Packet(packets.PINGREQ, 0, nil)
	case n < 96:
		return g.disconnect()
	case n < 97:
		return g.Login()
	case n < 98:
		return rawmqtt.Packet(packets.AUTH, 0, rawmqtt.Body(nil).Byte(0x19).Properties(rawmqtt.Body{packets.PropAuthMethod}.Text("K8S-SAT")))
	default: // what only a server sends
		return rawmqtt.Packet(pick[byte](g, 0, packets.CONNACK, packets.SUBACK, packets.UNSUBACK, packets.PINGRESP), byte(g.random.IntN(16)),
			rawmqtt.Body(nil).Uint16(g.packetID()).Properties(nil).Byte(0))
	}
}

func (g *Generator) packetID() uint16 { return pick[uint16](g, 1, 1, 2, 3, 4, 100, 65535) }

// topic returns the name of a topic, mostly one that may be published to.
func (g *Generator) topic() string {
	n := g.random.IntN(20)
	if !g.wild && n >= 6 && n < 10 {
		n = 10
	}
	switch n {
	case 0:
		return protocol.InvokeTopic
	case 1, 2:
		return protocol.ResponseTopic(pick(g, clients...))
	case 3:
		return protocol.NotifyTopic(pick(g, clients...), g.key())
	case 4:
		return "clients/" + pick(g, clients...) + "/app/" + g.level()
	case 5:
		return "clients/" + strings.ToUpper(g.level()) + "/x"
	case 6:
		return pick(g, "$SYS/broker/clients", "$share/g/t", "$x", "clients", "statestore")
	case 7:
		return pick(g, "", "a//b", "/", "//", "a/", "\xff\xfe", "a\x00b", "a/#", "+", "\u00e9/\U0001f512", "\ufeff", "\xed\xa0\x80")
	case 8:
		return strings.Repeat(g.level()+"/", g.random.IntN(100))
	case 9:
		return strings.Repeat("t", pick(g, 1_000, 1_024, 1_025, 30_000, 65_535))
	default:
		return g.level() + "/" + g.level()
	}
}

func (g *Generator) level() string { return pick(g, "a", "b", "c", "1", "2") }

// filter returns what a client might subscribe to.
func (g *Generator) filter() string {
	filter := g.topic()
	levels := strings.Split(filter, "/")
	for range g.random.IntN(3) {
		levels[g.random.IntN(len(levels))] = "+"
	}
	if g.oneIn(4) {
		levels[len(levels)-1] = "#"
	}
	if g.wildly(8) {
		levels[g.random.IntN(len(levels))] = pick(g, "#", "+x")
	}
	filter = strings.Join(levels, "/")
	switch g.random.IntN(12) {
	case 0:
		return "#"
	case 1:
		return "+/#"
	case 2:
		group := pick(g, "g", "h")
		if g.wildly(3) {
			group = pick(g, "", "+", "a/b")
		}
		return pick(g, "$share/", "$SHARE/", "$Share/") + group + "/" + filter
	}
	return filter
}

func (g *Generator) key() string { return pick(g, "k1", "k2", "k3", "locks/1", "", "\x00\xff") }

// command returns the payload of a request to the store.
func (g *Generator) command() []byte {
	key, value := g.key(), pick(g, "v", "w", g.id, g.id+":1", strings.Repeat("v", 5_000))
	var words []string
	switch g.random.IntN(6) {
	case 0, 1:
		words = []string{protocol.VerbSet, key, value}
		for range g.random.IntN(4) {
			words = append(words, pick(g, [][]string{{protocol.OptionNX}, {protocol.OptionNEX}, {protocol.OptionPX, pick(g, "1", "5", "100", "60000", "0", "-1", "9223372036854775807", "x")}, {"GET"}}...)...)
		}
	case 2:
		words = []string{protocol.VerbGet, key}
	case 3:
		words = []string{protocol.VerbDel, key}
	case 4:
		words = []string{protocol.VerbVDel, key, value}
	case 5:
		words = []string{protocol.VerbKeyNotify, key}
		if g.oneIn(3) {
			words = append(words, protocol.OptionStop)
		}
	}
	payload := resp3.AppendCommand(nil, words...)
	if g.oneIn(10) {
		payload = g.mangled(payload)
	}
	return payload
}

// timestamp returns a hybrid logical clock as text, far from now or not one at times.
func (g *Generator) timestamp() string {
	wall := pick(g, "1000000000000", "1700000000000", "9000000000000000", "-1", "x")
	return wall + ":" + strconv.Itoa(g.random.IntN(3)) + ":" + pick(g, "a", "b", "StateStore")
}

func (g *Generator) requestProperties() rawmqtt.Body {
	topic := protocol.ResponseTopic(g.id)
	if g.oneIn(6) {
		topic = g.topic()
	}
	properties := rawmqtt.Body(nil)
	if !g.oneIn(20) {
		properties = properties.Byte(packets.PropResponseTopic).Text(topic)
	}
	if !g.oneIn(20) {
		properties = properties.Byte(packets.PropCorrelationData).Text(pick(g, "0123456789abcdef", "0123456789abcdeg", strconv.Itoa(g.random.IntN(1_000)), strings.Repeat("c", 3_000)))
	}
	properties = g.maybe(3, properties, rawmqtt.Body(nil).User(protocol.PropertyTimestamp, g.timestamp()))
	properties = g.maybe(5, properties, rawmqtt.Body(nil).User(protocol.PropertyFencingToken, g.timestamp()))
	properties = g.maybe(10, properties, rawmqtt.Body(nil).User(protocol.PropertyStore, "another"))
	return append(properties, g.messageProperties()...)
}

// messageProperties returns some of the properties that any message may have.
func (g *Generator) messageProperties() rawmqtt.Body {
	properties := g.maybe(4, nil, rawmqtt.Body{packets.PropMessageExpiry}.Uint32(pick[uint32](g, 0, 1, 10, 1<<32-1)))
	properties = g.maybe(4, properties, rawmqtt.Body{packets.PropContentType}.Text("application/octet-stream"))
	properties = g.maybe(8, properties, rawmqtt.Body{packets.PropPayloadFormat}.Byte(pick[byte](g, 0, 1)))
	if g.oneIn(8) {
		for range pick(g, 1, 2, 30, 64, 65, 200) {
			properties = properties.User("name", "value")
		}
	}
	return properties
}

func (g *Generator) willProperties() rawmqtt.Body {
	properties := g.requestProperties()
	properties = g.maybe(3, properties, rawmqtt.Body{packets.PropWillDelayInterval}.Uint32(pick[uint32](g, 0, 1, 60)))
	return properties
}

// qos is 1 mostly, and 2 on wild connections only: the server takes no more than 1.
func (g *Generator) qos() byte {
	if g.wildly(8) {
		return pick[byte](g, 2, 2, 3)
	}
	return pick[byte](g, 0, 1, 1, 1, 1, 1)
}

func (g *Generator) request() []byte {
	return rawmqtt.Message{
		Topic: protocol.InvokeTopic, QoS: g.qos(), ID: g.packetID(), Retain: g.wildly(20),
		Properties: g.requestProperties(), Payload: g.command(),
	}.Packet()
}

func (g *Generator) publish() []byte {
	m := rawmqtt.Message{
		Topic: g.topic(), QoS: g.qos() & byte(g.random.IntN(4)), ID: g.packetID(), Retain: g.wildly(3),
		Properties: g.messageProperties(), Payload: make([]byte, pick(g, 0, 1, 10, 500, 5_000, 60_000)),
	}
	if g.oneIn(6) {
		m.Properties = g.requestProperties()
	}
	if g.wildly(15) {
		m.Properties = m.Properties.Byte(packets.PropTopicAlias).Uint16(pick[uint16](g, 0, 1, 65535))
	}
	if g.wildly(20) {
		m.Properties = m.Properties.Byte(packets.PropSubscriptionIdentifier).Variable(5)
	}
	packet := m.Packet()
	if m.QoS == 1 && g.oneIn(10) || g.wildly(20) {
		packet[0] |= 0x08 // sent again
	}
	return packet
}

func (g *Generator) subscribe() []byte {
	body := rawmqtt.Body(nil).Uint16(g.packetID())
	properties := g.maybe(4, nil, rawmqtt.Body{packets.PropSubscriptionIdentifier}.Variable(g.subscriptionIdentifier()))
	properties = g.maybe(6, properties, rawmqtt.Body(nil).User("k", "v"))
	body = body.Properties(properties)
	n := pick(g, 1, 1, 1, 2, 3, 50, 101)
	if g.wildly(10) {
		n = 0
	}
	for range n {
		options := pick[byte](g, 0, 1, 2) | pick[byte](g, 0, 0, 0x04) | pick[byte](g, 0, 0, 0x08) | pick[byte](g, 0, 0, 0x10, 0x20)
		if g.wildly(20) {
			options = byte(g.random.IntN(256))
		}
		filter := g.filter()
		if g.oneIn(6) {
			filter = protocol.NotifyFilter(g.id)
		}
		body = body.Text(filter).Byte(options)
	}
	return rawmqtt.Packet(packets.SUBSCRIBE, 2, body)
}

func (g *Generator) subscriptionIdentifier() int {
	if g.wildly(5) {
		return 0
	}
	return pick(g, 1, 127, 128, 268_435_455)
}

func (g *Generator) unsubscribe() []byte {
	body := rawmqtt.Body(nil).Uint16(g.packetID()).Properties(nil)
	n := pick(g, 1, 1, 2, 10)
	if g.wildly(10) {
		n = 0
	}
	for range n {
		body = body.Text(g.filter())
	}
	return rawmqtt.Packet(packets.UNSUBSCRIBE, 2, body)
}

func (g *Generator) acknowledgement() []byte {
	kind := byte(packets.PUBACK)
	if g.wildly(2) {
		kind = pick[byte](g, packets.PUBREC, packets.PUBREL, packets.PUBCOMP)
	}
	var flags byte
	if kind == packets.PUBREL {
		flags = 2
	}
	body := rawmqtt.Body(nil).Uint16(uint16(g.random.IntN(20)))
	if g.oneIn(3) {
		body = body.Byte(pick[byte](g, 0, 0x10, 0x80, 0x97))
		if g.oneIn(2) {
			body = body.Properties(rawmqtt.Body(nil).User("k", "v"))
		}
	}
	return rawmqtt.Packet(kind, flags, body)
}

func (g *Generator) disconnect() []byte {
	if g.oneIn(3) {
		return rawmqtt.Packet(packets.DISCONNECT, 0, nil)
	}
	return rawmqtt.Packet(packets.DISCONNECT, 0, rawmqtt.Body(nil).Byte(pick[byte](g, 0, 4, 0x81, 1)).
		Properties(rawmqtt.Body{packets.PropSessionExpiryInterval}.Uint32(pick[uint32](g, 0, 1, 3600, 1<<32-1))))
}

// damaged changes a packet as a broken or hostile client would. Most changes leave a correct
// header, so that the code that reads the fields finds the fault.
func (g *Generator) damaged(packet []byte) []byte {
	if len(packet) < 2 {
		return packet // it was damaged already
	}
	switch g.random.IntN(8) {
	case 0: // flags
		packet[0] = packet[0]&0xf0 | byte(g.random.IntN(16))
		return packet
	case 1: // the header itself
		return g.mangled(packet)
	case 2: // another type with the same body
		packet[0] = byte(g.random.IntN(16))<<4 | packet[0]&15
		return packet
	}
	first, body := split(packet)
	switch g.random.IntN(6) {
	case 0: // too short
		body = body[:g.random.IntN(len(body)+1)]
	case 1, 2: // without the end of its last field
		body = body[:max(0, len(body)-1-g.random.IntN(3))]
	case 3: // too long
		body = append(append(rawmqtt.Body(nil), body...), byte(g.random.IntN(256)))
	default:
		body = g.mangled(append(rawmqtt.Body(nil), body...))
	}
	return rawmqtt.Packet(first>>4, first&15, body)
}

// split returns the first byte of a packet, and its body.
func split(packet []byte) (first byte, body rawmqtt.Body) {
	at := 1
	for at < len(packet)-1 && packet[at] >= 0x80 {
		at++
	}
	return packet[0], packet[at+1:]
}

// mangled changes some bytes.
func (g *Generator) mangled(b []byte) []byte {
	for range 1 + g.random.IntN(3) {
		if len(b) == 0 {
			return b
		}
		at := g.random.IntN(len(b))
		if g.oneIn(2) {
			at = g.random.IntN(min(len(b), 24)) // where the lengths are
		}
		switch g.random.IntN(5) {
		case 0:
			b[at] ^= 1 << g.random.IntN(8)
		case 1:
			b[at] = pick[byte](g, 0, 1, 0x7f, 0x80, 0xff)
		case 2:
			b[at] = byte(g.random.IntN(256))
		case 3: // leave some out
			end := min(len(b), at+1+g.random.IntN(8))
			b = append(b[:at:at], b[end:]...)
		case 4: // say some twice
			end := min(len(b), at+1+g.random.IntN(40))
			b = append(b[:end:end], b[at:]...)
		}
	}
	return b
}
