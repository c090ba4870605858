// Package packetfuzz_test sends a server MQTT 5 packets that are right, or nearly, from a seed.
//
// Random bytes seldom get past the first check of a decoder. So a generator knows the
// fields and the properties of each type of packet, and draws their values from small pools:
// packets of different connections meet on the same topics, keys and client ids. Some of the
// packets are then damaged, in a field or in their bytes. `make fuzz-server` runs it under the race
// detector.
package packetfuzz_test

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// A generator makes packets. The same seed makes the same ones in the same order. It serves
// one goroutine.
type generator struct {
	random *rand.Rand
	own    string // a client id that no other generator has
	id     string // the client id of the last login
	// wild connections break rules. A server ends them soon, so the others keep to the
	// rules, and go further.
	wild bool
}

// newGenerator returns a generator.
func newGenerator(seed uint64) *generator {
	return &generator{own: "own-" + strconv.FormatUint(seed, 36), random: rand.New(rand.NewPCG(seed, 0x7e47))}
}

// clients are the client ids that take turns. The hex of "p" is "70".
var clients = []string{"a", "b", "p", "70", "C2", "long-" + strings.Repeat("x", 60), ""}

// oneIn reports true once in n times.
func (g *generator) oneIn(n int) bool { return g.random.IntN(n) == 0 }

// wildly is oneIn on wild connections, and false on others.
func (g *generator) wildly(n int) bool { return g.wild && g.oneIn(n) }

func pick[T any](g *generator, from ...T) T { return from[g.random.IntN(len(from))] }

// tamely picks from values, and once in n times on wild connections from others.
func tamely[T any](g *generator, n int, values, wild []T) T {
	if g.wildly(n) {
		return pick(g, wild...)
	}
	return pick(g, values...)
}

// chance returns a number from 0 to n-1, for what else the user of a generator decides.
func (g *generator) chance(n int) int { return g.random.IntN(n) }

// A property has the encoded forms of a property that a packet may have.
type property []rawmqtt.Body

// properties returns some of a list.
func (g *generator) properties(list []property) (chosen rawmqtt.Body) {
	for _, forms := range list {
		if g.oneIn(4) {
			chosen = append(chosen, pick(g, forms...)...)
		}
	}
	return chosen
}

func numbers(id byte, values ...uint32) (forms property) {
	for _, value := range values {
		forms = append(forms, rawmqtt.Body{id}.Uint32(value))
	}
	return forms
}

func shorts(id byte, values ...uint16) (forms property) {
	for _, value := range values {
		forms = append(forms, rawmqtt.Body{id}.Uint16(value))
	}
	return forms
}

func manyUsers(counts ...int) (forms property) {
	for _, n := range counts {
		forms = append(forms, bytes.Repeat(rawmqtt.Body(nil).User("name", "value"), n))
	}
	return forms
}

func identifiers(values ...int) (forms property) {
	for _, value := range values {
		forms = append(forms, rawmqtt.Body{packets.PropSubscriptionIdentifier}.Variable(value))
	}
	return forms
}

var (
	loginProperties = []property{
		numbers(packets.PropSessionExpiryInterval, 0, 1, 1, 3600, 1<<32-1),
		shorts(packets.PropReceiveMaximum, 1, 2, 100, 65535),
		numbers(packets.PropMaximumPacketSize, 1, 50, 400, 1<<20),
		shorts(packets.PropTopicAliasMaximum, 10),
		{{packets.PropRequestProblemInfo, 0}, {packets.PropRequestProblemInfo, 1}},
		manyUsers(1),
	}
	messageProperties = []property{
		numbers(packets.PropMessageExpiry, 0, 1, 10, 1<<32-1),
		{rawmqtt.Body{packets.PropContentType}.Text("application/octet-stream")},
		{{packets.PropPayloadFormat, 0}, {packets.PropPayloadFormat, 1}},
		manyUsers(1, 2, 30, 64, 65, 200),
	}
	subscribeProperties = []property{identifiers(1, 127, 128, 268_435_455), manyUsers(1)}
	// wildProperties are those that a server refuses.
	wildProperties = []property{
		{rawmqtt.Body{packets.PropAuthMethod}.Text("K8S-SAT")}, shorts(packets.PropTopicAlias, 0, 1, 65535), identifiers(0, 5),
	}
)

// requestProperties are those of a request to the store, and often of other messages.
func (g *generator) requestProperties() rawmqtt.Body {
	topic := protocol.ResponseTopic(g.id)
	if g.oneIn(6) {
		topic = g.topic()
	}
	var b rawmqtt.Body
	if !g.oneIn(20) {
		b = b.Byte(packets.PropResponseTopic).Text(topic)
	}
	if !g.oneIn(20) {
		b = b.Byte(packets.PropCorrelationData).Text(pick(g, "0123456789abcdef", "0123456789abcdeg", strconv.Itoa(g.random.IntN(1_000)), strings.Repeat("c", 3_000)))
	}
	for _, name := range []string{protocol.PropertyTimestamp, protocol.PropertyFencingToken} {
		if g.oneIn(4) {
			b = b.User(name, g.timestamp())
		}
	}
	if g.oneIn(10) {
		b = b.User(protocol.PropertyStore, "another")
	}
	return append(b, g.messageProperties()...)
}

