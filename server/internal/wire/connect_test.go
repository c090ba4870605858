package wire_test

import (
	"reflect"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// [MQTT-3.1.2, MQTT-3.1.3]
func TestAConnectIsDecoded(t *testing.T) {
	const any = 1 + 4 + mqtt.MaxRemaining
	for _, test := range []struct {
		name, packet string
		want         wire.Connect
		expiry, most uint32
	}{
		{"MQTT 5", connect5, wire.Connect{ClientID: "c", KeepAlive: 9, CleanStart: true}, 9, any},
		{"without a client id", packet(0x10, start(5, 0), properties(), text("")), wire.Connect{KeepAlive: 9}, 0, any},
		{"properties", packet(0x10, start(5, 0), properties("\x21\x00\x07", "\x27\x00\x00\x01\x00", "\x11\x00\x00\x00\x05"), text("c")),
			wire.Connect{ClientID: "c", KeepAlive: 9, ReceiveMaximum: 7}, 5, 256},
		{"a password without a user name", packet(0x10, start(5, 0x40), properties(), text("c"), text("")),
			wire.Connect{ClientID: "c", KeepAlive: 9, Password: []byte{}}, 0, any},
		{"all", packet(0x10, start(5, 0xc2), properties(), text("c"), text("alice"), text("secret")), wire.Connect{
			ClientID: "c", KeepAlive: 9, CleanStart: true, User: "alice", Password: []byte("secret"),
		}, 0, any},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := open(t, test.packet)
			if !reflect.DeepEqual(*g.Connect, test.want) || g.SessionExpiry != test.expiry || g.Maximum != test.most {
				t.Errorf("%+v, session for %d s, packets of %d bytes\nwant %+v, %d, %d", *g.Connect, g.SessionExpiry, g.Maximum, test.want, test.expiry, test.most)
			}
		})
	}
}

// [MQTT-3.1.3.2]: the properties of a Will are those of the message.
func TestAWillIsDecodedAsTheMessageThatItWillBe(t *testing.T) {
	kept := "\x01\x01" + "\x03" + text("type") + user("a", "b")
	g := open(t, will(0x28, properties("\x18\x00\x00\x00\x05", "\x02\x00\x00\x00\x07", kept), "gone", "payload"))
	w := g.Connect.Will
	value, _ := w.User("a")
	if w.QoS != 1 || !w.Retain || string(w.Topic) != "gone" || string(w.Payload) != "payload" || w.WillDelay != 5 || w.MessageExpiry != 7 || string(value) != "b" {
		t.Errorf("%+v, user property %q", w, value)
	}
	if forwarded := wire.AppendForwarded(nil, w); string(forwarded) != kept {
		t.Errorf("it is published with %q, want %q", forwarded, kept)
	}
}

// [MQTT-3.14.2]: a DISCONNECT has a reason, and may change how long the session is kept.
func TestADisconnectIsDecoded(t *testing.T) {
	for _, test := range []struct {
		name, connect, packet string
		left                  byte
		expiry                uint32
	}{
		{"without a reason", connect5, packet(0xe0), 0, 9},
		{"with a Will", connect5, packet(0xe0, "\x04"), 4, 9},
		{"with another expiry", connect5, packet(0xe0, "\x04", properties("\x11\x00\x00\x00\x03")), 4, 3},
		{"with no session", connect5, packet(0xe0, "\x00", properties("\x11\x00\x00\x00\x00")), 0, 0},
	} {
		if g := open(t, test.connect, test.packet); g.Left != test.left || g.SessionExpiry != test.expiry {
			t.Errorf("%s: reason 0x%02x, session for %d s; want 0x%02x, %d", test.name, g.Left, g.SessionExpiry, test.left, test.expiry)
		}
	}
}

// [MQTT-3.2.2]
func TestAConnackFitsTheClient(t *testing.T) {
	quota := &mqtt.Refusal{Code: mqtt.QuotaExceeded, Reason: "full"}
	maximum := uint16(7)
	announced := &packets.Properties{ReceiveMaximum: &maximum}
	small := packet(0x10, start(5, 2), properties("\x27\x00\x00\x00\x07"), text("c"))
	for _, test := range []struct {
		name, connect     string
		present, fits     bool
		accepted, refused string
	}{
		{"MQTT 5", connect5, false, true, packet(0x20, "\x00\x00", properties("\x21\x00\x07")), packet(0x20, "\x00\x97", properties("\x1f", text("full")))},
		{"MQTT 5 with a session", connect5, true, true, packet(0x20, "\x01\x00", properties("\x21\x00\x07")), packet(0x20, "\x00\x97", properties("\x1f", text("full")))},
		{"a client that takes 7 bytes", small, false, false, packet(0x20, "\x00\x00", properties("\x21\x00\x07")), packet(0x20, "\x00\x97", properties())},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := open(t, test.connect)
			if got, fits := g.AppendAccepted(nil, test.present, announced); string(got) != test.accepted || fits != test.fits {
				t.Errorf("accepted with %q, which fits: %t; want %q, %t", got, fits, test.accepted, test.fits)
			}
			if got := g.AppendRefused(nil, quota, ""); string(got) != test.refused {
				t.Errorf("refused with %q, want %q", got, test.refused)
			}
		})
	}
	// The words go first where there is no space.
	referral := &mqtt.Refusal{Code: mqtt.UseAnotherServer, Reason: "because"}
	whole := packet(0x20, "\x00\x9c", properties("\x1c", text("b:1883"), "\x1f", text("because")))
	short := packet(0x20, "\x00\x9c", properties("\x1c", text("b:1883")))
	for size, want := range map[int]string{len(whole): whole, len(whole) - 1: short, len(short) - 1: "\x20\x03\x00\x9c\x00"} {
		g := open(t, packet(0x10, start(5, 2), properties("\x27\x00\x00\x00"+string(rune(size))), text("c")))
		if got := g.AppendRefused(nil, referral, "b:1883"); string(got) != want {
			t.Errorf("a referral in %d bytes: %q, want %q", size, got, want)
		}
	}
}
