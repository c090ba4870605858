package server_test

import (
	"context"
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

// keeping makes a client connect with a session that outlives its connection.
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

// Two client ids can name the same level below clients/. The server admits one of them at a time, so
// that neither reads the messages of the other.
func TestALevelBelongsToTheClientThatConnectedFirst(t *testing.T) {
	for _, names := range [][2]string{
		{"p", "70"},
		{"70", "p"},
		{"70", "3730"},
		{" $", "2024"},
		{"2024", " $"},
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
			testsupport.Eventually(t, "the first client is forgotten", func() bool { return !s.HasSession(names[0]) })
			if _, err := testsupport.TryConnect(t, address, names[1], testsupport.As("bob")); err != nil {
				t.Errorf("client %q may not have the name that is free: %v", names[1], err)
			}
			mustCollide(t, address, names[0], testsupport.As("alice"))
		})
	}
}

// A client that gives up an attempt connects again. The CONNECT of the first attempt may be handled later.
func TestAConnectThatIsOlderThanThePresentConnectionDoesNotTakeItOver(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	first := testsupport.DialTCP(t, address)
	present := testsupport.DialRaw(t, address, "p")
	stale := testsupport.ConnectPacket{ID: "p"}.Start(t, first)
	if code := stale.ReasonCode(); code != packets.ConnackServerBusy {
		t.Errorf("the older CONNECT is answered with %#x", code)
	}
	if got := present.Do("GET", "k"); got != "$-1\r\n" {
		t.Errorf("the present connection: %q", got)
	}
	if code := testsupport.StartLogin(t, address, "p", "").ReasonCode(); code != packets.ConnackSuccess {
		t.Errorf("a newer CONNECT is answered with %#x", code)
	}
}

// Its replies would go to topics of another client, or of the store.
func TestAClientIDThatNoReplyCouldReachIsRefusedWithTheReason(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, id := range []string{"statestore", "a/b", "/", "a+b", "#"} {
		p, err := testsupport.TryConnect(t, address, id, nil)
		if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackInvalidClientID || p.Connack.Properties == nil ||
			!strings.Contains(p.Connack.Properties.ReasonString, "choose one that is not") {
			t.Errorf("client %q: %+v, %v", id, p, err)
		}
		if _, connack := (testsupport.ConnectPacket{ID: id, Old: true}).TryConnect(t, address); len(connack) < 4 || connack[3] != 2 {
			t.Errorf("client %q over MQTT 3.1.1: %x", id, connack)
		}
	}
	for _, id := range []string{"statestores", "State", "a.b", "a b"} {
		if _, err := testsupport.TryConnect(t, address, id, nil); err != nil {
			t.Errorf("client %q: %v", id, err)
		}
	}
}

func TestClientIDsThatShareNoLevelDoNotCollide(t *testing.T) {
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

// Checking that a client id is free and locking it are one step.
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
		testsupport.Eventually(t, "all are gone", func() bool { return s.Clients() == 0 })
	}
}

// A client of MQTT 3.1.1 gets a return code of its version.
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

