package server_test

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Few clients show the reason in a DISCONNECT, so the log of the server has it too.
func TestTheLogSaysForWhatAClientWasDisconnected(t *testing.T) {
	for name, test := range map[string]struct {
		packet []byte
		reason string
	}{
		"a retained message": {
			rawmqtt.Message{Topic: "t", QoS: 1, ID: 7, Retain: true}.Packet(),
			"this server retains no messages: publish without the retain flag, or start the server with --retain (Options.Retain)",
		},
		"QoS 2": {
			rawmqtt.Message{Topic: "t", QoS: 2, ID: 7}.Packet(),
			"this server has no QoS 2: publish with QoS 1",
		},
		"a filter with too many levels": {
			rawmqtt.SubscribeTo(7, 0, strings.Repeat("a/", 70)),
			"SUBSCRIBE: a topic filter has more than 64 levels (MQTT reason code 0x8F)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(syncBuffer)
			address := start(t, server.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
			c := rawTo(t, address, "c")
			c.write(test.packet)
			if _, err := io.ReadAll(c.input); err != nil {
				t.Fatal(err)
			}
			want := `level=WARN msg="ended a connection for what its client sent" client=c remote=` + c.conn.LocalAddr().String() + ` reason="` + test.reason + `"`
			eventually(t, "the log has: "+want, func() bool { return strings.Contains(log.String(), want) })
		})
	}
}
