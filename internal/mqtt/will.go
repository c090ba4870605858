package mqtt

import (
	"errors"
	"fmt"
	"slices"

	"github.com/eclipse/paho.golang/packets"
)

// WillProperties are the properties that make a Will on the store's topic a request
// [MQTT-3.1.3.2]. paho v0.23.0 encodes a Will without them.
type WillProperties struct {
	ContentType, ResponseTopic, CorrelationData string
}

// AddTo returns a copy of a whole CONNECT packet with the properties added to its Will.
func (p WillProperties) AddTo(connect []byte) ([]byte, error) {
	before, properties, after, err := splitWill(connect)
	if err != nil {
		return nil, fmt.Errorf("complete the Will: %w", err)
	}
	var added []byte
	for _, property := range []struct {
		id    byte
		value string
	}{
		{packets.PropContentType, p.ContentType},
		{packets.PropResponseTopic, p.ResponseTopic},
		{packets.PropCorrelationData, p.CorrelationData},
	} {
		if len(property.value) > maxString {
			return nil, fmt.Errorf("complete the Will: property 0x%02X has %d bytes", property.id, len(property.value))
		}
		added = appendString(append(added, property.id), property.value)
	}
	length := AppendVariable(nil, len(properties)+len(added))
	body := slices.Concat(before, length, properties, added, after)
	if len(body) > maxRemaining {
		return nil, fmt.Errorf("complete the Will: the CONNECT packet has %d bytes", len(body))
	}
	return append(AppendVariable([]byte{packets.CONNECT << 4}, len(body)), body...), nil
}

// splitWill cuts the body of a CONNECT packet into what is before the length of the Will's
// properties, the properties, and what is after them.
func splitWill(connect []byte) (before, properties, after []byte, err error) {
	if len(connect) == 0 || connect[0] != packets.CONNECT<<4 {
		return nil, nil, nil, errors.New("not a CONNECT packet")
	}
	in := Reader(connect[1:])
	if length, ok := in.Variable(); !ok || length != len(in) {
		return nil, nil, nil, errors.New("not a CONNECT packet")
	}
	body := []byte(in)
	var own, will Properties
	_, named := in.Binary() // protocol name
	_, versioned := in.Byte()
	flags, flagged := in.Byte()
	_, kept := in.Uint16() // keep alive
	refusal := own.Begin(&in, 0, 0, nil)
	_, identified := in.Binary()
	const hasWill = 0x04
	if !named || !versioned || !flagged || !kept || refusal != nil || !identified || flags&hasWill == 0 {
		return nil, nil, nil, errors.New("the CONNECT packet has none")
	}
	before = body[:len(body)-len(in)]
	if will.Begin(&in, 0, 0, nil) != nil {
		return nil, nil, nil, errors.New("its properties are cut short")
	}
	return before, will.All(), in, nil
}
