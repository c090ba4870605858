package server_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// keeping asks for a session that outlives its connection.
func keeping(seconds uint32) func(*paho.Connect) {
	return func(c *paho.Connect) { c.CleanStart, c.Properties.SessionExpiryInterval = false, &seconds }
}

func both(first, second func(*paho.Connect)) func(*paho.Connect) {
	return func(c *paho.Connect) {
		first(c)
		second(c)
	}
}

// mustCollide fails the test unless a client is refused because another owns its topics.
func mustCollide(t *testing.T, address, id string, change func(*paho.Connect)) {
	t.Helper()
	p, err := testsupport.TryConnect(t, address, id, change)
	if err == nil {
		t.Fatalf("client %.50q is admitted, and owns topics of another client", id)
	}
	if p.Connack == nil || p.Connack.ReasonCode != packets.ConnackInvalidClientID || p.Connack.Properties == nil ||
		!strings.Contains(p.Connack.Properties.ReasonString, "upper-case hex") ||
		!strings.Contains(p.Connack.Properties.ReasonString, "choose another client id") {
		t.Errorf("client %.50q is refused with %+v, %v", id, p.Connack, err)
	}
}

// Of two clients that would own the same level below clients/, only one is known to the
// server, so no client reads what is for another and no client shuts another out.
func TestALevelBelongsToTheClientThatConnectedFirst(t *testing.T) {
	for _, names := range [][2]string{
		{"p", "70"},
		{"70", "p"},
		{"70", "3730"},
		{" $", "2024"},
		{"2024", " $"},
		{"a/b", "612F62"},
		{"statestore", "737461746573746F7265"},
	} {
		t.Run(strings.ReplaceAll(names[0]+" before "+names[1], "/", " "), func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{Authenticator: testsupport.Rules{}})
			first, err := testsupport.TryConnect(t, address, names[0], both(testsupport.As("alice"), keeping(600)))
			if err != nil {
				t.Fatal(err)
			}
			mustCollide(t, address, names[1], testsupport.As("bob"))
			mustCollide(t, address, names[1], testsupport.As("alice"))
			if !first.MayPublish("factory/x") {
				t.Error("the first client is disturbed")
			}

			_ = first.Conn.Close()
			first.MustBeGone()
			testsupport.Eventually(t, "the first client is away", func() bool { return s.Stats().Connected == 0 })
			mustCollide(t, address, names[1], testsupport.As("bob")) // its session is kept

			again, err := testsupport.TryConnect(t, address, names[0], both(testsupport.As("alice"), keeping(600)))
			if err != nil {
				t.Fatal(err)
			}
			if !again.Connack.SessionPresent {
				t.Error("the first client lost its session")
			}
			end := uint32(0)
			_ = again.Paho.Disconnect(&paho.Disconnect{Properties: &paho.DisconnectProperties{SessionExpiryInterval: &end}})
			testsupport.Eventually(t, "the first client is forgotten", func() bool { _, known := s.Mochi().Clients.Get(names[0]); return !known })
			if _, err := testsupport.TryConnect(t, address, names[1], testsupport.As("bob")); err != nil {
				t.Errorf("client %q may not have the name that is free: %v", names[1], err)
			}
			mustCollide(t, address, names[0], testsupport.As("alice"))
		})
	}
}

func TestNamesThatShareNoLevelDoNotCollide(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, id := range []string{"p", "3730", "71", "7", "0", "6a", "j", "6B", "K", "FF", "7070", "node-1", "", ""} { // "": the server chooses
		if _, err := testsupport.TryConnect(t, address, id, nil); err != nil {
			t.Errorf("client %q: %v", id, err)
		}
	}
	long := strings.Repeat("70", 2000) // about as long as a name may be whose hex form fits too
	if _, err := testsupport.TryConnect(t, address, long, nil); err != nil {
		t.Errorf("a client id of %d bytes: %v", len(long), err)
	}
	mustCollide(t, address, strings.Repeat("p", 2000), nil)
}

// The question whether a name is free and the entry of the client are one step.
func TestOfCollidingClientsThatConnectAtOnceOneIsAdmitted(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	names := []string{"p", "70", "3730"}
	for range 20 {
		var admitted [3]*testsupport.PahoClient
		var all sync.WaitGroup
		for i, name := range names {
			all.Go(func() {
				if p, err := testsupport.TryConnect(t, address, name, nil); err == nil {
					admitted[i] = p
				}
			})
		}
		await.Done(all.Wait)
		if admitted[0] != nil && admitted[1] != nil || admitted[1] != nil && admitted[2] != nil {
			t.Fatal("two clients that own the same level are connected")
		}
		if admitted[0] == nil && admitted[1] == nil {
			t.Fatal("no client is admitted")
		}
		for _, p := range admitted {
			if p != nil {
				_ = p.Paho.Disconnect(&paho.Disconnect{})
			}
		}
		testsupport.Eventually(t, "all are gone", func() bool { return s.Mochi().Clients.Len() == 0 })
	}
}

