package transport

import (
	"bytes"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/paho"
)

func TestThePacketSizeIsThatOfTheEncodedPacket(t *testing.T) {
	expiry := uint32(7)
	for _, payload := range []int{0, 1, 100, 127, 128, 1 << 14, 1 << 21} {
		for _, property := range []int{0, 1, 60, 127, 1 << 14} {
			for _, expires := range []*uint32{nil, &expiry} {
				long := strings.Repeat("v", property)
				publish := &paho.Publish{
					QoS: 1, Topic: "topic", Payload: make([]byte, payload),
					Properties: &paho.PublishProperties{
						ResponseTopic: long, CorrelationData: []byte(long), ContentType: "c", MessageExpiry: expires,
						User: paho.UserProperties{{Key: "k", Value: long}, {Key: "", Value: ""}},
					},
				}
				var encoded bytes.Buffer
				if _, err := publish.Packet().WriteTo(&encoded); err != nil {
					t.Fatal(err)
				}
				if got := packetSize(publish); got != encoded.Len() {
					t.Errorf("payload of %d, properties of %d, expires: %t: %d, want %d", payload, property, expires != nil, got, encoded.Len())
				}
			}
		}
	}
}
