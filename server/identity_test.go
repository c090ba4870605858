package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
)

// mayPublish reports whether the broker accepts a message.
func (p *peer) mayPublish(topic string) bool {
	p.t.Helper()
	ack, err := p.publish(&paho.Publish{QoS: 1, Topic: topic, Payload: []byte("x")})
	switch {
	case err == nil:
		return true
	case ack != nil && ack.ReasonCode == packets.PubackNotAuthorized:
		return false
	}
	p.t.Fatalf("%s: publish to %q: %+v, %v", p.id, topic, ack, err)
	return false
}

func (p *peer) maySubscribe(filter string) bool {
	p.t.Helper()
	code, err := p.trySubscribe(filter)
	if err != nil && code != packets.SubackNotauthorized {
		p.t.Fatalf("%s: subscribe to %q: %#x, %v", p.id, filter, code, err)
	}
	return err == nil
}

// mayBeAnswered reports whether a request that wants its reply on a topic is accepted.
func (p *peer) mayBeAnswered(topic string) bool {
	p.t.Helper()
	request := p.request("GET", "k")
	request.Properties.ResponseTopic = topic
	ack, err := p.publish(request)
	if err != nil && (ack == nil || ack.ReasonCode != packets.PubackNotAuthorized) {
		p.t.Fatalf("%s: answer on %q: %+v, %v", p.id, topic, ack, err)
	}
	return err == nil
}

// Below clients/ a client reads its own topics, in both spellings, and no others; and it
// publishes to those of all clients on which the store never answers.
func TestAClientReadsItsOwnTopicsAndNoOthers(t *testing.T) {
	address := start(t, server.Options{})
	for _, test := range []struct {
		name, client, topic string
		own, publish        bool
	}{
		{"the plain form", "p", "clients/p/services/statestore/_any_/command/invoke/response", true, false},
		{"the hex form", "p", "clients/70/services/statestore/_any_/command/invoke/response", true, false},
		{"another client", "p", "clients/q/response", false, true},
		{"another client in hex", "p", "clients/71/response", false, true},
		{"a name that begins with its own", "p", "clients/pq/response", false, true},
		{"a name that its own begins with", "pq", "clients/p/response", false, true},
		{"no name", "p", "clients//response", false, false},
		{"nothing below the name", "p", "clients/p", false, false},
		{"no level of its own", "p", "clients", false, false},
		{"lower-case hex", "j", "clients/6a/response", false, true},
		{"upper-case hex", "j", "clients/6A/response", true, true},
		{"a name with a slash in plain", "a/b", "clients/a/b/response", false, true},
		{"a name with a slash in hex", "a/b", "clients/612F62/response", true, true},
		{"the store's topics by a client of its name", "statestore", "clients/statestore/x", false, false},
		{"the same in hex", "statestore", "clients/737461746573746F7265/response", true, true},
		{"a hexadecimal name whose owner is not there", "72", "clients/72/response", true, true},
		{"the same name in hex", "72", "clients/3732/response", true, true},
		{"other topics of the store", "p", "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/x", false, false},
		{"elsewhere", "p", "factory/answers", true, true},
		{"a topic that only begins like that of clients", "p", "clientship/q", true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := tryConnect(t, address, test.client, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.mayPublish(test.topic); got != test.publish {
				t.Errorf("client %q may publish to %q: %v", test.client, test.topic, got)
			}
			if got := p.mayBeAnswered(test.topic); got != test.own {
				t.Errorf("client %q may be answered on %q: %v", test.client, test.topic, got)
			}
			if test.topic == "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/x" {
				return // nothing is ever published there, so anybody may listen
			}
			if got := p.maySubscribe(test.topic); got != test.own {
				t.Errorf("client %q may subscribe to %q: %v", test.client, test.topic, got)
			}
			for _, share := range []string{"$share", "$SHARE", "$Share"} {
				if got := p.maySubscribe(share + "/group/" + test.topic); got != test.own {
					t.Errorf("client %q may subscribe to %q, with %s: %v", test.client, test.topic, share, got)
				}
			}
		})
	}
}

