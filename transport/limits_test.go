package transport

import (
	"net"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// conditions returns an answer to CONNECT with what fill says; all else is the broker's.
func conditions(fill func(*packets.Properties)) func(net.Conn, *packets.ControlPacket) bool {
	return func(conn net.Conn, packet *packets.ControlPacket) bool {
		if packet.Type != packets.CONNECT {
			return false
		}
		send(conn, packets.CONNACK, func(p *packets.Connack) { fill(p.Properties) })
		return true
	}
}

func TestABrokerThatTakesNoRequestsIsNotConnectedTo(t *testing.T) {
	for _, test := range []struct {
		name string
		fill func(*packets.Properties)
		want string
	}{
		{"nothing of QoS 1", func(p *packets.Properties) { p.MaximumQOS = new(byte) }, "QoS 1"},
		{"nothing to acknowledge", func(p *packets.Properties) { p.ReceiveMaximum = new(uint16) }, "Receive Maximum"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, options Options) {
				_, err := dialTo(t, &pipeBroker{answer: conditions(test.fill)}, "mqtt://broker", options)
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v; want an error about %s", err, test.want)
				}
			})
		})
	}
}
