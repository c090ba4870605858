package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
)

func always(code byte) func() byte { return func() byte { return code } }

func TestAPermanentRefusalEndsDialAtOnce(t *testing.T) {
	path, _ := secretFile(t, "one")
	for _, test := range []struct {
		name    string
		code    byte
		options Options
	}{
		{"of a user name", packets.ConnackBadUsernameOrPassword, Options{Username: "user"}},
		{"of a password file", packets.ConnackNotAuthorized, Options{Username: "user", PasswordFile: path}},
		{"of a method of authentication", packets.ConnackBadAuthenticationMethod, Options{TokenFile: path}},
		{"of a client id", packets.ConnackInvalidClientID, Options{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				_, err := dialTo(t, &pipeBroker{answer: refuse(0, always(test.code))}, "mqtt://broker", test.options)
				var refused *ConnectError
				if !errors.As(err, &refused) || refused.Code != test.code || errors.Is(err, ErrClosed) || time.Since(began) > 0 {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
			})
		})
	}
}

func TestInvariant50ARefusalThatComesLaterEndsNoClientAndCausesNoHotLoop(t *testing.T) {
	path, _ := secretFile(t, "one")
	for _, test := range []struct {
		name    string
		code    byte
		options Options
	}{
		{"a password", packets.ConnackBadUsernameOrPassword, Options{Username: "user", Password: []byte("one")}},
		{"no credentials", packets.ConnackNotAuthorized, Options{}},
		{"a password file", packets.ConnackBadUsernameOrPassword, Options{Username: "user", PasswordFile: path}},
		{"a token file", packets.ConnackNotAuthorized, Options{TokenFile: path}},
		{"a client id", packets.ConnackInvalidClientID, Options{}},
		{"a method of authentication", packets.ConnackBadAuthenticationMethod, Options{TokenFile: path}},
		{"the protocol version", packets.ConnackUnsupportedProtocolVersion, Options{}},
		{"a ban", packets.ConnackBanned, Options{}},
		{"a busy broker", packets.ConnackServerBusy, Options{}},
		{"a quota", packets.ConnackQuotaExceeded, Options{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var code atomic.Uint32
				code.Store(uint32(test.code))
				b := &pipeBroker{answer: refuse(1, func() byte { return byte(code.Load()) })}
				client := mustDialTo(t, b, test.options)
				b.cut()
				synctest.Wait() // until the loss was noticed
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := client.Get(ctx, "k")
				var refused *ConnectError
				if !errors.As(err, &refused) || refused.Code != test.code || !errors.Is(err, ErrNotSent) || errors.Is(err, ErrClosed) {
					t.Errorf("Get: %v, want ErrNotSent and the *ConnectError", err)
				}
				if status := client.Connection(); status.State != Connecting || !errors.As(status.Err, &refused) {
					t.Errorf("%+v, want to be connecting", status)
				}
				before := b.count()
				time.Sleep(time.Hour)
				// A pause is 1 s at least, half of the default ReconnectMax, and a broker sees
				// one packet of each attempt.
				if attempts := b.count() - before; attempts < 1000 || attempts > 3600 {
					t.Errorf("%d attempts in an hour", attempts)
				}
				code.Store(0)
				time.Sleep(10 * time.Second)
				if status := client.Connection(); status.State != Connected || status.Err != nil {
					t.Errorf("when the broker takes it: %+v", status)
				}
			})
		})
	}
}

func TestSeveralBrokersAreTriedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		client, err := dialTo(t, b, "mqtt://a,mqtt://b,mqtt://c", Options{})
		if err != nil {
			t.Fatal(err)
		}
		b.cut()
		time.Sleep(time.Second)
		if got := client.Connection(); got.Broker != "mqtt://b:1883" || got.Connections != 2 {
			t.Errorf("%+v", got)
		}
		b.mu.Lock()
		b.down = true
		b.mu.Unlock()
		b.cut()
		time.Sleep(time.Second)
		b.mu.Lock()
		b.down = false
		hosts := slices.Clone(b.hosts)
		b.mu.Unlock()
		if want := []string{"a", "b", "c", "a", "b"}; len(hosts) < len(want) || !slices.Equal(hosts[:len(want)], want) {
			t.Errorf("dialled %q", hosts)
		}
		time.Sleep(10 * time.Second)
		if got := client.Connection(); got.State != Connected {
			t.Errorf("%+v", got)
		}
	})
}

