package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
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
				var refused *ConnectionError
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
		{"a password file", packets.ConnackBadUsernameOrPassword, Options{Username: "user", PasswordFile: path}},
		{"a token file", packets.ConnackNotAuthorized, Options{TokenFile: path}},
		{"a method of authentication", packets.ConnackBadAuthenticationMethod, Options{TokenFile: path}},
		{"the protocol version", packets.ConnackUnsupportedProtocolVersion, Options{}},
		{"a busy broker", packets.ConnackServerBusy, Options{}},
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
				var refused *ConnectionError
				if !errors.As(err, &refused) || refused.Code != test.code || !errors.Is(err, ErrNotSent) || errors.Is(err, ErrClosed) {
					t.Errorf("Get: %v, want ErrNotSent and the *ConnectionError", err)
				}
				if status := client.Connection(); status.Connected || !errors.As(status.Err, &refused) {
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
				if status := client.Connection(); !status.Connected || status.Err != nil {
					t.Errorf("when the broker takes it: %+v", status)
				}
			})
		})
	}
}

// standbys is what a test lets several brokers say: each host that it names stands by.
type standbys struct {
	mu    sync.Mutex
	refer map[string]string // the Server Reference of each that stands by, perhaps empty
	codes []byte            // of the refusals, in turns
	count int
}

// newStandbys returns brokers of which these stand by, and refuse with these codes.
func newStandbys(refer map[string]string, codes ...byte) (*pipeBroker, *standbys) {
	b, s := &pipeBroker{}, &standbys{refer: refer, codes: codes}
	b.answer = s.refuseConnect(b)
	return b, s
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
	return s.answering(b, packets.CONNECT, func(conn net.Conn, code byte, reference string) {
		send(conn, packets.CONNACK, func(p *packets.Connack) { p.ReasonCode, p.Properties.ServerReference = code, reference })
	})
}

// disconnectLater accepts connections to hosts that stand by, and then ends them.
func (s *standbys) disconnectLater(b *pipeBroker) func(net.Conn, *packets.ControlPacket) bool {
	return s.answering(b, packets.SUBSCRIBE, func(conn net.Conn, code byte, reference string) {
		send(conn, packets.DISCONNECT, func(p *packets.Disconnect) { p.ReasonCode, p.Properties.ServerReference = code, reference })
	})
}

// answering answers packets of a kind with say, where the host stands by.
func (s *standbys) answering(b *pipeBroker, kind byte, say func(conn net.Conn, code byte, reference string)) func(net.Conn, *packets.ControlPacket) bool {
	return func(conn net.Conn, packet *packets.ControlPacket) bool {
		if packet.Type != kind {
			return false
		}
		standby, code, reference := s.says(b.latestHost())
		if standby {
			say(conn, code, reference)
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
		{"whatever it refers to", map[string]string{"a": "attacker:1883", "b": "a"}, []string{"a", "b", "c"}},
	} {
		for _, code := range []byte{packets.ConnackUseAnotherServer, packets.ConnackServerMoved} {
			for _, way := range []string{"CONNACK", "DISCONNECT"} {
				t.Run(fmt.Sprintf("%s, %s 0x%X", test.name, way, code), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b, s := newStandbys(test.refer, code)
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
						if got := client.Connection(); !got.Connected || got.Broker != "mqtt://"+test.want[len(test.want)-1]+":1883" {
							t.Errorf("%+v", got)
						}
					})
				})
			}
		}
	}
}

func TestInvariant50StandbysThatReferToEachOtherCauseNoHotLoop(t *testing.T) {
	for _, addresses := range []string{"mqtt://a", "mqtt://a,mqtt://b,mqtt://c"} {
		for _, way := range []string{"CONNACK", "DISCONNECT"} {
			t.Run(addresses+" "+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b, s := newStandbys(nil, packets.ConnackUseAnotherServer, packets.ConnackServerMoved)
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
					if got := client.Connection(); got.Connected || !errors.Is(got.Err, ErrUseAnotherServer) || !strings.Contains(got.Err.Error(), "it refers to another server, ") {
						t.Errorf("%+v", got)
					}
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					if _, err := client.Get(ctx, "k"); !errors.Is(err, ErrUseAnotherServer) || errors.Is(err, ErrClosed) {
						t.Errorf("Get: %v", err)
					}
					s.set(nil)
					time.Sleep(10 * time.Second)
					if got := client.Connection(); !got.Connected {
						t.Errorf("when they are active again: %+v", got)
					}
				})
			})
		}
	}
}

func TestAStandbyDecidesNothingAboutAWill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newStandbys(nil, packets.ConnackUseAnotherServer)
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
			b, _ := newStandbys(refer, packets.ConnackUseAnotherServer)
			standby, refuse := b.answer, refuse(0, always(packets.ConnackNotAuthorized))
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
		b, s := newStandbys(map[string]string{"a": "", "b": ""}, packets.ConnackUseAnotherServer)
		time.AfterFunc(20*time.Second, func() { s.set(nil) })
		if _, err := dialTo(t, b, "mqtt://a,mqtt://b", Options{}); err != nil {
			t.Error(err)
		}
	})
}