func TestAWildcardNeverDeliversWhatItsClientMayNotRead(t *testing.T) {
	address := start(t, server.Options{})
	p, spy := connect(t, address, "p", nil), connect(t, address, "spy", nil)
	for _, filter := range []string{"#", "clients/#", "clients/+/response", "+/p/response", "statestore/#"} {
		if !spy.maySubscribe(filter) {
			t.Errorf("subscribe to %q is refused", filter)
		}
	}
	p.do("KEYNOTIFY", "k")
	p.do("SET", "k", "secret")
	p.nextNotification()
	// What arrives at the spy after its own message was sent after all that.
	spy.mayPublish("last")
	for message := spy.next(); message.Topic != "last"; message = spy.next() {
		t.Errorf("the spy received %v", message)
	}
	if len(spy.notified) > 0 {
		t.Errorf("the spy received a notification of another: %v", await.Receive(spy.notified))
	}
}

// onlyTopics is an Authorizer that knows nothing of filters.
type onlyTopics struct{ access.TopicAuthorizer }

func (onlyTopics) Authorize(access.Identity, statestore.Verb, string) bool { return true }

// A shared subscription takes messages from the other members of its group, so it needs
// the right to each of them.
func TestASharedSubscriptionNeedsTheRightToAllThatCouldCome(t *testing.T) {
	file, err := access.Parse([]byte(`
users: [{name: alice}]
rules: [{users: [alice], subscribe: ["factory/*", "news"]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		filter                       string
		unruled, ruled, topicsByRule bool // without rules; by those of a file; by rules for topics only
	}{
		{"factory/x", true, true, true},
		{"elsewhere", true, false, false},
		{"news", true, true, true},
		{"factory/+", true, true, false},
		{"factory/a/#", true, true, false},
		{"factory/#", true, false, false}, // matches the topic factory
		{"fac/+/x", true, false, false},
		{"statestore/+/x", true, false, false},
		{"clients/p/response", true, true, true},
		{"clients/p/#", true, true, true},
		{"clients/70/+/x", true, true, true},
		{"clients/p/services/statestore/_any_/command/invoke/response", true, true, true},
		{"clients/q/response", false, false, false},
		{"clients/q/#", false, false, false},
		{"clients/+/response", false, false, false},
		{"clients/#", false, false, false},
		{"clients/+", false, false, false},
		{"clients/statestore/#", false, false, false},
		{"+", false, false, false},
		{"+/p/response", false, false, false},
		{"+/#", false, false, false},
		{"#", false, false, false},
		{"/#", true, false, false},
		{"statestore/#", false, false, false},
		{"statestore/+/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke", false, false, false},
		{"statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/#", false, false, false},
		{invokeTopic, false, false, false},
		{"$SYS/#", false, false, false},
		{"$SYS/broker/uptime", false, false, false},
		{"$share/group/factory/x", false, false, false},
		{"$share/group/#", false, false, false},
		{"", false, false, false},
	} {
		who := access.Identity{Client: "p", User: "alice"}
		for name, rule := range map[string]struct {
			authorizer access.Authorizer
			want       bool
		}{
			"no rules": {nil, test.unruled}, "a file": {file, test.ruled}, "rules for topics only": {onlyTopics{file}, test.topicsByRule},
		} {
			_, s := startServer(t, server.Options{Authorizer: rule.authorizer})
			for _, share := range []string{"$share", "$SHARE", "$sHaRe"} {
				if got := s.MaySubscribe(who, share+"/group/"+test.filter); got != rule.want {
					t.Errorf("%s: %s/group/%s: %v", name, share, test.filter, got)
				}
			}
			if rule.want && !s.MaySubscribe(who, test.filter) {
				t.Errorf("%s: %s is granted only where it is shared", name, test.filter)
			}
		}
	}
	_, s := startServer(t, server.Options{})
	for _, malformed := range []string{"$share", "$share/", "$share/group", "$share/group/", "$SHARE//"} {
		if s.MaySubscribe(access.Identity{Client: "p"}, malformed) {
			t.Errorf("%q is granted", malformed)
		}
	}
}

// What a client may not read is not lost for a group, since the client is not a member.
func TestASpyTakesNoMessagesFromAGroup(t *testing.T) {
	authorizer := rules{topic: func(who access.Identity, topic string, write bool) bool { return write || who.User == "worker" }}
	address := start(t, server.Options{Authenticator: authorizer, Authorizer: onlyTopics{authorizer}})
	worker, spy := connect(t, address, "w", as("worker")), connect(t, address, "spy", as("spy"))
	worker.subscribe("$share/group/jobs/a")
	for _, filter := range []string{"$share/group/jobs/a", "$SHARE/group/jobs/a", "$share/group/jobs/+", "$SHARE/group/#", "$Share/group/clients/+/rpc"} {
		if spy.maySubscribe(filter) {
			t.Errorf("subscribe to %q is granted", filter)
		}
	}
	for range 20 {
		spy.mayPublish("jobs/a")
		if message := worker.next(); message.Topic != "jobs/a" {
			t.Fatalf("the worker received %v", message)
		}
	}
	spy.mustBeSilent()
}

// Nothing is published on topics that begin with $, and a subscription says so.
func TestSysTopicsAreRefused(t *testing.T) {
	p := connect(t, start(t, server.Options{}), "p", nil)
	for _, filter := range []string{"$SYS/#", "$SYS/broker/clients/connected", "$sys/+", "$other"} {
		if p.maySubscribe(filter) {
			t.Errorf("subscribe to %q is granted", filter)
		}
	}
}

func TestAWillIsJudgedLikeAPublish(t *testing.T) {
	address := start(t, server.Options{})
	for _, test := range []struct {
		topic string
		own   bool
	}{
		{"clients/p/gone", true},
		{"clients/70/gone", true},
		{"factory/p/gone", true},
		{"clients/q/gone", false},
		{"clients/statestore/v1/x", false},
		{"statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/x", false},
	} {
		p, err := tryConnect(t, address, "p", func(c *paho.Connect) {
			c.WillMessage = &paho.WillMessage{Topic: test.topic, Payload: []byte("x"), QoS: 1}
		})
		if (err == nil) != test.own {
			t.Errorf("a Will on %q: %v", test.topic, err)
		}
		if !test.own && (p.connack == nil || p.connack.ReasonCode != packets.ConnackNotAuthorized) {
			t.Errorf("a Will on %q is refused with %+v", test.topic, p.connack)
		}
	}
}

// The broker resolves an alias after it has asked whether the client may publish to the
// topic, so there are none.
func TestATopicAliasDoesNotHideATopic(t *testing.T) {
	address := start(t, server.Options{})
	p, other := connect(t, address, "p", nil), connect(t, address, "other", nil)
	alias := uint16(1)
	message := &packets.Publish{Topic: "clients/p/x", Payload: []byte("x"), Properties: &packets.Properties{TopicAlias: &alias}}
	if _, err := message.WriteTo(p.conn); err != nil {
		t.Fatal(err)
	}
	p.mustBeGone()
	other.mustBeSilent()
}

// rules is an Authorizer, and an Authenticator that believes any user name.
type rules struct {
	key   func(who access.Identity, verb statestore.Verb, key string) bool
	topic func(who access.Identity, topic string, write bool) bool
}

func (rules) Authenticate(access.Credentials) error { return nil }
func (r rules) Authorize(who access.Identity, verb statestore.Verb, key string) bool {
	return r.key == nil || r.key(who, verb, key)
}
func (r rules) AuthorizeTopic(who access.Identity, topic string, write bool) bool {
	return r.topic == nil || r.topic(who, topic, write)
}

func as(user string) func(*paho.Connect) {
	return func(c *paho.Connect) {
		c.UsernameFlag, c.Username = true, user
		c.PasswordFlag, c.Password = true, []byte("secret")
	}
}

func TestTheAuthorizerIsAskedForEachRequest(t *testing.T) {
	var asked []string
	authorizer := rules{key: func(who access.Identity, verb statestore.Verb, key string) bool {
		asked = append(asked, fmt.Sprint(who.Client, " ", who.User, " ", verb, " ", key))
		return key != "forbidden"
	}}
	p := connect(t, start(t, server.Options{Authenticator: authorizer, Authorizer: authorizer}), "p", as("alice"))
	for _, words := range [][]string{{"SET", "k", "v"}, {"get", "k"}, {"DEL", "k"}, {"VDEL", "k", "v"}, {"KEYNOTIFY", "k"}} {
		if got := p.do(words...); strings.HasPrefix(got, "-ERR") {
			t.Errorf("%q: %q", words, got)
		}
		words[1] = "forbidden"
		if got := p.do(words...); got != "-ERR not authorized\r\n" {
			t.Errorf("%q: %q", words, got)
		}
	}
	p.do("FROB", "k")
	want := []string{
		"p alice SET k", "p alice SET forbidden", "p alice GET k", "p alice GET forbidden", "p alice DEL k", "p alice DEL forbidden",
		"p alice VDEL k", "p alice VDEL forbidden", "p alice KEYNOTIFY k", "p alice KEYNOTIFY forbidden",
	}
	if strings.Join(asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

func TestTopicsElsewhereAreAllowedUnlessTheRulesSayOtherwise(t *testing.T) {
	authorizer := rules{topic: func(who access.Identity, topic string, write bool) bool {
		return strings.HasPrefix(topic, who.User+"/") || !write && topic == "news"
	}}
	p := connect(t, start(t, server.Options{Authenticator: authorizer, Authorizer: authorizer}), "p", as("alice"))
	for _, test := range []struct {
		topic       string
		write, read bool
	}{
		{"alice/x", true, true},
		{"bob/x", false, false},
		{"news", false, true},
		{"clients/p/x", true, true}, // not a matter of rules
		{"clients/bob/x", false, false},
	} {
		if got := p.mayPublish(test.topic); got != test.write {
			t.Errorf("publish to %q: %v", test.topic, got)
		}
		if got := p.mayBeAnswered(test.topic); got != test.write {
			t.Errorf("be answered on %q: %v", test.topic, got)
		}
		if got := p.maySubscribe(test.topic); got != test.read {
			t.Errorf("subscribe to %q: %v", test.topic, got)
		}
	}
	if !p.maySubscribe("#") {
		t.Error("a wildcard is refused")
	}
}

func TestAClientIdCannotBeTakenOverByAnotherUser(t *testing.T) {
	address := start(t, server.Options{Authenticator: rules{}})
	keep := uint32(600)
	for _, test := range []struct {
		name string
		end  func(*peer)
	}{
		{"while it is connected", func(*peer) {}},
		{"while its session is kept", func(p *peer) { _ = p.paho.Disconnect(&paho.Disconnect{}) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := connect(t, address, "p", func(c *paho.Connect) {
				as("alice")(c)
				c.Properties.SessionExpiryInterval = &keep
			})
			test.end(p)
			thief, err := tryConnect(t, address, "p", as("bob"))
			if err == nil || thief.connack == nil || thief.connack.ReasonCode != packets.ConnackNotAuthorized ||
				!strings.Contains(thief.connack.Properties.ReasonString, "another user") {
				t.Errorf("another user: %+v, %v", thief.connack, err)
			}
			connect(t, address, "p", as("alice"))
		})
	}
}