func TestOfSeveralBrokersEachMustRefuseForDialToFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		codes := []byte{packets.ConnackNotAuthorized, packets.ConnackNotAuthorized, 0}
		next := func() byte {
			code := codes[0]
			codes = codes[1:]
			return code
		}
		if _, err := dialTo(t, &pipeBroker{answer: refuse(0, next)}, "mqtt://a,mqtt://b,mqtt://c", Options{}); err != nil {
			t.Errorf("one takes it: %v", err)
		}
		codes = []byte{packets.ConnackNotAuthorized, packets.ConnackServerBusy, packets.ConnackNotAuthorized, packets.ConnackNotAuthorized}
		b := &pipeBroker{answer: refuse(0, next)}
		if _, err := dialTo(t, b, "mqtt://a,mqtt://b", Options{}); !errors.Is(err, ErrNotAuthorized) || len(codes) > 0 {
			t.Errorf("%v, before %d more answers", err, len(codes))
		}
	})
}

// standbys is what a test lets several brokers say: each host that it names stands by.
type standbys struct {
	mu    sync.Mutex
	refer map[string]string // the Server Reference of each that stands by, perhaps empty
	codes []byte            // of the refusals, in turns
	count int
}

// set makes exactly these hosts stand by.
func (s *standbys) set(refer map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refer = refer
}

// says returns whether a host stands by, and then how it refuses.
func (s *standbys) says(host string) (standby bool, code byte, reference string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reference, standby = s.refer[host]
	s.count++
	return standby, s.codes[s.count%len(s.codes)], reference
}

// refuseConnect answers the CONNECTs to hosts that stand by.
func (s *standbys) refuseConnect(b *pipeBroker) func(net.Conn, *packets.ControlPacket) bool {
	return func(conn net.Conn, packet *packets.ControlPacket) bool {
		if _, ok := packet.Content.(*packets.Connect); !ok {
			return false
		}
		standby, code, reference := s.says(b.latestHost())
		if standby {
			send(conn, packets.CONNACK, func(p *packets.Connack) {
				p.ReasonCode, p.Properties.ServerReference = code, reference
			})
		}
		return standby
	}
}

// disconnectLater accepts connections to hosts that stand by, and then ends them.
func (s *standbys) disconnectLater(b *pipeBroker) func(net.Conn, *packets.ControlPacket) bool {
	return func(conn net.Conn, packet *packets.ControlPacket) bool {
		if _, ok := packet.Content.(*packets.Subscribe); !ok {
			return false
		}
		standby, code, reference := s.says(b.latestHost())
		if standby {
			send(conn, packets.DISCONNECT, func(p *packets.Disconnect) {
				p.ReasonCode, p.Properties.ServerReference = code, reference
			})
		}
		return standby
	}
}

func TestAClientFindsTheActiveServerAmongStandbysAtOnce(t *testing.T) {
	for _, test := range []struct {
		name  string
		refer map[string]string // of those that stand by
		want  []string          // the hosts that are dialled
	}{
		{"the next one", map[string]string{"a": ""}, []string{"a", "b"}},
		{"after all the others", map[string]string{"a": "", "b": ""}, []string{"a", "b", "c"}},
		{"the one that the first refers to", map[string]string{"a": "c:1883", "b": ""}, []string{"a", "c"}},
		{"in spite of a reference that is out of date", map[string]string{"a": "b", "b": "a"}, []string{"a", "b", "c"}},
		{"in spite of a foreign reference", map[string]string{"a": "attacker:1883"}, []string{"a", "b"}},
	} {
		for _, code := range []byte{packets.ConnackUseAnotherServer, packets.ConnackServerMoved} {
			for _, way := range []string{"CONNACK", "DISCONNECT"} {
				t.Run(fmt.Sprintf("%s, %s 0x%X", test.name, way, code), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := &standbys{refer: test.refer, codes: []byte{code}}
						b := &pipeBroker{}
						b.answer = s.refuseConnect(b)
						if way == "DISCONNECT" {
							b.answer = s.disconnectLater(b)
						}
						began := time.Now()
						client, err := dialTo(t, b, "mqtt://a,mqtt://b,mqtt://c", Options{})
						if err != nil {
							t.Fatal(err)
						}
						if took := time.Since(began); took > 0 {
							t.Errorf("it takes %v", took)
						}
						if hosts := b.dialled(); !slices.Equal(hosts, test.want) {
							t.Errorf("dialled %q, want %q", hosts, test.want)
						}
						if got := client.Connection(); got.State != Connected || got.Broker != "mqtt://"+test.want[len(test.want)-1]+":1883" {
							t.Errorf("%+v", got)
						}
					})
				})
			}
		}
	}
}

