package attach

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/statestore"
)

func keyNotify(client, key string) statestore.Command {
	return statestore.Parse(statestore.Request{Client: client, Payload: resp3.AppendCommand(nil, "KEYNOTIFY", key)})
}

func attachedTo(t *testing.T, options Options) *Store {
	t.Helper()
	a, err := New("mqtt://localhost", options)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// isProtected reports whether a client has sent requests for more than protectedAfter.
func (s *Store) isProtected(client string) bool {
	element := s.clients.clients[client]
	return element != nil && element.Value.(*clientEntry).protected
}

// submit applies a command of a client to a store that is not attached.
func submit(a *Store, command statestore.Command) {
	a.clients.heard(command.Client, command.Verb == statestore.VerbKeyNotify)
	a.engine.Submit(command, nil)
}

// change makes the store notify the clients that watch a key, and returns what it queues.
func change(a *Store, key string) (queued []pendingNotification) {
	ts := "0:0:writer"
	submit(a, statestore.Parse(statestore.Request{Client: "writer", Payload: resp3.AppendCommand(nil, "SET", key, "v"), Timestamp: &ts}))
	for {
		notification, ok := a.queue.pop()
		if !ok {
			return queued
		}
		queued = append(queued, notification)
	}
}

// The broker says that a notification has no subscriber; meanwhile the client has come back,
// subscribed, and asked to be notified.
func TestAWatchThatWasRenewedOutlivesWhatIsSaidOfTheOldOne(t *testing.T) {
	a := attachedTo(t, Options{})
	submit(a, keyNotify("a", "k"))
	before := change(a, "k")
	if len(before) != 1 {
		t.Fatalf("queued %v", before)
	}
	submit(a, keyNotify("a", "k"))
	if a.unread(before[0]); len(change(a, "k")) != 1 {
		t.Error("the new watch is dropped")
	}
	a.unread(change(a, "k")[0])
	if queued := change(a, "k"); len(queued) != 0 || a.Stats().DroppedWatches != 1 {
		t.Errorf("the watch goes on: %v, %+v", queued, a.Stats())
	}
}

// One publisher can claim any ids. The clients that it makes up push out each other, and clients that the store has
// not known for long.
func TestMadeUpClientsPushOutNoConfirmedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100
		a := attachedTo(t, Options{MaxClients: limit})
		flood := func(name string, n int) {
			for i := range n {
				submit(a, keyNotify(fmt.Sprint(name, i), "other"))
			}
		}
		isWatched := func(key string) bool { return len(change(a, key)) == 1 }
		submit(a, keyNotify("once", "of once"))
		submit(a, keyNotify("protected", "of protected"))
		flood("early ", limit/2)
		time.Sleep(protectedAfter + time.Second)
		submit(a, keyNotify("protected", "of protected"))
		for _, name := range []string{"first ", "second "} { // the second time more of them have stayed
			flood(name, 3*limit)
			time.Sleep(protectedAfter + time.Second)
			flood(name, 3*limit)
		}
		if !isWatched("of protected") || isWatched("of once") {
			t.Error("a protected client was forgotten, or one that is not was kept")
		}
		if !a.isProtected("protected") || a.Stats().Clients != limit {
			t.Errorf("%d clients are remembered", a.Stats().Clients)
		}
	})
}

// At most three quarters of the clients are protected. The place of one is free for another after ten minutes.
func TestAnIdleClientGivesWayToOneThatIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := attachedTo(t, Options{MaxClients: 4})
		heard := func(client string) { submit(a, keyNotify(client, "k")) }
		for range 2 {
			for _, client := range []string{"a", "b", "c", "d"} {
				heard(client)
			}
			time.Sleep(protectedAfter + time.Second)
		}
		if !a.isProtected("c") || a.isProtected("d") {
			t.Fatal("not three of four clients are protected")
		}
		time.Sleep(idleAfter / 2)
		heard("b")
		heard("c")
		if heard("d"); a.isProtected("d") {
			t.Error("a client has protected in the place of one that is not idle")
		}
		time.Sleep(idleAfter / 2)
		if heard("d"); !a.isProtected("d") || a.isProtected("a") || !a.isProtected("b") {
			t.Error("the idle client has not given way")
		}
	})
}

// They may deliver requests again, while others make up ids.
func TestClientsOfTheJournalAreConfirmed(t *testing.T) {
	a := attachedTo(t, Options{MaxClients: 4})
	a.clients.restore([]string{"a", "b", "c", "d", "e"})
	if !a.isProtected("a") || !a.isProtected("c") || a.isProtected("d") || a.Stats().Clients != 4 {
		t.Errorf("%d clients are remembered, not the first three of them as protected", a.Stats().Clients)
	}
}

