package transport

import (
	"math"

	"github.com/eclipse/paho.golang/paho"
)

// maxPacket returns how many bytes a packet may have for the broker [MQTT-3.2.2-15].
func maxPacket(connack *paho.Connack) int {
	if connack.Properties == nil || connack.Properties.MaximumPacketSize == nil {
		return math.MaxInt32 // MQTT's own limit is lower
	}
	return int(min(*connack.Properties.MaximumPacketSize, math.MaxInt32))
}

// receiveMaximumOf returns how many requests the broker takes before it has acknowledged
// the first of them [MQTT-3.3.4-7].
func receiveMaximumOf(connack *paho.Connack) int {
	if connack.Properties == nil || connack.Properties.ReceiveMaximum == nil {
		return math.MaxUint16
	}
	return int(*connack.Properties.ReceiveMaximum)
}
