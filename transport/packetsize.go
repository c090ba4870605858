package transport

import (
	"math"

	"github.com/eclipse/paho.golang/paho"
)

// maxPacket returns how many bytes a packet may have for the broker.
func maxPacket(connack *paho.Connack) int {
	if connack.Properties == nil || connack.Properties.MaximumPacketSize == nil {
		return maxRemainingLength // the limit of MQTT itself, almost
	}
	return int(min(*connack.Properties.MaximumPacketSize, math.MaxInt32))
}

// packetSize returns the length of a request's PUBLISH packet as it is encoded
// [MQTT-3.3], without encoding it.
func packetSize(publish *paho.Publish) int {
	properties := publish.Properties
	size := binaryProperty(len(properties.ResponseTopic)) +
		binaryProperty(len(properties.CorrelationData)) +
		binaryProperty(len(properties.ContentType))
	if properties.MessageExpiry != nil {
		size += 1 + 4
	}
	for _, user := range properties.User {
		size += 1 + 2 + len(user.Key) + 2 + len(user.Value)
	}
	size += variableLength(size)
	size += 2 + len(publish.Topic) + 2 + len(publish.Payload)
	return 1 + variableLength(size) + size
}

// binaryProperty returns the length of a property with a string or binary data; an
// empty one is left out.
func binaryProperty(length int) int {
	if length == 0 {
		return 0
	}
	return 1 + 2 + length
}

// variableLength returns the length of a variable byte integer [MQTT-1.5.5].
func variableLength(value int) int {
	length := 1
	for ; value > 127; value >>= 7 {
		length++
	}
	return length
}