func TestNotificationsBeyondTheQueueAreLostAndCounted(t *testing.T) {
	a, change := attachedTo(t, Options{}), &statestore.Change{Key: "k"}
	for range maxQueued/envelope.NotificationCost(change) + 5 {
		a.deliver(statestore.Notification{Client: "a", Change: change})
	}
	if got := a.Stats().LostNotifications; got != 5 {
		t.Errorf("%d were lost, want 5", got)
	}
	a.queue.drain(a.unqueued)
	if _, ok := a.queue.pop(); ok || a.queuedBytes.Load() != 0 {
		t.Error("something is left")
	}
}

func TestAStoreDoesNotBeginOnABrokerThatLacksWhatItNeeds(t *testing.T) {
	for want, l := range map[string]*link{
		"retained":   {client: &mqtt.Client{MaxPacket: leastPacket, Silence: time.Second}},
		"packets":    {client: &mqtt.Client{MaxPacket: leastPacket - 1, Silence: time.Second}},
		"keep-alive": {client: &mqtt.Client{MaxPacket: leastPacket}},
	} {
		if err := l.check(&paho.ConnackProperties{RetainAvailable: want != "retained"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// The broker may have sent requests before it knows that the store no longer reads them.
func TestAStoreThatHasYieldedAppliesNoMoreRequests(t *testing.T) {
	a := attachedTo(t, Options{})
	l := &link{
		store:      a,
		presence:   presence{me: a.instance, stage: answering},
		changed:    make(chan struct{}, 1),
		superseded: make(chan struct{}),
	}
	arrives := func(topic, payload string) {
		t.Helper()
		l.received(&mqtt.Publish{Topic: []byte(topic), Payload: []byte(payload)})
	}
	looked := func() uint64 { return a.Stats().Dropped[envelope.DroppedQoS] } // counted in any case: there is no connection to answer on
	if arrives(protocol.InvokeTopic, ""); looked() != 1 {
		t.Fatalf("%+v", a.Stats())
	}
	arrives(presenceTopic, "answers another")
	if arrives(protocol.InvokeTopic, ""); looked() != 1 {
		t.Errorf("%+v", a.Stats())
	}
	select {
	case <-l.superseded:
	default:
		t.Error("it does not yield")
	}
}

func TestAStoreTriesAgainOnlyWhereThatMayHelp(t *testing.T) {
	for code, again := range map[byte]bool{
		0x80: true, 0x83: true, 0x88: true, 0x89: true, 0x97: true, 0x9F: true, // busy, over quota, or unknown
		0x84: false, 0x86: false, 0x87: false, 0x8A: false, 0x90: false, 0x9A: false,
	} {
		cause := errors.New("cause")
		err := finalUnless(code, cause)
		var final finalError
		if errors.As(err, &final) == again || !errors.Is(err, cause) {
			t.Errorf("%#x: %v, want again: %v", code, err, again)
		}
	}
}

// A password in the URL is not repeated.
func TestAttachRefusesNonsense(t *testing.T) {
	refused := func(broker string, options Options, says string) {
		t.Helper()
		if _, err := New(broker, options); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", broker, err, says)
		}
	}
	for _, broker := range []string{
		"", "http://localhost", "mqtt://", "mqtt://user@localhost", "mqtt://localhost/path", "mqtt://localhost?x=y", "mqtt://local host",
		"mqtt://user:secret@broker", "mqtt://user:secret/2@broker", "mqtt://user:secret#2@broker", "mqtt://user:2#secret@broker",
		"mqtt://user:%secret@broker", "user:secret@broker", "mqtt//user:secret@broker", "mqtt://user:secret@bro ker",
	} {
		refused(broker, Options{}, "attach: ")
	}
	refused("ws://localhost", Options{}, "tenurews.Upgrade")
	refused("mqtt://localhost", Options{MaxClients: -1}, "MaxClients -1")
	refused("mqtt://localhost", Options{MaxPacketSize: 1023}, "MaxPacketSize 1023")
	refused("mqtt://localhost", Options{TLS: new(tls.Config)}, "mqtts")
	refused("mqtt://localhost", Options{Shared: true}, "Journal")
}

func TestAPasswordThatTravelsInTheClearIsWarnedAbout(t *testing.T) {
	for broker, warned := range map[string]bool{"mqtt://localhost": true, "mqtts://localhost": false} {
		var log logbuffer.Buffer
		if _, err := New(broker, Options{Username: "store", Password: []byte("secret"), Logger: log.Logger()}); err != nil {
			t.Fatal(err)
		}
		if got := log.String(); strings.Contains(got, "not encrypted") != warned || strings.Contains(got, "secret") {
			t.Errorf("%s: logged %q; want a warning: %t", broker, got, warned)
		}
	}
}