// The server checks a Will again when it is due. Since CONNECT the rules may have changed, its topic
// may have become a response topic, and another client may own its level.
func TestAWillIsJudgedByWhatHoldsWhenItIsDue(t *testing.T) {
	var closed atomic.Bool
	authorizer := testsupport.Rules{Topic: func(access.Identity, string, bool) bool { return !closed.Load() }}
	address, s := testsupport.StartServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	identity := access.Identity{Client: "p", User: "alice"}
	mustBe := func(when string, want map[string]bool) {
		t.Helper()
		for topic, may := range want {
			if got := s.MayPublishWill(identity, topic); got != may {
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
	testsupport.Eventually(t, "the session is over", func() bool { return s.Clients() == 0 && s.ResponseTopics() == 0 })
	mustBe("after the session", map[string]bool{"clients/p/gone": true, "clients/70/gone": true})
	if _, err := testsupport.TryConnect(t, address, "70", testsupport.As("bob")); err != nil {
		t.Fatal(err)
	}
	mustBe("when the level has another owner", map[string]bool{"clients/p/gone": false, "clients/70/gone": false, "factory/x": true})
	closed.Store(true)
	mustBe("under other rules", map[string]bool{"factory/x": false})
}

// An expired session ends unless its client is taking it over. Neither waits for the other.
func TestASessionDoesNotEndWhileItsClientComesBack(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	p := testsupport.Connect(t, address, "p", keeping(60))
	p.Do("GET", "k")
	_ = p.Conn.Close()
	p.MustBeGone()
	known := func() bool { return s.HasSession("p") }
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

// A session lasts an hour at most, also if the DISCONNECT asks for more.
func TestADisconnectMakesNoSessionLongerThanAnHour(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	p := testsupport.Connect(t, address, "p", keeping(60))
	forever := uint32(1<<32 - 1)
	if err := p.Paho.Disconnect(&paho.Disconnect{Properties: &paho.DisconnectProperties{SessionExpiryInterval: &forever}}); err != nil {
		t.Fatal(err)
	}
	known := func() bool { return s.HasSession("p") }
	testsupport.Eventually(t, "p is away", func() bool { return s.Stats().Connected == 0 })
	s.EndSessions(time.Now().Add(55 * time.Minute))
	if !known() {
		t.Error("the session ended before its time")
	}
	testsupport.Eventually(t, "the session ends", func() bool { s.EndSessions(time.Now().Add(time.Hour + 2*time.Second)); return !known() })
}

func TestAClientIDThatAnotherUserGotDuringALoginIsNotTakenOver(t *testing.T) {
	reached, open := make(chan struct{}), make(chan struct{})
	var once sync.Once
	address := testsupport.Start(t, server.Options{Authenticator: testsupport.Rules{}, Authorizer: testsupport.Rules{Topic: func(identity access.Identity, _ string, _ bool) bool {
		if identity.User == "slow" { // it is being admitted; its client id is still free
			once.Do(func() { close(reached); await.Receive(open) })
		}
		return true
	}}})
	admitted := make(chan *testsupport.PahoClient, 2)
	try := func(user string) {
		p, err := testsupport.TryConnect(t, address, "p", func(c *paho.Connect) {
			testsupport.As(user)(c)
			testsupport.WithWill("factory/p/gone", "gone")(c)
		})
		if err != nil {
			p = nil
		}
		admitted <- p
	}
	go try("slow")
	await.Receive(reached)
	go try("quick")
	var early *testsupport.PahoClient
	answered := false
	select {
	case early = <-admitted: // while the other is still being looked at
		answered = true
	case <-time.After(100 * time.Millisecond): // or after it
	}
	close(open)
	late := await.Receive(admitted)
	if !answered {
		early = await.Receive(admitted)
	}
	if (early == nil) == (late == nil) {
		t.Errorf("of two users that want one client id one must get it: got %v and %v", early != nil, late != nil)
	}
}

// It does not wait either if one id is the hex of the other. Such ids are kept apart, but the server
// decides that without waiting.
func TestAClientDoesNotWaitForAnotherClientId(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	for _, other := range []string{"3730", "70", "p2"} { // the hex of the hex of "p", and the hex, which is not admitted yet
		defer s.LockClientID(other, "")()
	}
	for range 2 { // the second takes over
		if _, err := testsupport.TryConnect(t, address, "p", nil); err != nil {
			t.Fatal(err)
		}
	}
}

// A client id is locked from the check that it is free until the connection is established or has
// ended.
func TestAnAdmittedClientExcludesOthersBeforeItIsEstablished(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	for _, names := range [][2]string{{"70", "p"}, {"p", "70"}} {
		release := s.LockClientID(names[0], "")
		if !s.ClaimClientID(names[0]) {
			t.Fatalf("%q is not admitted", names[0])
		}
		mustCollide(t, address, names[1], nil)
		if may := s.MayPublishWill(access.Identity{Client: names[1]}, "clients/"+names[1]+"/x"); may {
			t.Errorf("a Will of %q may be published where %q owns the level", names[1], names[0])
		}
		release()
		p, err := testsupport.TryConnect(t, address, names[1], nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Paho.Disconnect(&paho.Disconnect{})
		testsupport.Eventually(t, "it is gone", func() bool { return s.Clients() == 0 })
	}
}

// The client may be refused after the claim, or its connection may panic.
func TestAClientThatIsNotEstablishedLeavesItsIDToOthers(t *testing.T) {
	authorizer := testsupport.Rules{Topic: func(_ access.Identity, topic string, _ bool) bool {
		if topic == "panic" {
			panic("the rules fail")
		}
		return topic != "forbidden"
	}}
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, Authenticator: testsupport.Rules{}, Authorizer: authorizer})
	for _, topic := range []string{"forbidden", "panic"} {
		_, err := testsupport.TryConnect(t, address, "70", both(testsupport.As("bob"), func(c *paho.Connect) {
			c.WillMessage = &paho.WillMessage{Topic: topic, Payload: []byte("x")}
			c.WillProperties = &paho.WillProperties{}
		}))
		if err == nil {
			t.Fatalf("a Will on %q is admitted", topic)
		}
		testsupport.Eventually(t, "no client id is taken", func() bool { return s.LockedClientIDs() == 0 })
		p, err := testsupport.TryConnect(t, address, "p", testsupport.As("alice"))
		if err != nil {
			t.Fatalf("after a Will on %q: %v", topic, err)
		}
		_ = p.Paho.Disconnect(&paho.Disconnect{})
		testsupport.Eventually(t, "it is gone", func() bool { return s.Clients() == 0 && s.Sockets() == 0 })
	}
	if panics := s.Stats().Panics; panics != 1 {
		t.Errorf("%d panics", panics)
	}
}

// After a link has failed and come back, only the latest connection has a client at its other end.
func TestOfConnectionsOfOneClientTheLatestWaits(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, MaxUnauthenticated: 1000})
	release := s.LockClientID("p", "")
	latest := testsupport.StartLogin(t, address, "p", "")
	testsupport.Eventually(t, "a connection waits", func() bool { return s.Waits("p") })
	for range 10 {
		newer := testsupport.StartLogin(t, address, "p", "")
		if code := latest.ReasonCode(); code != packets.ConnackServerBusy {
			t.Errorf("an older one gets %#x", code)
		}
		testsupport.MustBeClosed(t, latest.Conn)
		latest = newer
	}
	release()
	if code := latest.ReasonCode(); code != packets.ConnackSuccess {
		t.Errorf("the latest gets %#x", code)
	}
	testsupport.Eventually(t, "no client id is taken", func() bool { return s.LockedClientIDs() == 0 })
	if got := s.Stats().Refused[server.RefusedTurn]; got != 10 {
		t.Errorf("%d refusals are counted", got)
	}
}

func TestOneClientCannotHaveManyConnectionsByWaiting(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, MaxUnauthenticated: 1000})
	release := s.LockClientID("p", "")
	for range 200 {
		testsupport.StartLogin(t, address, "p", "")
	}
	testsupport.Eventually(t, "one connection is left", func() bool { return s.Sockets() == 1 && s.Stats().RefusedConnections == 199 })
	release()
	testsupport.Eventually(t, "it is established", func() bool { return s.Stats().Connected == 1 && s.LockedClientIDs() == 0 })
}