func (g *generator) messageProperties() rawmqtt.Body {
	list := g.properties(messageProperties)
	if g.wildly(20) {
		list = append(list, g.properties(wildProperties)...)
	}
	return list
}

// timestamp returns a hybrid logical clock as text, far from now or not one at times.
func (g *generator) timestamp() string {
	wall := pick(g, "1000000000000", "1700000000000", "9000000000000000", "-1", "x")
	return wall + ":" + strconv.Itoa(g.random.IntN(3)) + ":" + pick(g, "a", "b", "StateStore")
}

// login returns a CONNECT, which is damaged less often than other packets: all that follows
// depends on it.
func (g *generator) login() []byte {
	g.id, g.wild = g.own, g.oneIn(2)
	if g.oneIn(2) {
		g.id = pick(g, clients...)
	}
	connect := rawmqtt.Login{
		ID: g.id, KeepAlive: pick[uint16](g, 0, 1, 60, 65535), Resume: g.oneIn(2), Properties: g.properties(loginProperties),
	}
	if g.oneIn(3) {
		connect.User = "user"
		connect.Password = pick(g, "", "password")
	}
	if g.oneIn(3) {
		connect.Will = &rawmqtt.Message{
			Topic: pick(g, protocol.InvokeTopic, "a/b", g.topic()), QoS: g.qos(), Retain: g.wildly(4), Payload: g.command(),
			Properties: append(g.requestProperties(), g.properties([]property{numbers(packets.PropWillDelayInterval, 0, 1, 60)})...),
		}
	}
	packet := connect.Packet()
	if g.wildly(8) { // the version, which follows the name, is right for another form
		packet = []byte(strings.Replace(string(packet), "MQTT\x05", "MQTT"+pick(g, "\x03", "\x04", "\x06", "\x84"), 1))
	}
	if g.wildly(6) {
		packet = g.damaged(packet)
	}
	return packet
}

// packet returns a packet as a client sends it after its login, or what a damaged client
// might.
func (g *generator) packet() []byte {
	packet := g.valid()
	if g.wildly(4) {
		packet = g.damaged(packet)
	}
	return packet
}

func (g *generator) valid() []byte {
	n := g.random.IntN(100)
	if !g.wild {
		n = g.random.IntN(94)
	}
	switch {
	case n < 55:
		return g.message(n < 30)
	case n < 72:
		return g.subscribe()
	case n < 82:
		return g.unsubscribe()
	case n < 90:
		return g.acknowledgement()
	case n < 94:
		return rawmqtt.Packet(packets.PINGREQ, 0, nil)
	case n < 96:
		return rawmqtt.Packet(packets.DISCONNECT, 0, pick(g, nil, rawmqtt.Body(nil).Byte(pick[byte](g, 0, 4, 0x81, 1)).
			Properties(g.properties(loginProperties[:1]))))
	case n < 97:
		return g.login()
	case n < 98:
		return rawmqtt.Packet(packets.AUTH, 0, rawmqtt.Body(nil).Byte(0x19).Properties(rawmqtt.Body{packets.PropAuthMethod}.Text("K8S-SAT")))
	default: // what only a server sends
		return rawmqtt.Packet(pick[byte](g, 0, packets.CONNACK, packets.SUBACK, packets.UNSUBACK, packets.PINGRESP), byte(g.random.IntN(16)),
			rawmqtt.Body(nil).Uint16(g.packetID()).Properties(nil).Byte(0))
	}
}

func (g *generator) packetID() uint16 { return pick[uint16](g, 1, 1, 2, 3, 4, 100, 65535) }

// qos is 1 mostly, and 2 on wild connections only: the server takes no more than 1.
func (g *generator) qos() byte { return tamely(g, 8, []byte{0, 1, 1, 1, 1, 1}, []byte{2, 2, 3}) }

// message returns a request to the store, or another message.
func (g *generator) message(request bool) []byte {
	m := rawmqtt.Message{
		Topic: protocol.InvokeTopic, QoS: g.qos(), ID: g.packetID(), Retain: g.wildly(5),
		Properties: g.requestProperties(), Payload: g.command(),
	}
	if !request {
		m.Topic, m.Payload = g.topic(), make([]byte, pick(g, 0, 1, 10, 500, 5_000, 60_000))
		m.QoS &= byte(g.random.IntN(4))
	}
	if !request && !g.oneIn(6) {
		m.Properties = g.messageProperties()
	}
	packet := m.Packet()
	if m.QoS == 1 && g.oneIn(10) || g.wildly(20) {
		packet[0] |= 0x08 // sent again
	}
	return packet
}

