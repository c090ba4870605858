package integration_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// docs/protocol.md §1.2: a request fails without a response topic or correlation data, and
// with a QoS other than 1.
func TestProtocol1ARequestThatLacksSomethingIsDroppedAndCounted(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*paho.Publish)
		code   byte // of the PUBACK; 0: there is none
		why    server.DropReason
	}{
		{"no response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "" }, packets.PubackImplementationSpecificError, server.DroppedNoResponse},
		{"no correlation data", func(m *paho.Publish) { m.Properties.CorrelationData = nil }, packets.PubackImplementationSpecificError, server.DroppedNoCorrelation},
		{"a system response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "$SYS/broker" }, packets.PubackTopicNameInvalid, server.DroppedInvalidTopic},
		{"a shared response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "$share/g/clients/p/response" }, packets.PubackTopicNameInvalid, server.DroppedInvalidTopic},
		{"another client's response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "clients/q/response" }, packets.PubackNotAuthorized, server.DroppedForeignTopic},
		{"QoS 0", func(m *paho.Publish) { m.QoS = 0 }, 0, server.DroppedQoS},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log logbuffer.Buffer
			address, s := testsupport.StartServer(t, server.Options{Logger: log.Logger()})
			p, spy := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "spy", nil)
			spy.Subscribe("#")
			request := p.Request("SET", "k", "v")
			test.change(request)
			ack, err := p.Publish(request)
			if test.code == 0 && err != nil || test.code != 0 && (err == nil || ack == nil || ack.ReasonCode != test.code ||
				ack.Properties == nil || ack.Properties.ReasonString != string(test.why)) {
				t.Errorf("PUBACK %+v, %v; want %#x, %q", ack, err, test.code, test.why)
			}
			p.MustGet("k", "")
			if got := s.Stats().Dropped; got[test.why] != 1 || len(got) != 1 {
				t.Errorf("dropped requests are counted as %v", got)
			}
			if text := log.String(); !strings.Contains(text, "client=p") || !strings.Contains(text, string(test.why)) {
				t.Errorf("the log says\n%s", text)
			}
			spy.MustBeSilent()
			if len(spy.Received) > 0 {
				t.Errorf("the spy received %v", await.Receive(spy.Received))
			}
		})
	}
}

// docs/protocol.md §1.1: MQTT 5 only, and QoS 1.
func TestProtocol1AClientOfMQTT311IsRefusedAndARequestWithQoS2EndsItsConnection(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	old := testsupport.NewRaw(t, testsupport.DialTCP(t, address), "old")
	old.WriteString("\x10\x0f\x00\x04MQTT\x04\x02\x02\x58\x00\x03old")
	if connack := old.Read(); string(connack) != "\x20\x02\x00\x01" {
		t.Errorf("CONNACK %x", connack)
	}
	c := testsupport.ConnectPacket{ID: "c"}.Connect(t, address)
	c.Send(rawmqtt.Message{Topic: testsupport.InvokeTopic, QoS: 2, Payload: testsupport.Command("SET", "k", "v")})
	if code := c.MustBeClosed(); code != packets.DisconnectQoSNotSupported {
		t.Errorf("DISCONNECT %#x", code)
	}
	if got := s.Stats().Dropped; got[server.DroppedQoS] != 1 {
		t.Errorf("the requests are counted as %v", got)
	}
	testsupport.Connect(t, address, "observer", nil).MustGet("k", "")
}

func TestARequestThatNamesTheStoresTopicsForItsReplyEndsTheConnection(t *testing.T) {
	for _, topic := range []string{
		testsupport.InvokeTopic,
		testsupport.ReservedPrefix,
		testsupport.ReservedPrefix + "/70/command/notify/6B",
	} {
		for name, change := range map[string]func(*paho.Publish){
			"":                         func(*paho.Publish) {},
			"with QoS 0":               func(m *paho.Publish) { m.QoS = 0 },
			"without correlation data": func(m *paho.Publish) { m.Properties.CorrelationData = nil },
		} {
			t.Run(topic+" "+name, func(t *testing.T) {
				address, s := testsupport.StartServer(t, server.Options{})
				forger, other := testsupport.Connect(t, address, "forger", nil), testsupport.Connect(t, address, "p", nil)
				request := forger.Request("SET", "k", "v")
				request.Properties.ResponseTopic = topic
				change(request)
				go func() { _, _ = forger.Publish(request) }() // never acknowledged
				if reason := forger.MustBeDisconnected(testsupport.ReasonNotAuthorized); reason != string(server.DroppedForbiddenTopic) {
					t.Errorf("the reason is %q", reason)
				}
				other.MustGet("k", "")
				await.Until(func() bool { // the page says why
					return slices.ContainsFunc(s.State().Clients, func(c activity.Client) bool { return c.Reason == activity.ReasonFault })
				})
			})
		}
	}
}

func TestConnackSaysWhatTheServerWants(t *testing.T) {
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{MaxPacketSize: 4096}), "p", func(c *paho.Connect) { c.KeepAlive = 0 })
	if got := p.Connack.Properties.MaximumPacketSize; got == nil || *got != 4096 {
		t.Errorf("maximum packet size %v, want 4096", got)
	}
	if got := p.Connack.Properties.ServerKeepAlive; got == nil || *got != 60 {
		t.Errorf("server keep-alive %v, want 60", got)
	}
	if got := p.Connack.Properties.MaximumQoS; got == nil || *got != 1 {
		t.Errorf("maximum QoS %v, want 1", got)
	}
}
