package transport

import (
	"context"
	"errors"
	"math"
	"net"

	"github.com/eclipse/paho.golang/paho"
)

// usable returns why no request could travel to a broker that sets such conditions. It
// would end the connection with the first one [MQTT-3.2.2-11], again and again.
func usable(connack *paho.Connack) error {
	conditions := connack.Properties
	switch {
	case conditions == nil:
	case conditions.MaximumQoS != nil && *conditions.MaximumQoS == 0:
		return errors.New("the broker takes nothing with QoS 1, as requests have: let it (Maximum QoS)")
	case conditions.ReceiveMaximum != nil && *conditions.ReceiveMaximum == 0:
		return errors.New("the broker announces a Receive Maximum of 0, which MQTT forbids")
	}
	return nil
}

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

// pinger is paho's, but for a broker that wants a longer keep-alive than we do, or none:
// it may, and a dead connection is to be noticed all the same.
type pinger struct {
	*paho.DefaultPinger
	keepAlive uint16
}

// Run implements paho.Pinger.
func (p *pinger) Run(ctx context.Context, conn net.Conn, keepAlive uint16) error {
	if keepAlive == 0 || keepAlive > p.keepAlive {
		keepAlive = p.keepAlive
	}
	return p.DefaultPinger.Run(ctx, conn, keepAlive)
}
