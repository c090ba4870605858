package transport

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			inBubble(t, func(t *testing.T, options Options) {
				_, err := dialTo(t, &pipeBroker{answer: conditions(test.fill)}, "mqtt://broker", options)
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v; want an error about %s", err, test.want)
				}
			})
		})
	}
}

func TestABrokersLongKeepAliveDoesNotKeepADeadConnection(t *testing.T) {
	for name, keepAlive := range map[string]uint16{"ten minutes": 600, "none": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := conditions(func(p *packets.Properties) { p.ServerKeepAlive = &keepAlive })
				b := &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
					return packet.Type == packets.PINGREQ || answer(conn, packet)
				}}
				client := mustDialTo(t, b, Options{KeepAlive: 5 * time.Second})
				time.Sleep(11 * time.Second)
				if got := client.Connection().Connections; got < 2 {
					t.Errorf("%d connections after two keep-alives without an answer; want another", got)
				}
			})
		})
	}
}

func TestABrokersShortKeepAliveIsObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keepAlive, pings := uint16(2), 0
		answer := conditions(func(p *packets.Properties) { p.ServerKeepAlive = &keepAlive })
		b := &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
			if packet.Type == packets.PINGREQ {
				pings++
			}
			return answer(conn, packet)
		}}
		client := mustDialTo(t, b, Options{KeepAlive: 20 * time.Second})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if pings < 5 || client.Connection().Connections != 1 {
			t.Errorf("%d pings and %d connections in five keep-alives", pings, client.Connection().Connections)
		}
	})
}
