package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Properties of a Will that paho does not write [MQTT-3.1.3.2].
const (
	propertyContentType     = 0x03
	propertyResponseTopic   = 0x08
	propertyCorrelationData = 0x09
)

// willProperties are what makes a Will on the store's topic a request.
type willProperties struct {
	contentType, responseTopic, correlation string
}

// complete adds the properties to the Will of an encoded CONNECT packet, since paho
// v0.23.0 encodes a Will without them.
func (w willProperties) complete(connect []byte) ([]byte, error) {
	packet := reader{rest: connect}
	header := packet.take(1)
	length := packet.variable()
	if packet.failed || header[0] != packetConnect || length != len(packet.rest) {
		return nil, errors.New("complete the Will: not a CONNECT packet")
	}
	body := packet.rest
	packet.counted() // protocol name
	packet.take(1)   // protocol version
	flags := packet.take(1)
	packet.take(2) // keep alive
	packet.take(packet.variable())
	packet.counted() // client id
	if packet.failed || flags[0]&flagWill == 0 {
		return nil, errors.New("complete the Will: the CONNECT packet has none")
	}
	before := body[:len(body)-len(packet.rest)]
	properties := packet.take(packet.variable())
	if packet.failed {
		return nil, errors.New("complete the Will: its properties are cut short")
	}
	added := []byte{}
	for _, property := range []struct {
		id    byte
		value string
	}{
		{propertyContentType, w.contentType},
		{propertyResponseTopic, w.responseTopic},
		{propertyCorrelationData, w.correlation},
	} {
		if len(property.value) > math.MaxUint16 {
			return nil, fmt.Errorf("complete the Will: property 0x%02X has %d bytes", property.id, len(property.value))
		}
		added = append(added, property.id)
		added = binary.BigEndian.AppendUint16(added, uint16(len(property.value)))
		added = append(added, property.value...)
	}
	completed := append([]byte(nil), before...)
	completed = binary.AppendUvarint(completed, uint64(len(properties)+len(added)))
	completed = append(completed, properties...)
	completed = append(completed, added...)
	completed = append(completed, packet.rest...)
	if len(completed) > maxRemainingLength {
		return nil, fmt.Errorf("complete the Will: the CONNECT packet has %d bytes", len(completed))
	}
	// MQTT's variable byte integer is Go's, within the range checked above.
	return append(binary.AppendUvarint([]byte{packetConnect}, uint64(len(completed))), completed...), nil
}

const (
	packetConnect      = 0x10
	flagWill           = 0x04
	maxRemainingLength = 1<<28 - 1 // [MQTT-1.5.5]
)

// reader takes pieces off a packet. Once there is too little, it has failed and yields
// nothing more.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) take(n int) []byte {
	if r.failed || n > len(r.rest) {
		r.failed = true
		return nil
	}
	piece := r.rest[:n]
	r.rest = r.rest[n:]
	return piece
}

// counted takes a string or binary data, which begins with its length.
func (r *reader) counted() {
	if length := r.take(2); length != nil {
		r.take(int(binary.BigEndian.Uint16(length)))
	}
}

// variable takes a variable byte integer.
func (r *reader) variable() int {
	value, size := binary.Uvarint(r.rest[:min(len(r.rest), 4)])
	if size <= 0 {
		r.failed = true
		return 0
	}
	r.take(size)
	return int(value)
}
