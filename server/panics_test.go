package server_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/statestore"
)

// fragile are rules that, while they are told to, panic about the key and the topic boom, and
// about what the client "victim" reads on the topic aching.
func fragile(on *atomic.Bool) rules {
	return rules{
		key: func(_ access.Identity, _ statestore.Verb, key string) bool {
			if key == "boom" && on.Load() {
				panic("the rules are broken")
			}
			return true
		},
		topic: func(who access.Identity, topic string, write bool) bool {
			if on.Load() && (topic == "boom" && write || topic == "aching" && !write && who.Client == "victim") {
				panic("the rules are broken")
			}
			return true
		},
	}
}

func broken() *atomic.Bool {
	on := new(atomic.Bool)
	on.Store(true)
	return on
}

// Each panic ends one connection. Nothing that connections share stays locked or taken: there
// are more panics than turns and places.
// Invariant 55: no sequence of bytes from one connection affects anything beyond it.
func TestAPanicEndsTheConnectionThatCausedItAndNothingElse(t *testing.T) {
	const often = 15 // more than are logged at once
	for name, cause := range map[string]func(*bare){
		"a request":      func(c *bare) { c.say(string(bequeath(c.id).request("SET", "boom", "v"))) },
		"a publication":  func(c *bare) { c.say(string(rawmqtt.Message{Topic: "boom", QoS: 1, ID: 5}.Packet())) },
		"a subscription": func(c *bare) { c.say(string(rawmqtt.SubscribeTo(5, 0, "aching"))) },
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			authorizer := fragile(broken())
			address, s := startServer(t, server.Options{
				Authenticator: authorizer, Authorizer: authorizer, Logger: slog.New(slog.NewTextHandler(&log, nil)), Store: statestore.Options{Identity: "s"},
			})
			other := watch(t, address, "left")
			for n := range often {
				will := bequeath("victim", "SET", "left", fmt.Sprint(n))
				will.ts = inAMinute()
				will.user = "u"
				c := will.leave(t, address, "victim")
				c.must(t, 1, "+OK\r\n", "KEYNOTIFY", "watched")
				cause(c)
				for {
					if _, err := c.receive(); err != nil {
						break
					}
				}
				other.mustSee("SET", "VALUE", fmt.Sprint(n))
				eventually(t, "the connection is forgotten", func() bool { return s.Stats().Connected == 1 })
				if got := s.Usage().Store.Watches; got != 1 {
					t.Errorf("%d watches are left", got)
				}
			}
			if got := s.Stats(); got.Panics != often || got.AppliedWills != often {
				t.Errorf("%+v", got)
			}
			if got := strings.Count(log.String(), "recovered from a panic"); got == 0 || got >= often || !strings.Contains(log.String(), "panics_test.go:") {
				t.Errorf("%d panics are logged: %.1000s", got, log.String())
			}
			again := connect(t, address, "victim", as("u"))
			if got := again.do("SET", "left", "well"); got != "+OK\r\n" {
				t.Error(got)
			}
			other.mustSee("SET", "VALUE", "well")
		})
	}
}

// request returns a request of the client whose testament this is.
func (w testament) request(words ...string) []byte {
	properties := rawmqtt.Body{wire.ResponseTopic}.Text(w.response).Byte(wire.CorrelationData).Text("boom").User("__ts", inAMinute())
	return rawmqtt.Message{Topic: invokeTopic, QoS: 1, ID: 5, Properties: properties, Payload: command(words...)}.Packet()
}

func TestAPanicAboutAWillIsCountedOnceAndLeavesTheClientIDFree(t *testing.T) {
	authorizer := fragile(broken())
	address, s := startServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	for n := range 5 {
		will := bequeath("victim", "DEL", "boom")
		will.user = "u"
		_ = will.leave(t, address, "victim").conn.Close()
		eventually(t, "the connection is forgotten", func() bool { return s.Stats().Connected == 0 })
		if got := s.Stats().Panics; got != uint64(n)+1 {
			t.Errorf("after %d connections, %d panics", n+1, got)
		}
	}
}

// careless is an Authenticator that panics for one client.
type careless struct{ rules }

func (careless) Authenticate(c access.Credentials) error {
	if c.Client == "victim" {
		panic("the passwords are gone")
	}
	return nil
}

func TestAnAuthenticatorThatPanicsTakesNoPlaceOfOthers(t *testing.T) {
	address, s := startServer(t, server.Options{Authenticator: careless{}, PasswordChecks: 1})
	for range 5 {
		if _, connack := (hello{id: "victim", user: "u"}).try(t, address); connack != nil {
			t.Errorf("CONNACK %x", connack)
		}
	}
	hello{id: "other", user: "u"}.join(t, address)
	eventually(t, "the panics are counted", func() bool { return s.Stats().Panics == 5 })
}

