package server_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// Not even where one id can be had from the other by hex: only ids of which one is the hex of the
// other are kept apart, and that is decided without waiting.
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

// From the moment in which the question whether a name is free was answered, until the client is
// entered or its connection has ended.
func TestAClientThatIsAdmittedIsThereForOthersBeforeItIsEntered(t *testing.T) {
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
		testsupport.Eventually(t, "it is gone", func() bool { return s.Mochi().Clients.Len() == 0 })
	}
}

// Whatever kept the client from being entered: a refusal after the claim, or a panic.
func TestAClientThatIsNotEnteredLeavesItsNameToOthers(t *testing.T) {
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
		testsupport.Eventually(t, "it is gone", func() bool { return s.Mochi().Clients.Len() == 0 && s.Sockets() == 0 })
	}
	if panics := s.Stats().Panics; panics != 1 {
		t.Errorf("%d panics", panics)
	}
}

// The latest is the one with a client at its other end, if a link fails and comes back.
func TestOfConnectionsOfOneClientTheLatestWaits(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, MaxUnauthenticated: 1000})
	release := s.LockClientID("p", "")
	latest := call(t, address, "p", "", nil)
	testsupport.Eventually(t, "a connection waits", func() bool { return s.Waits("p") })
	for range 10 {
		newer := call(t, address, "p", "", nil)
		if code := latest.answer(t); code != packets.ConnackServerBusy {
			t.Errorf("an older one gets %#x", code)
		}
		mustBeClosed(t, latest)
		latest = newer
	}
	release()
	if code := latest.answer(t); code != packets.ConnackSuccess {
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
		call(t, address, "p", "", nil)
	}
	testsupport.Eventually(t, "one connection is left", func() bool { return s.Sockets() == 1 && s.Stats().RefusedConnections == 199 })
	release()
	testsupport.Eventually(t, "it is established", func() bool { return s.Stats().Connected == 1 && s.LockedClientIDs() == 0 })
}

func TestAConnectionDoesNotWaitForItsClientIdWithoutEnd(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard}, func(s *server.Server) { s.SetClientIDTimeout(50 * time.Millisecond) })
	release := s.LockClientID("p", "")
	if code := call(t, address, "p", "", nil).answer(t); code != packets.ConnackServerBusy {
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
	if code := call(t, address, "p", "", nil).answer(t); code != packets.ConnackSuccess {
		t.Errorf("afterwards: %#x", code)
	}
}

// So a server that stops does not wait either.
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
	call(t, s.Addr().String(), "p", "", nil)
	testsupport.Eventually(t, "a connection waits", func() bool { return s.Waits("p") })
	stop()
	if err := await.Receive(served); err != nil {
		t.Error(err)
	}
}

// Or it could drive out the connection of the user with whose client id it comes.
func TestAConnectionDoesNotWaitForTheClientIdOfAnotherUser(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, Authenticator: testsupport.Rules{}})
	release := s.LockClientID("p", "alice")
	waits := call(t, address, "p", "alice", nil)
	testsupport.Eventually(t, "a connection waits", func() bool { return s.Waits("p") })
	if code := call(t, address, "p", "bob", nil).answer(t); code != packets.ConnackServerBusy { // she is not known yet
		t.Errorf("another user's connection gets %#x", code)
	}
	release()
	if code := waits.answer(t); code != packets.ConnackSuccess {
		t.Fatalf("the user's own gets %#x", code)
	}
	testsupport.Eventually(t, "no client id is taken", func() bool { return s.LockedClientIDs() == 0 })
	defer s.LockClientID("p", "bob")() // the user's client is known, so that this one waits for nothing either
	if code := call(t, address, "p", "bob", nil).answer(t); code != packets.ConnackNotAuthorized {
		t.Errorf("another user's connection gets %#x", code)
	}
}