// topic returns the name of a topic, mostly one that may be published to.
func (g *generator) topic() string {
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

func (g *generator) level() string { return pick(g, "a", "b", "c", "1", "2") }

// filter returns what a client might subscribe to.
func (g *generator) filter() string {
	levels := strings.Split(g.topic(), "/")
	for range g.random.IntN(3) {
		levels[g.random.IntN(len(levels))] = "+"
	}
	if g.oneIn(4) {
		levels[len(levels)-1] = "#"
	}
	if g.wildly(8) {
		levels[g.random.IntN(len(levels))] = pick(g, "#", "+x")
	}
	filter := strings.Join(levels, "/")
	switch g.random.IntN(12) {
	case 0:
		return pick(g, "#", "+/#", protocol.NotifyFilter(g.id))
	case 1:
		return pick(g, "$share/", "$SHARE/", "$Share/") + tamely(g, 3, []string{"g", "h"}, []string{"", "+", "a/b"}) + "/" + filter
	}
	return filter
}

func (g *generator) subscribe() []byte {
	body := rawmqtt.Body(nil).Uint16(g.packetID()).Properties(g.properties(subscribeProperties))
	for range tamely(g, 10, []int{1, 1, 1, 2, 3, 50, 101}, []int{0}) {
		options := pick[byte](g, 0, 1, 2) | pick[byte](g, 0, 0, 0x04) | pick[byte](g, 0, 0, 0x08) | pick[byte](g, 0, 0, 0x10, 0x20)
		if g.wildly(20) {
			options = byte(g.random.IntN(256))
		}
		body = body.Text(g.filter()).Byte(options)
	}
	return rawmqtt.Packet(packets.SUBSCRIBE, 2, body)
}

func (g *generator) unsubscribe() []byte {
	body := rawmqtt.Body(nil).Uint16(g.packetID()).Properties(nil)
	for range tamely(g, 10, []int{1, 1, 2, 10}, []int{0}) {
		body = body.Text(g.filter())
	}
	return rawmqtt.Packet(packets.UNSUBSCRIBE, 2, body)
}

func (g *generator) acknowledgement() []byte {
	kind := tamely(g, 2, []byte{packets.PUBACK}, []byte{packets.PUBREC, packets.PUBREL, packets.PUBCOMP})
	var flags byte
	if kind == packets.PUBREL {
		flags = 2
	}
	body := rawmqtt.Body(nil).Uint16(uint16(g.random.IntN(20)))
	if g.oneIn(3) {
		body = body.Byte(pick[byte](g, 0, 0x10, 0x80, 0x97)).Properties(g.properties(subscribeProperties[1:]))
	}
	return rawmqtt.Packet(kind, flags, body)
}

func (g *generator) key() string { return pick(g, "k1", "k2", "k3", "locks/1", "", "\x00\xff") }

// command returns the payload of a request to the store.
func (g *generator) command() []byte {
	key, value := g.key(), pick(g, "v", "w", g.id, g.id+":1", strings.Repeat("v", 5_000))
	words := pick(g, []string{protocol.VerbSet, key, value}, []string{protocol.VerbSet, key, value}, []string{protocol.VerbGet, key},
		[]string{protocol.VerbDel, key}, []string{protocol.VerbVDel, key, value}, []string{protocol.VerbKeyNotify, key})
	for range g.random.IntN(4) {
		switch {
		case words[0] == protocol.VerbSet:
			ttl := pick(g, "1", "5", "100", "60000", "0", "-1", "9223372036854775807", "x")
			words = append(words, pick(g, []string{protocol.OptionNX}, []string{protocol.OptionNEX}, []string{protocol.OptionPX, ttl}, []string{"GET"})...)
		case words[0] == protocol.VerbKeyNotify && g.oneIn(4):
			words = append(words, protocol.OptionStop)
		}
	}
	payload := resp3.AppendCommand(nil, words...)
	if g.oneIn(10) {
		payload = g.mangled(payload)
	}
	return payload
}

// damaged changes a packet as a broken or hostile client would. Most changes leave a correct
// header, so that the code that reads the fields finds the fault.
func (g *generator) damaged(packet []byte) []byte {
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
	at := 1 // of the body
	for at < len(packet)-1 && packet[at] >= 0x80 {
		at++
	}
	body := append(rawmqtt.Body(nil), packet[at+1:]...)
	switch g.random.IntN(6) {
	case 0: // too short
		body = body[:g.random.IntN(len(body)+1)]
	case 1, 2: // without the end of its last field
		body = body[:max(0, len(body)-1-g.random.IntN(3))]
	case 3: // too long
		body = append(body, byte(g.random.IntN(256)))
	default:
		body = g.mangled(body)
	}
	return rawmqtt.Packet(packet[0]>>4, packet[0]&15, body)
}

// mangled changes some bytes.
func (g *generator) mangled(b []byte) []byte {
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