func TestInvariant50StandbysThatReferToEachOtherCauseNoHotLoop(t *testing.T) {
	for _, addresses := range []string{"mqtt://a", "mqtt://a,mqtt://b", "mqtt://a,mqtt://b,mqtt://c"} {
		for _, way := range []string{"CONNACK", "DISCONNECT"} {
			t.Run(addresses+" "+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &standbys{codes: []byte{packets.ConnackUseAnotherServer, packets.ConnackServerMoved}}
					b := &pipeBroker{}
					b.answer = s.refuseConnect(b)
					if way == "DISCONNECT" {
						b.answer = s.disconnectLater(b)
					}
					client, err := dialTo(t, b, addresses, Options{})
					if err != nil {
						t.Fatal(err)
					}
					s.set(map[string]string{"a": "b", "b": "c", "c": "a"})
					b.cut()
					time.Sleep(time.Minute)
					before := len(b.dialled())
					time.Sleep(time.Hour)
					// A pause is 1 s at least, half of the default ReconnectMax.
					servers := strings.Count(addresses, "mqtt:")
					if attempts := len(b.dialled()) - before; attempts < 1000*servers || attempts > 3600*servers {
						t.Errorf("%d attempts at %d servers in an hour", attempts, servers)
					}
					if got := client.Connection(); got.State != Connecting || !errors.Is(got.Err, ErrUseAnotherServer) || !strings.Contains(got.Err.Error(), "it refers to another server, ") {
						t.Errorf("%+v", got)
					}
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					if _, err := client.Get(ctx, "k"); !errors.Is(err, ErrUseAnotherServer) || errors.Is(err, ErrClosed) {
						t.Errorf("Get: %v", err)
					}
					s.set(nil)
					time.Sleep(10 * time.Second)
					if got := client.Connection(); got.State != Connected {
						t.Errorf("when they are active again: %+v", got)
					}
				})
			})
		}
	}
}

func TestAServerThatStandsByAfterAnHourIsLeftAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &standbys{refer: map[string]string{"a": ""}, codes: []byte{packets.ConnackUseAnotherServer}}
		b := &pipeBroker{}
		b.answer = s.refuseConnect(b)
		client, err := dialTo(t, b, "mqtt://a,mqtt://b", Options{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		s.set(map[string]string{"b": "mqtt://a:1883"})
		send(b.present(), packets.DISCONNECT, func(p *packets.Disconnect) { p.ReasonCode = packets.ConnackUseAnotherServer })
		synctest.Wait()
		if got := client.Connection(); got.State != Connected || got.Broker != "mqtt://a:1883" {
			t.Errorf("%+v", got)
		}
	})
}

// The active server freezes. The other one names it until it takes its place.
func TestAClientDoesNotWaitForAFrozenServerThatAStandbyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takeover = 4 * time.Second
		s := &standbys{refer: map[string]string{"b": "a"}, codes: []byte{packets.ConnackUseAnotherServer}}
		var frozen atomic.Bool
		b := &pipeBroker{}
		refuse := s.refuseConnect(b)
		b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
			return frozen.Load() && b.latestHost() == "a" || refuse(conn, packet)
		}
		client, err := dialTo(t, b, "mqtt://a,mqtt://b", Options{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		frozen.Store(true)
		b.cut() // as after a probe
		before := len(b.dialled())
		time.Sleep(takeover)
		s.set(nil)
		time.Sleep(2*firstTimeout + defaultReconnectMax)
		if got := client.Connection(); got.State != Connected || got.Broker != "mqtt://b:1883" {
			t.Errorf("%+v", got)
		}
		asked := 0
		for _, host := range b.dialled()[before:] {
			if host == "a" {
				asked++
			}
		}
		if asked > 6 {
			t.Errorf("it asks the frozen server %d times", asked)
		}
	})
}

func TestAttemptsThatAllTimeOutGetMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 6 * time.Second // of each server
		b := &pipeBroker{}
		b.answer = func(_ net.Conn, packet *packets.ControlPacket) bool {
			if _, ok := packet.Content.(*packets.Connect); ok {
				time.Sleep(slow)
			}
			return false
		}
		began := time.Now()
		if _, err := dialTo(t, b, "mqtt://a,mqtt://b", Options{}); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestAStandbyDecidesNothingAboutAWill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &standbys{codes: []byte{packets.ConnackUseAnotherServer}}
		b := &pipeBroker{}
		b.answer = s.refuseConnect(b)
		client, err := dialTo(t, b, "mqtt://a,mqtt://b", Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.set(map[string]string{"a": ""})
		if _, err := client.SetWill(t.Context(), "k", []byte("v")); err != nil {
			t.Errorf("SetWill: %v", err)
		}
		if got := client.Connection(); got.Broker != "mqtt://b:1883" {
			t.Errorf("%+v", got)
		}
	})
}

func TestARefusalByTheActiveServerEndsDialThoughTheOthersStandBy(t *testing.T) {
	for _, refer := range []map[string]string{{"b": ""}, {"b": "a", "c": "a"}, {"a": "b", "c": "b"}, {"a": "c"}} {
		synctest.Test(t, func(t *testing.T) {
			s := &standbys{refer: refer, codes: []byte{packets.ConnackUseAnotherServer}}
			b := &pipeBroker{}
			standby, refuse := s.refuseConnect(b), refuse(0, always(packets.ConnackNotAuthorized))
			b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
				return standby(conn, packet) || refuse(conn, packet)
			}
			began := time.Now()
			_, err := dialTo(t, b, "mqtt://a,mqtt://b,mqtt://c", Options{})
			if !errors.Is(err, ErrNotAuthorized) || time.Since(began) > time.Second {
				t.Errorf("%v: after %v: %v", refer, time.Since(began), err)
			}
		})
	}
	// Standbys alone refuse nothing for good.
	synctest.Test(t, func(t *testing.T) {
		s := &standbys{refer: map[string]string{"a": "", "b": ""}, codes: []byte{packets.ConnackUseAnotherServer}}
		b := &pipeBroker{}
		b.answer = s.refuseConnect(b)
		time.AfterFunc(20*time.Second, func() { s.set(nil) })
		if _, err := dialTo(t, b, "mqtt://a,mqtt://b", Options{}); err != nil {
			t.Error(err)
		}
	})
}

// describe makes a status easy to compare.
func describe(status ConnectionStatus) string {
	return fmt.Sprintf("%v %d %t", status.State, status.Connections, status.Err == nil)
}

func TestChangesOfTheConnectionAreReportedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		b := &pipeBroker{}
		client := mustDialTo(t, b, Options{OnConnectionChange: func(status ConnectionStatus) {
			if status.Broker != "mqtt://broker:1883" {
				t.Errorf("%+v", status)
			}
			told = append(told, describe(status))
		}})
		synctest.Wait()
		b.mu.Lock()
		b.down = true
		b.mu.Unlock()
		b.cut()
		synctest.Wait()
		b.mu.Lock()
		b.down = false
		b.mu.Unlock()
		time.Sleep(time.Second)
		if got := describe(client.Connection()); got != "connected 2 true" {
			t.Error(got)
		}
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		// No wait here: Close returns after the call with the last status.
		told = slices.Compact(told) // a broker that is down may be met more than once
		if want := []string{"connected 1 true", "connecting 1 false", "connected 2 true", "ended 2 false"}; !slices.Equal(told, want) {
			t.Errorf("told %q\nwant %q", told, want)
		}
		if got := client.Connection(); got.State != Ended || !errors.Is(got.Err, ErrClosed) {
			t.Errorf("%+v", got)
		}
	})
}

func TestOnConnectionChangeDoesNotDelayTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var told []string
		b := &pipeBroker{}
		client := mustDialTo(t, b, Options{OnConnectionChange: func(status ConnectionStatus) {
			told = append(told, describe(status))
			await.Receive(release)
		}})
		for range 3 {
			synctest.Wait()
			b.cut()
			time.Sleep(10 * time.Second)
		}
		if got := describe(client.Connection()); got != "connected 4 true" {
			t.Error(got)
		}
		close(release)
		synctest.Wait()
		if want := []string{"connected 1 true", "connected 4 true"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

func TestARequestThatMakesTooLargeAPacketIsRefusedHere(t *testing.T) {
	const limit = 1000
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		largest := 0
		b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
			switch content := packet.Content.(type) {
			case *packets.Connect:
				send(conn, packets.CONNACK, func(p *packets.Connack) {
					size := uint32(limit)
					p.Properties.MaximumPacketSize = &size
				})
				return true
			case *packets.Publish:
				largest = max(largest, packetLength(content))
				reply(conn, content)
			}
			return false
		}
		client := mustDialTo(t, b, Options{ClientID: "node-a"})
		passed, refused := 0, 0
		for size := range limit {
			_, err := client.Get(t.Context(), strings.Repeat("k", size+1))
			var rejected *RejectedError
			switch {
			case err == nil && refused == 0:
				passed++
			case errors.Is(err, ErrPacketTooLarge) && errors.As(err, &rejected) && !errors.Is(err, ErrOutcomeUnknown):
				refused++
			default:
				t.Fatalf("a key of %d bytes: %v", size+1, err)
			}
		}
		if passed == 0 || refused == 0 || largest != limit {
			t.Errorf("%d pass, %d are refused, and the largest that passes has %d bytes", passed, refused, largest)
		}
		if got := client.Connection(); got.Connections != 1 {
			t.Errorf("the connection did not last: %+v", got)
		}
	})
}

// packetLength returns the length of a packet as it is encoded.
func packetLength(publish *packets.Publish) int {
	length, err := publish.WriteTo(discard{})
	if err != nil {
		return -1
	}
	return int(length)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func TestSilenceOfABrokerThatTookTheRequestSaysThatNoStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		answers := false
		b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
			if publish, ok := packet.Content.(*packets.Publish); ok && answers {
				reply(conn, publish)
			}
			return false
		}
		client := mustDialTo(t, b, Options{})
		_, err := client.Get(t.Context(), "k")
		if !errors.Is(err, ErrNoStore) || !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no answer: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := client.Get(ctx, "k"); errors.Is(err, ErrNoStore) || !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("the caller leaves: %v", err)
		}
		answers = true
		if _, err := client.Get(t.Context(), "k"); err != nil {
			t.Errorf("a store answers: %v", err)
		}
		answers = false
		if _, err := client.Get(t.Context(), "k"); errors.Is(err, ErrNoStore) || !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("a store has answered, and is silent now: %v", err)
		}
	})
}

func TestSilenceOfABrokerThatAcknowledgesNothingSaysNothingOfAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{answer: func(_ net.Conn, packet *packets.ControlPacket) bool {
			_, ok := packet.Content.(*packets.Publish)
			return ok
		}}
		if _, err := mustDialTo(t, b, Options{}).Get(t.Context(), "k"); errors.Is(err, ErrNoStore) || !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
	})
}