// A client of MQTT 3.1.1 gets the code of its own version.
func TestARefusalOfMQTT311HasACodeOfThatVersion(t *testing.T) {
	address := testsupport.Start(t, server.Options{Authenticator: testsupport.Rules{}})
	testsupport.Connect(t, address, "p", testsupport.As("alice"))
	for name, test := range map[string]struct {
		client string
		want   byte
	}{
		"a name that collides":             {"70", 2},
		"a name of another user's session": {"p", 5},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			// CONNECT, clean session, no user.
			packet := append([]byte{0x10, byte(12 + len(test.client)), 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 60, 0, byte(len(test.client))}, test.client...)
			if _, err := conn.Write(packet); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(testsupport.Patience))
			answer := make([]byte, 4)
			if _, err := io.ReadFull(conn, answer); err != nil {
				t.Fatal(err)
			}
			if answer[0] != 0x20 || answer[3] != test.want {
				t.Errorf("CONNACK % x, want code %d", answer, test.want)
			}
		})
	}
}

// What a Will may do is decided again when it is due: since CONNECT the rules may have
// changed, its topic may have become a response topic, and its level may have another owner.
func TestAWillIsJudgedByWhatHoldsWhenItIsDue(t *testing.T) {
	var closed atomic.Bool
	authorizer := testsupport.Rules{Topic: func(access.Identity, string, bool) bool { return !closed.Load() }}
	address, s := testsupport.StartServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	who := access.Identity{Client: "p", User: "alice"}
	mustBe := func(when string, want map[string]bool) {
		t.Helper()
		for topic, may := range want {
			if got := s.MayPublishWill(who, topic); got != may {
				t.Errorf("%s, a Will may be published to %q: %v", when, topic, got)
			}
		}
	}
	p := testsupport.Connect(t, address, "p", testsupport.As("alice"))
	mustBe("at first", map[string]bool{
		"clients/p/response": true, "clients/p/gone": true, "clients/70/gone": true, "clients/q/gone": false, "factory/x": true,
		testsupport.RecommendedResponseTopics("p")[0]: false, testsupport.RecommendedResponseTopics("70")[0]: false, testsupport.InvokeTopic: false, "clients/statestore/x": false, "$SYS/x": false,
	})
	p.Do("GET", "k")
	mustBe("after a request", map[string]bool{"clients/p/response": false, "clients/p/gone": true, "factory/x": true})
	_ = p.Paho.Disconnect(&paho.Disconnect{})
	testsupport.Eventually(t, "the session is over", func() bool { return s.Mochi().Clients.Len() == 0 && s.ResponseTopics() == 0 })
	mustBe("after the session", map[string]bool{"clients/p/gone": true, "clients/70/gone": true})
	if _, err := testsupport.TryConnect(t, address, "70", testsupport.As("bob")); err != nil {
		t.Fatal(err)
	}
	mustBe("when the level has another owner", map[string]bool{"clients/p/gone": false, "clients/70/gone": false, "factory/x": true})
	closed.Store(true)
	mustBe("under other rules", map[string]bool{"factory/x": false})
}

// A session that has run out ends unless its client is about to take it over; neither the
// end nor the take-over waits for the other.
func TestASessionDoesNotEndWhileItsClientComesBack(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	p := testsupport.Connect(t, address, "p", keeping(60))
	p.Do("GET", "k")
	_ = p.Conn.Close()
	p.MustBeGone()
	known := func() bool { _, known := s.Mochi().Clients.Get("p"); return known }
	testsupport.Eventually(t, "p is away", func() bool { return s.Stats().Connected == 0 })
	release := s.LockClientID("p", "")
	await.Done(func() { s.EndSessions(time.Now().Add(time.Hour)) })
	if !known() || s.ResponseTopics() != 1 {
		t.Error("the session ended under a client that takes it over")
	}
	release()
	s.EndSessions(time.Now().Add(50 * time.Second))
	if !known() {
		t.Error("the session ended too soon")
	}
	testsupport.Eventually(t, "the session ends", func() bool { s.EndSessions(time.Now().Add(time.Hour)); return !known() })
	if s.ResponseTopics() != 0 {
		t.Error("response topics of the session are left")
	}
}

// The broker's own expiry is not atomic with a client that comes back, so it does nothing.
func TestTheBrokerEndsNoSession(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	testsupport.Connect(t, address, "p", keeping(60))
	cl, _ := s.Mochi().Clients.Get("p")
	if most := s.Mochi().Options.Capabilities.MaximumSessionExpiryInterval; cl.Properties.Props.SessionExpiryIntervalFlag || most < 1<<32-1 {
		t.Errorf("the broker ends the session after its interval, or %d s", most)
	}
}

// The longest session is an hour, whatever the client says when it leaves.
func TestADisconnectMakesNoSessionLongerThanAnHour(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	p := testsupport.Connect(t, address, "p", keeping(60))
	forever := uint32(1<<32 - 1)
	if err := p.Paho.Disconnect(&paho.Disconnect{Properties: &paho.DisconnectProperties{SessionExpiryInterval: &forever}}); err != nil {
		t.Fatal(err)
	}
	known := func() bool { _, known := s.Mochi().Clients.Get("p"); return known }
	testsupport.Eventually(t, "p is away", func() bool { return s.Stats().Connected == 0 })
	s.EndSessions(time.Now().Add(55 * time.Minute))
	if !known() {
		t.Error("the session ended before its time")
	}
	testsupport.Eventually(t, "the session ends", func() bool { s.EndSessions(time.Now().Add(time.Hour + 2*time.Second)); return !known() })
}
