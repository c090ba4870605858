package mqtt

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// willing is a CONNECT with a Will.
func willing(change func(*packets.Connect)) *packets.Connect {
	connect := &packets.Connect{
		ClientID: "gateway-a", KeepAlive: 5, CleanStart: true, Properties: &packets.Properties{},
		WillFlag: true, WillQOS: 1, WillTopic: "topic", WillMessage: []byte("message"),
		WillProperties: &packets.Properties{ContentType: "t", ResponseTopic: "r", CorrelationData: []byte{0, 1}},
	}
	if change != nil {
		change(connect)
	}
	return connect
}

// connectOf writes a CONNECT packet down, piece by piece.
func connectOf(properties, willProperties, rest string) []byte {
	counted := func(text string) string { return string(binary.AppendUvarint(nil, uint64(len(text)))) + text }
	return []byte("\x10" + counted("\x00\x04MQTT\x05\x0E\x00\x05"+counted(properties)+"\x00\x09gateway-a"+counted(willProperties)+rest))
}

func TestAWillHasAllItsPropertiesAndTheRestOfThePacketStays(t *testing.T) {
	const rest, will = "\x00\x05topic\x00\x07message", "\x03\x00\x01t" + "\x08\x00\x01r" + "\x09\x00\x02\x00\x01"
	value := strings.Repeat("v", 300)
	user := []packets.User{{Key: "k", Value: value}}
	const encodedUser = "\x26\x00\x01k\x01\x2C"
	maximum := uint16(1000)
	for _, test := range []struct {
		name                   string
		change                 func(*packets.Connect)
		properties, will, rest string
	}{
		{"alone", nil, "", will, rest},
		{"with a user property", func(c *packets.Connect) { c.WillProperties.User = user }, "", will + encodedUser + value, rest},
		{"with properties of the connection", func(c *packets.Connect) { c.Properties.ReceiveMaximum = &maximum }, "\x21\x03\xE8", will, rest},
		{"with long properties of the connection", func(c *packets.Connect) { c.Properties.User = user }, encodedUser + value, will, rest},
		{"with a long message", func(c *packets.Connect) { c.WillMessage = []byte(value) }, "", will, "\x00\x05topic\x01\x2C" + value},
		{"without properties", func(c *packets.Connect) { c.WillProperties = nil }, "", "", rest},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := encodeConnect(willing(test.change))
			if want := connectOf(test.properties, test.will, test.rest); !bytes.Equal(got, want) {
				t.Errorf("%q, want\n%q", got, want)
			}
		})
	}
}

// Another decoder finds in the packet what was put into it.
func FuzzConnect(f *testing.F) {
	f.Add("gateway-a", "user", "type", "response", "message", uint16(5), true)
	f.Add("", "", "", "", strings.Repeat("m", 200), uint16(0), false)
	f.Add(strings.Repeat("c", 300), strings.Repeat("u", 300), "", strings.Repeat("r", 300), "", uint16(60), true)
	f.Fuzz(func(t *testing.T, client, user, content, response, message string, keepAlive uint16, will bool) {
		if max(len(client), len(user), len(content), len(response), len(message)) > 1<<16-1 {
			return
		}
		connect := willing(func(c *packets.Connect) {
			c.ClientID, c.KeepAlive, c.Username, c.UsernameFlag = client, keepAlive, user, user != ""
			c.Properties.User = []packets.User{{Key: "k", Value: user}}
			c.WillProperties.User = c.Properties.User
			c.WillProperties.ContentType, c.WillProperties.ResponseTopic = content, response
			if c.WillMessage = []byte(message); !will {
				c.WillFlag, c.WillQOS, c.WillTopic, c.WillMessage, c.WillProperties = false, 0, "", nil, nil
			}
		})
		want := *connect
		want.ProtocolName, want.ProtocolVersion = "MQTT", Version5
		got, err := packets.ReadPacket(bytes.NewReader(encodeConnect(connect)))
		if err != nil {
			t.Fatal(err)
		}
		if len(want.WillMessage) == 0 {
			want.WillMessage, got.Content.(*packets.Connect).WillMessage = nil, nil
		}
		if !reflect.DeepEqual(got.Content, &want) {
			t.Errorf("%+v became %+v", &want, got.Content)
		}
	})
}
