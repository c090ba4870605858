package server_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
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
			log := new(testsupport.LogBuffer)
			address := testsupport.Start(t, server.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
			c := testsupport.DialRaw(t, address, "c")
			c.Write(test.packet)
			if _, err := io.ReadAll(c.Input); err != nil {
				t.Fatal(err)
			}
			want := `level=WARN msg="ended a connection for what its client sent" client=c remote=` + c.Conn.LocalAddr().String() + ` reason="` + test.reason + `"`
			testsupport.Eventually(t, "the log has: "+want, func() bool { return strings.Contains(log.String(), want) })
		})
	}
}

func TestTheLogSaysThatAClientSpeaksTLSWhereThereIsNone(t *testing.T) {
	log := new(testsupport.LogBuffer)
	address := testsupport.Start(t, server.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}); err == nil {
		_ = conn.Close()
		t.Fatal("there is TLS")
	}
	testsupport.Eventually(t, "the log says it", func() bool {
		return strings.Contains(log.String(), `reason="CONNECT: its flags are reserved: the client speaks TLS to an address that has none (MQTT reason code 0x81)"`)
	})
}

// SUBACK has no more than a code for each filter.
func TestTheLogSaysWhyASubscriptionIsRefused(t *testing.T) {
	log := new(testsupport.LogBuffer)
	address := testsupport.Start(t, server.Options{Limits: server.Limits{Subscriptions: 2}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	c := testsupport.DialRaw(t, address, "c") // and one to its response topic
	for _, test := range []struct{ filter, reason string }{
		{"$SYS/#", "nothing is published on topics that begin with $"},
		{"clients/other/response", "the client may not read these topics"},
		{"$share/g/#", "the client may not read every topic that the shared filter matches: a/# matches a too, # and + match clients/, and topics that begin with $ are not published"},
		{"a", ""},
		{"b", "the client has as many subscriptions as it may have: Options.Limits.Subscriptions, --max-subscriptions"},
	} {
		c.Write(rawmqtt.SubscribeTo(7, 0, test.filter))
		c.Read()
		want := `level=WARN msg="refused a subscription" client=c remote=` + c.Conn.LocalAddr().String() + ` filter=` + test.filter + ` reason="` + test.reason + `"`
		if logged := strings.Contains(log.String(), want); logged != (test.reason != "") {
			t.Errorf("%s: the log is %s\nwant %s", test.filter, log.String(), want)
		}
	}
}

func TestTheLogSaysWhichLimitsFollowFromMaxMemory(t *testing.T) {
	log := new(testsupport.LogBuffer)
	testsupport.Start(t, server.Options{MaxMemory: 64 << 20, Logger: slog.New(slog.NewTextHandler(log, nil))})
	testsupport.Eventually(t, "the log has the limits", func() bool {
		return strings.Contains(log.String(), "msg=limits memory=67108864 clients=102 ") &&
			strings.Contains(log.String(), " keys=16384 key-bytes=16777216 ")
	})
}
