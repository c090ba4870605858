package server

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/pubsub"
)

// A thousand connections that end at once have a thousand Wills, and each may match very many subscriptions.
func TestInvariant57WillsArePublishedInTurns(t *testing.T) {
	lost := errors.New("the connection was lost")
	ends := func(conn *connection) {
		conn.ended = lost
		_ = conn.settleWill()
	}
	// away returns what is done to the client when it has left, with its Will delayed.
	away := func(do func(s *Server, now time.Time)) func(*connection) {
		return func(conn *connection) {
			conn.gate.SessionExpiry, conn.ordinaryWill.delay = 60, time.Second
			ends(conn)
			conn.server.endConnection(conn)
			do(conn.server, time.Now().Add(time.Hour))
		}
	}
	for _, test := range []struct {
		name    string
		publish func(conn *connection)
	}{
		{"when the connection ends", ends},
		{"when its delay is over", away((*Server).publishDueWills)},
		{"when its session expires", away((*Server).endSessions)},
		{"when its client begins a new session", away(func(s *Server, _ time.Time) {
			next := s.newConnection(new(sink))
			next.identity.Client = "p"
			s.enter(next, true)
		})},
		{"when its session is not kept", func(conn *connection) {
			conn.gate.SessionExpiry, conn.ordinaryWill.delay = 60, time.Second
			conn.server.options.Limits.SessionsPerUser = 0
			ends(conn)
			conn.server.endConnection(conn)
		}},
		{"the reply to a request", func(conn *connection) {
			conn.ordinaryWill = nil
			refused := conn.server.setWillRequest(conn, &mqtt.Publish{
				Topic: []byte(protocol.InvokeTopic), QoS: 1, ResponseTopic: []byte("t"), CorrelationData: []byte("c"),
				Payload: []byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
			})
			if refused != nil {
				t.Error(refused)
			}
			ends(conn)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Options{Listener: deafListener{}})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				s.processors = fairqueue.New(1)
				const subscriptions, step = 200, fairqueue.Budget / 10
				offered := 0
				for i := range subscriptions {
					session := s.messages.Session(fmt.Sprint(i))
					if _, err := session.Subscribe(pubsub.Subscription{Filter: "t", QoS: 1}); err != nil {
						t.Fatal(err)
					}
					session.Attach(pubsub.Receiver{Link: freeLink{}, MQTT5: true, ReceiveMaximum: 1, MayRead: func(string) bool {
						offered++
						time.Sleep(step)
						return true
					}})
				}
				conn := s.newConnection(new(sink))
				conn.identity = access.Identity{Client: "p"}
				conn.gate.Version = mqtt.Version5
				setOrdinaryWill(conn, &mqtt.Publish{Topic: []byte("t"), QoS: 1, Payload: []byte("gone")})
				s.enter(conn, true)

				other := s.processors.NewPlace()
				other.Begin()
				over := make(chan struct{})
				go func() {
					defer close(over)
					test.publish(conn)
				}()
				synctest.Wait()
				if offered > 0 {
					t.Error("it does not wait for a turn")
				}
				other.End()
				synctest.Wait()
				other.Begin()
				if offered == 0 || offered == subscriptions {
					t.Errorf("another has its turn when %d of %d clients were offered the Will", offered, subscriptions)
				}
				other.End()
				await.Receive(over)
				if offered != subscriptions {
					t.Errorf("%d of %d clients were offered the Will", offered, subscriptions)
				}
				began := time.Now()
				if other.Begin(); time.Since(began) > 0 {
					t.Error("its turn does not end")
				}
				other.End()
			})
		})
	}
}

// deafListener accepts nothing.
type deafListener struct{}

func (deafListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (deafListener) Close() error              { return nil }
func (deafListener) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// freeLink is a link with room for everything, which sends nothing.
type freeLink struct{}

func (freeLink) Wake()            {}
func (freeLink) Reserve(int) bool { return true }
func (freeLink) Release(int)      {}