func TestTheBrokersReasonsAreTyped(t *testing.T) {
	sentinels := []error{ErrNotAuthorized, ErrServerBusy, ErrPacketTooLarge, ErrQuotaExceeded, ErrUseAnotherServer}
	for _, test := range []struct {
		code byte
		want error // among the sentinels; nil: none
	}{
		{0x80, nil}, {0x87, ErrNotAuthorized}, {0x88, ErrServerBusy}, {0x89, ErrServerBusy}, {0x8B, nil},
		{0x95, ErrPacketTooLarge}, {0x97, ErrQuotaExceeded},
		{0x9C, ErrUseAnotherServer}, {0x9D, ErrUseAnotherServer}, {0x9F, ErrServerBusy},
	} {
		for _, err := range []error{&ConnectError{Code: test.code}, &DisconnectError{Code: test.code, Reason: "why"}, &RejectedError{Code: int(test.code)}} {
			for _, sentinel := range sentinels {
				if errors.Is(err, sentinel) != (sentinel == test.want) {
					t.Errorf("%T: is %v %q? %t", err, err, sentinel, errors.Is(err, sentinel))
				}
			}
			if !strings.Contains(err.Error(), fmt.Sprintf("0x%02X", test.code)) {
				t.Errorf("%v does not name the code 0x%02X", err, test.code)
			}
		}
	}
}

func TestARequestUnderWayLearnsWhyTheBrokerEndedTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
			if _, ok := packet.Content.(*packets.Publish); !ok {
				return false
			}
			send(conn, packets.DISCONNECT, func(p *packets.Disconnect) {
				p.ReasonCode, p.Properties.ReasonString = packets.ConnackPacketTooLarge, "too large for me"
			})
			return true
		}}
		_, err := mustDialTo(t, b, Options{}).Get(t.Context(), "k")
		var ended *DisconnectError
		if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrPacketTooLarge) || !errors.As(err, &ended) || ended.Reason != "too large for me" {
			t.Errorf("%v", err)
		}
	})
}

func TestConstantsAndStatusAreWordsInLogs(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	logger.Info("m",
		"state", Connected, "wrong", ConnectionState(-1), "reason", ForeignNotification, "none", IgnoreReason(200), "condition", IfMissing, "other", Condition(9),
		"status", ConnectionStatus{State: Connecting, Broker: "mqtt://a:1", Connections: 2, Err: errors.New("why")}, "zero", ConnectionStatus{})
	for _, want := range []string{
		`"state":"connected"`, `"wrong":"ConnectionState(-1)"`, `"reason":"foreign notification"`, `"none":"IgnoreReason(200)"`, `"condition":"IfMissing"`, `"other":"Condition(9)"`,
		`"status":{"state":"connecting","broker":"mqtt://a:1","connections":2,"error":"why"}`, `"zero":{"state":"connecting","broker":"","connections":0}`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in %s", want, log.String())
		}
	}
}

func TestChangesOfTheConnectionAreTracedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{down: true}
		var mu sync.Mutex
		var got []string
		add := func(text string) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, text)
		}
		time.AfterFunc(time.Second, func() { b.mu.Lock(); b.down = false; b.mu.Unlock() })
		failures := 0
		client := mustDialTo(t, b, Options{ReconnectMin: 3 * time.Second, ReconnectMax: 3 * time.Second, ClientOptions: ClientOptions{Trace: &Trace{
			Connected: func(info ConnectedInfo) { add(fmt.Sprintf("connected %d to %s", info.Connections, info.Broker)) },
			ConnectFailed: func(info ConnectFailedInfo) {
				if failures++; failures == 1 {
					add(fmt.Sprintf("failed at %s: %v", info.Broker, info.Err))
				}
			},
			Lost: func(info LostInfo) { add(fmt.Sprintf("lost after %v: %v", info.Lasted, info.Err)) },
		}}})
		time.Sleep(time.Minute)
		b.cut()
		time.Sleep(time.Minute)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		want := []string{
			"failed at mqtt://broker:1883: broker is down", "connected 1 to mqtt://broker:1883", "lost after 1m0s: the connection was lost",
			"connected 2 to mqtt://broker:1883", "lost after", "the client is closed",
		}
		for i, w := range []string{want[0], want[1], want[2], want[3]} {
			if i >= len(got) || got[i] != w {
				t.Fatalf("traced\n%q, want\n%q", got, want)
			}
		}
		if last := got[len(got)-1]; len(got) != 5 || !strings.HasPrefix(last, want[4]) || !strings.HasSuffix(last, want[5]) {
			t.Errorf("traced\n%q, want\n%q", got, want)
		}
	})
}
