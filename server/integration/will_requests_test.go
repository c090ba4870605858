package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/internal/wire"
	"github.com/tenurelock/tenure/transport"
)

// latestWill returns the latest CONNECT that had a Will, as the server reads it.
func (b *scripted) latestWill() *wire.Connect {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	gate := wire.NewGate()
	if err := gate.Check(b.will); err != nil {
		b.t.Fatal(err)
	}
	return gate.Connect
}

func TestProtocol1OurWillHasAllThatARequestHas(t *testing.T) {
	b := newScripted(t, acceptAll)
	client := testsupport.Dial(t, b.address, transport.Options{ClientID: "node-a", Username: "user", Password: []byte("secret")})
	correlations := make(map[string]bool)
	for range 2 {
		set, err := client.SetWill(t.Context(), "k", []byte("mine"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.SetWill(t.Context(), "other", nil); !errors.Is(err, transport.ErrWillInUse) {
			t.Errorf("a second: %v, want ErrWillInUse", err)
		}
		connect := b.latestWill()
		will, user := connect.Will, ""
		for name, value := range will.Users {
			user += fmt.Sprintf("%s=%s ", name, value)
		}
		for _, field := range []struct{ name, got, want string }{
			{"topic", string(will.Topic), testsupport.InvokeTopic},
			{"QoS, retain, delay", fmt.Sprint(will.QoS, will.Retain, will.WillDelay), "1 false 0"},
			{"payload", string(will.Payload), string(testsupport.Command("VDEL", "k", "mine"))},
			{"content type", string(will.ContentType), "application/octet-stream"},
			{"response topic", string(will.ResponseTopic), "clients/node-a/services/statestore/_any_/command/invoke/response"},
			{"length of the correlation data", fmt.Sprint(len(will.CorrelationData)), "16"},
			{"user properties", user, "__srcId=node-a __protVer=1.0 $partition=node-a "},
			{"credentials", connect.User + ":" + string(connect.Password), "user:secret"},
		} {
			if field.got != field.want {
				t.Errorf("%s: %q, want %q", field.name, field.got, field.want)
			}
		}
		correlations[string(will.CorrelationData)] = true
		set.Close()
	}
	if len(correlations) != 2 {
		t.Error("two Wills have the same correlation data")
	}
	b.mustSee("CONNECT", "DISCONNECT 0x0", "CONNECT+Will", "DISCONNECT 0x0", "CONNECT+Will")
}

func TestAClientWithARefusedWillGoesOnWithoutIt(t *testing.T) {
	const with, without, disconnect = "CONNECT+Will", "CONNECT", "DISCONNECT 0x0"
	for _, test := range []struct {
		name    string
		codes   []byte // for one CONNECT after the other
		refused byte   // in the ConnectionError; 0: there is no error
		seen    []string
	}{
		{"not authorized", []byte{0x87}, 0x87, []string{with, without}},
		{"for reasons of the server", []byte{0x83}, 0x83, []string{with, without}},
		{"for its QoS", []byte{0x9B}, 0x9B, []string{with, without}},
		{"after the network was down", []byte{hangUp, hangUp, 0x87}, 0x87, []string{with, with, with, without}},
		{"not: the server was busy", []byte{0x89, 0x88, 0x9F}, 0, []string{with, with, with, with}},
		{"not: the network was down", []byte{hangUp, hangUp, hangUp, hangUp}, 0, []string{with, with, with, with, with}},
	} {
		t.Run(test.name, func(t *testing.T) {
			codes := append([]byte{0}, test.codes...) // the first is for Dial
			b := newScripted(t, func(*packets.Connect) (code byte) {
				if len(codes) > 0 {
					code, codes = codes[0], codes[1:]
				}
				return code
			})
			client := testsupport.Dial(t, b.address, transport.Options{ReconnectMin: time.Millisecond})
			will, err := client.SetWill(t.Context(), "k", []byte("mine"))
			var refused *transport.ConnectionError
			switch {
			case test.refused != 0:
				if !errors.As(err, &refused) || refused.Code != test.refused {
					t.Errorf("SetWill: %v, want the code %#x", err, test.refused)
				}
			case err != nil:
				t.Errorf("SetWill: %v", err)
			}
			b.mustSee(append([]string{without, disconnect}, test.seen...)...)
			if (will == nil) != (err != nil) {
				t.Errorf("a will %v and an error %v", will, err)
			}
		})
	}
}

// No code has a reference to such a Will, so it must not stay behind.
func TestAWillThatIsCancelledLeavesNoWill(t *testing.T) {
	arrived, answer := make(chan bool, 1), make(chan bool)
	b := newScripted(t, func(connect *packets.Connect) byte {
		if connect.WillFlag {
			arrived <- true
			await.Receive(answer)
		}
		return 0
	})
	client := testsupport.Dial(t, b.address, transport.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		await.Receive(arrived)
		cancel()
	}()
	if _, err := client.SetWill(ctx, "k", []byte("mine")); !errors.Is(err, context.Canceled) {
		t.Errorf("SetWill: %v, want Canceled", err)
	}
	close(answer)
	b.mustSee("CONNECT", "DISCONNECT 0x0", "CONNECT+Will", "DISCONNECT 0x0", "CONNECT")
	if _, err := client.SetWill(t.Context(), "k", []byte("mine")); err != nil {
		t.Errorf("another: %v", err)
	}
}

func TestTheClientRefusesAWillThatIsTooLargeForAPacket(t *testing.T) {
	const most = 1<<16 - 1 // bytes [MQTT-1.5.6]
	overhead := len(testsupport.Command("VDEL", "k", strings.Repeat("v", most-100))) - (most - 100)
	b := newScripted(t, acceptAll)
	client := testsupport.Dial(t, b.address, transport.Options{})
	tooLarge := strings.Repeat("v", most-overhead+1)
	if _, err := client.SetWill(t.Context(), "k", []byte(tooLarge)); !errors.Is(err, transport.ErrNoWill) || !strings.Contains(err.Error(), "65536 bytes") {
		t.Errorf("one byte too much: %.200v", err)
	}
	b.mustSee("CONNECT") // the connection was not given up for it
	largest := tooLarge[1:]
	if _, err := client.SetWill(t.Context(), "k", []byte(largest)); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !bytes.HasSuffix(b.will, testsupport.Command("VDEL", "k", largest)) { // more than a Gate of our server takes
		t.Errorf("the largest does not arrive: the CONNECT has %d bytes", len(b.will))
	}
}

// A program that sets a Will again after each loss of the connection must not make the client
// connect in a fast loop.
func TestAWillDoesNotShortenThePauseBetweenConnections(t *testing.T) {
	b := newScripted(t, acceptAll)
	client := testsupport.Dial(t, b.address, transport.Options{ReconnectMin: time.Hour})
	lost := client.Lost()
	b.cut()
	await.Receive(lost)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if _, err := client.SetWill(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("SetWill: %v, want DeadlineExceeded", err)
		}
		cancel()
	}
	b.mustSee("CONNECT")
}