func TestAConnectionDoesNotWaitForItsClientIdWithoutEnd(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard}, func(s *server.Server) { s.SetClientIDTimeout(50 * time.Millisecond) })
	release := s.LockClientID("p", "")
	if code := testsupport.StartLogin(t, address, "p", "").ReasonCode(); code != packets.ConnackServerBusy {
		t.Errorf("MQTT 5: %#x", code)
	}
	old := testsupport.DialTCP(t, address)
	testsupport.Send(t, old, "\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01p") // CONNECT of MQTT 3.1.1
	answer := make([]byte, 4)
	if _, err := io.ReadFull(old, answer); err != nil || answer[3] != 3 {
		t.Errorf("MQTT 3.1.1: % x, %v", answer, err)
	}
	if s.Waits("p") {
		t.Error("a connection that was refused still waits")
	}
	release()
	if code := testsupport.StartLogin(t, address, "p", "").ReasonCode(); code != packets.ConnackSuccess {
		t.Errorf("afterwards: %#x", code)
	}
}

// For this reason a server that stops does not wait for it either.
func TestAConnectionThatIsClosedWaitsForNoClientId(t *testing.T) {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0", Logger: testsupport.Discard})
	if err != nil {
		t.Fatal(err)
	}
	s.SetClientIDTimeout(time.Hour)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	s.LockClientID("p", "") // and never gives it back
	testsupport.StartLogin(t, s.Addr().String(), "p", "")
	testsupport.Eventually(t, "a connection waits", func() bool { return s.Waits("p") })
	stop()
	if err := await.Receive(served); err != nil {
		t.Error(err)
	}
}

// Otherwise it could close the connection of another user with that client id.
func TestAConnectionDoesNotWaitForTheClientIdOfAnotherUser(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, Authenticator: testsupport.Rules{}})
	release := s.LockClientID("p", "alice")
	waits := testsupport.StartLogin(t, address, "p", "alice")
	testsupport.Eventually(t, "a connection waits", func() bool { return s.Waits("p") })
	if code := testsupport.StartLogin(t, address, "p", "bob").ReasonCode(); code != packets.ConnackServerBusy { // alice has no session yet
		t.Errorf("another user's connection gets %#x", code)
	}
	release()
	if code := waits.ReasonCode(); code != packets.ConnackSuccess {
		t.Fatalf("the user's own gets %#x", code)
	}
	testsupport.Eventually(t, "no client id is taken", func() bool { return s.LockedClientIDs() == 0 })
	defer s.LockClientID("p", "bob")() // the user's client is known, so that this one waits for nothing either
	if code := testsupport.StartLogin(t, address, "p", "bob").ReasonCode(); code != packets.ConnackNotAuthorized {
		t.Errorf("another user's connection gets %#x", code)
	}
}

// The journal has the client id once for each of up to 256 replies.
func TestAClientWithALongIDDoesNotFillTheDisk(t *testing.T) {
	d := startDurable(t, server.Options{})
	testsupport.Connect(t, d.address, strings.Repeat("i", 256), nil)
	if c, err := testsupport.TryDialRaw(d.address, strings.Repeat("i", 257)); err == nil {
		_ = c.TryDisconnect()
		t.Error("a client with an id of 257 bytes is connected")
	} else if !strings.Contains(err.Error(), "257 bytes; a server that keeps its data takes at most 256") {
		t.Errorf("%v; want the reason", err)
	}
}