// The rules about one receiver are asked by the goroutine of a publisher, which must not pay
// for them.
func TestAPanicAboutAReceiverEndsItsConnectionAndNotThatOfThePublisher(t *testing.T) {
	on := new(atomic.Bool)
	authorizer := fragile(on)
	address, s := startServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	others := []*messenger{hello{id: "a", user: "u"}.join(t, address), nil}
	victim := hello{id: "victim", user: "u", resume: true, expiry: 600}
	c := victim.join(t, address)
	others[1] = hello{id: "z", user: "u"}.join(t, address)
	publisher := hello{id: "publisher", user: "u"}.join(t, address)
	c.hears("+")
	for _, other := range others {
		other.hears("+")
	}
	on.Store(true)
	publisher.tells("aching", "while it is connected")
	c.mustEnd()
	eventually(t, "the victim is away", func() bool { return s.Stats().Connected == 3 })
	publisher.tells("aching", "while it is away")
	on.Store(false)
	publisher.tells("aching", "while all is well")
	on.Store(true)
	c = victim.join(t, address) // its goroutine that writes asks again
	c.mustEnd()
	if !c.present {
		t.Error("the session is gone")
	}
	eventually(t, "the victim is away", func() bool { return s.Stats().Connected == 3 })
	on.Store(false)
	c = victim.join(t, address)
	publisher.tells("aching", "at last")
	dropped := uint64(3)
	if h := c.next(); h.payload == "while all is well" { // its connection was gone before the answer
		c.ack(h)
		dropped--
		h = c.next()
		c.ack(h)
	} else if h.payload != "at last" {
		t.Errorf("heard %q", h.payload)
	}
	for _, other := range others {
		other.mustHear("while it is connected", "while it is away", "while all is well", "at last")
	}
	if got := s.Stats().Panics; got != 3 {
		t.Errorf("%d panics", got)
	}
	if got := s.Usage().DroppedMessages["not readable"]; got != dropped {
		t.Errorf("%d messages were not readable", got)
	}
}

// A Will that waits is published by a goroutine of the server, or of whichever connection
// ends the session.
func TestAPanicAboutAWillThatWaitedHarmsNothing(t *testing.T) {
	for name, end := range map[string]func(*testing.T, string){
		"when it is due":           func(*testing.T, string) {},
		"when the session ends":    func(t *testing.T, address string) { hello{id: "victim", user: "u"}.join(t, address) },
		"when nothing can be kept": func(*testing.T, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			on := new(atomic.Bool)
			authorizer := fragile(on)
			options := server.Options{Authenticator: authorizer, Authorizer: authorizer}
			delay := uint32(600)
			switch name {
			case "when it is due":
				delay = 1
			case "when nothing can be kept":
				options.Limits.SessionsPerUser = 1
			}
			address, s := startServer(t, options)
			kept := hello{id: "kept", user: "u", expiry: 600}.join(t, address)
			kept.farewell()
			eventually(t, "one session is kept", func() bool { return s.Stats().Connected == 0 })
			c := hello{id: "victim", user: "u", expiry: 600, will: &rawmqtt.Message{
				Topic: "boom", Payload: []byte("gone"), Properties: rawmqtt.Body{wire.WillDelay}.Uint32(delay),
			}}.join(t, address)
			on.Store(true)
			_ = c.conn.Close()
			eventually(t, "the victim is away", func() bool { return s.Stats().Connected == 0 })
			end(t, address)
			eventually(t, "the panic is counted", func() bool { return s.Stats().Panics == 1 })
			hello{id: "victim", user: "u"}.join(t, address)
		})
	}
}

// A store that was left in the middle of a change must not go on. A child process shows it.
func TestAPanicInTheStoreEndsTheProcess(t *testing.T) {
	const variable = "TENURE_TEST_PANIC_IN_STORE"
	for _, where := range []string{"a request", "a delivery", "a Will"} {
		t.Run(where, func(t *testing.T) {
			if os.Getenv(variable) == where {
				breakStore(t, where)
				return
			}
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAPanicInTheStoreEndsTheProcess$/^"+strings.ReplaceAll(where, " ", "_")+"$")
			child.Env = append(os.Environ(), variable+"="+where)
			type result struct {
				output []byte
				err    error
			}
			got := await.Result(func() result {
				output, err := child.CombinedOutput()
				return result{output, err}
			})
			if got.err == nil || !strings.Contains(string(got.output), "the state of the store is in doubt after a panic: half a change") {
				t.Errorf("the process ended with %v:\n%.2000s", got.err, got.output)
			}
		})
	}
}

// breakStore makes the store panic. The rules are where a test can get at it.
func breakStore(t *testing.T, where string) {
	var s *server.Server
	on := new(atomic.Bool)
	hurt := func() bool {
		if on.Load() {
			s.PanicInStore("half a change")
		}
		return true
	}
	authorizer := rules{
		key:   func(access.Identity, statestore.Verb, string) bool { return hurt() },
		topic: func(_ access.Identity, _ string, write bool) bool { return write == (where == "a delivery") || hurt() },
	}
	if where == "a Will" {
		authorizer.topic = nil
	}
	var address string
	address, s = startServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	will := bequeath("p", "DEL", "k")
	will.user = "u"
	c := will.leave(t, address, "p")
	listener := hello{id: "listener", user: "u"}.join(t, address)
	listener.hears("+")
	on.Store(true)
	switch where {
	case "a request":
		c.say(string(will.request("DEL", "k")))
	case "a Will":
		_ = c.conn.Close()
	case "a delivery":
		c.say(string(rawmqtt.Message{Topic: "news", QoS: 1, ID: 5}.Packet()))
	}
	listener.mustEnd()
	t.Log("the server lives on")
}
