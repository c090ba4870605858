package mqtt

import (
	"bytes"
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
		want.ProtocolName, want.ProtocolVersion = "MQTT", Version
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
