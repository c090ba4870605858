package mqtt

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// encode returns a CONNECT packet as paho writes it.
func encode(t testing.TB, change func(*packets.Connect)) []byte {
	t.Helper()
	connect := packets.NewControlPacket(packets.CONNECT)
	content := connect.Content.(*packets.Connect)
	content.ClientID, content.KeepAlive, content.CleanStart = "gateway-a", 5, true
	content.WillFlag, content.WillQOS, content.WillTopic, content.WillMessage = true, 1, "topic", []byte("message")
	content.WillProperties = &packets.Properties{User: []packets.User{{Key: "__srcId", Value: "gateway-a"}}}
	if change != nil {
		change(content)
	}
	var packet bytes.Buffer
	if _, err := connect.WriteTo(&packet); err != nil {
		t.Fatal(err)
	}
	return packet.Bytes()
}

var testProperties = WillProperties{ContentType: "t", ResponseTopic: "r", CorrelationData: "\x00\x01"}

// testAdded is how they are written.
const testAdded = "\x03\x00\x01t" + "\x08\x00\x01r" + "\x09\x00\x02\x00\x01"

// connectOf writes a CONNECT packet down, piece by piece.
func connectOf(properties, willProperties, rest string) []byte {
	counted := func(text string) string { return string(binary.AppendUvarint(nil, uint64(len(text)))) + text }
	return []byte("\x10" + counted("\x00\x04MQTT\x05\x0E\x00\x05"+counted(properties)+"\x00\x09gateway-a"+counted(willProperties)+rest))
}

func TestAWillIsCompletedAndTheRestOfThePacketStays(t *testing.T) {
	const rest = "\x00\x05topic\x00\x07message"
	user := func(length int) string {
		return "\x26\x00\x01k" + string(binary.BigEndian.AppendUint16(nil, uint16(length))) + strings.Repeat("v", length)
	}
	for _, test := range []struct{ name, properties, will, rest string }{
		{"with a user property", "", user(1), rest},
		{"without properties", "", "", rest},
		{"with credentials behind it", "", user(1), rest + "\x00\x04user\x00\x06secret"},
		{"with properties of the connection", "\x21\x03\xE8", user(1), rest},
		{"so that the length of the packet takes another byte", "", "", "\x00\x05topic\x00\x50" + strings.Repeat("m", 0x50)},
		{"so that the length of its properties takes another byte", "", user(110), rest},
		{"where both lengths take two bytes before", "", user(300), rest},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := testProperties.AddTo(connectOf(test.properties, test.will, test.rest))
			if want := connectOf(test.properties, test.will+testAdded, test.rest); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%q (%v), want\n%q", got, err, want)
			}
		})
	}
}

func TestAPacketThatCannotBeCompletedIsAnError(t *testing.T) {
	whole := encode(t, nil)
	for _, test := range []struct {
		name       string
		packet     []byte
		properties WillProperties
		want       string
	}{
		{"nothing", nil, testProperties, "not a CONNECT packet"},
		{"another packet", []byte{0xC0, 0}, testProperties, "not a CONNECT packet"},
		{"one that is cut short", whole[:len(whole)-1], testProperties, "not a CONNECT packet"},
		{"one without a Will", encode(t, func(c *packets.Connect) { c.WillFlag = false }), testProperties, "has none"},
		{"a property that is too long", whole, WillProperties{ResponseTopic: strings.Repeat("x", 1<<16)}, "property 0x08 has 65536 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := test.properties.AddTo(test.packet); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func FuzzCompleteWill(f *testing.F) {
	f.Add(encode(f, nil))
	f.Add(encode(f, func(c *packets.Connect) { c.UsernameFlag, c.Username = true, "user" }))
	f.Add(encode(f, func(c *packets.Connect) { c.WillMessage = make([]byte, 200) }))
	f.Add([]byte{0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F})
	f.Fuzz(func(t *testing.T, packet []byte) {
		completed, err := testProperties.AddTo(packet)
		if err != nil {
			return
		}
		if !bytes.Contains(completed, []byte(testAdded)) || len(completed) < len(packet)+len(testAdded)-8 {
			t.Errorf("%q became %q", packet, completed)
		}
		// Completed twice, it holds the addition twice: the lengths are right.
		if again, err := testProperties.AddTo(completed); err != nil || !bytes.Contains(again, []byte(testAdded+testAdded)) {
			t.Errorf("%q became %q, then %q (%v)", packet, completed, again, err)
		}
		// And another decoder finds the same in it as before.
		before, err := packets.ReadPacket(bytes.NewReader(packet))
		if err != nil {
			return
		}
		after, err := packets.ReadPacket(bytes.NewReader(completed))
		if err != nil {
			t.Fatalf("%q can be decoded, %q cannot: %v", packet, completed, err)
		}
		want, got := before.Content.(*packets.Connect), after.Content.(*packets.Connect)
		want.WillProperties.ContentType = testProperties.ContentType
		want.WillProperties.ResponseTopic = testProperties.ResponseTopic
		want.WillProperties.CorrelationData = []byte(testProperties.CorrelationData)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q became %q", packet, completed)
		}
	})
}
