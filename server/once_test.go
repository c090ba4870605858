package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

func TestInvariant23ARequestThatIsDeliveredAgainIsAppliedOnce(t *testing.T) {
	for _, test := range []struct {
		name  string
		first func(*paho.Connect)
		again func(*paho.Connect) // nil: over the same connection
		once  bool
	}{
		{"over the same connection", nil, nil, true},
		{"after a reconnect to the same session", testsupport.KeepSession(true), testsupport.KeepSession(false), true},
		{"after a reconnect without a session", nil, nil, false},
		{"after a reconnect that began a new session", testsupport.KeepSession(true), testsupport.KeepSession(true), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := testsupport.Start(t, server.Options{})
			p := testsupport.Connect(t, address, "p", test.first)
			request := p.Request("SET", "k", "v", "NX")
			deliver := func() string {
				t.Helper()
				if _, err := p.Publish(request); err != nil {
					t.Fatal(err)
				}
				reply := p.Next()
				return string(reply.Payload) + reply.Properties.User.Get("__ts")
			}
			first := deliver()
			p.Do("DEL", "k")
			if test.name != "over the same connection" {
				_ = p.Paho.Disconnect(&paho.Disconnect{})
				p = testsupport.Connect(t, address, "p", test.again)
			}
			if second := deliver(); (second == first) != test.once {
				t.Errorf("the first reply was %q, the second %q", first, second)
			}
			if test.once {
				p.MustGet("k", "")
			} else {
				p.MustGet("k", "v")
			}
		})
	}
}

// slowly is an Authorizer that takes its time over one key.
type slowly struct{ took chan time.Duration }

func (s slowly) Authorize(_ access.Identity, _ statestore.Verb, key string) bool {
	if key == "slow" {
		began := time.Now()
		time.Sleep(1100 * time.Millisecond)
		s.took <- time.Since(began)
	}
	return true
}

func TestARequestWhoseMessageExpiryPassedIsNotApplied(t *testing.T) {
	authorizer := slowly{make(chan time.Duration, 2)}
	address, s := testsupport.StartServer(t, server.Options{Authorizer: authorizer})
	p := testsupport.Connect(t, address, "p", nil)
	short, long := uint32(1), uint32(600)
	request := p.Request("SET", "slow", "v")
	request.Properties.MessageExpiry = &short
	ack, err := p.Publish(request)
	if err == nil || ack == nil || ack.Properties == nil || ack.Properties.ReasonString != "the request had expired" {
		t.Errorf("PUBACK %+v, %v", ack, err)
	}
	await.Receive(authorizer.took)
	if got := s.Stats().Dropped[server.DroppedExpired]; got != 1 {
		t.Errorf("%d expired requests are counted", got)
	}
	p.Do("SET", "quick", "v") // and no reply to the first comes before this one
	request = p.Request("SET", "slow", "w")
	request.Properties.MessageExpiry = &long
	if _, err := p.Publish(request); err != nil {
		t.Fatal(err)
	}
	if reply := p.Next(); string(reply.Payload) != "+OK\r\n" {
		t.Errorf("a request in time: %q", reply.Payload)
	}
}

// As many requests are remembered as a client may have unacknowledged. Its Will, which is
// never delivered again, must not take the place of one of them.
func TestInvariant23ARequestThatIsDeliveredAgainAfterAWillIsAppliedOnce(t *testing.T) {
	const remembered = 4
	address, s := testsupport.StartServer(t, server.Options{Store: statestore.Options{DedupWindow: remembered}})
	will := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
	will.Session = 600
	p := will.Connect(t, address, "p")
	var first *packets.Publish
	for i := range remembered { // all of them unacknowledged, as far as the client knows
		request := p.Request(i, nil, "SET", fmt.Sprint("k", i), "v", "NX")
		if i == 0 {
			first = request
		}
		if err := p.Send(request); err != nil {
			t.Fatal(err)
		}
	}
	testsupport.Eventually(t, "all are applied", func() bool { return s.Stats().Requests == remembered })
	_ = p.Conn.Close()
	testsupport.Eventually(t, "the Will is applied", func() bool { return s.Stats().AppliedWills == 1 })
	other := testsupport.Connect(t, address, "other", nil)
	other.Do("DEL", "k0")
	p = will.Connect(t, address, "p")
	first.Duplicate = true
	if err := p.Send(first); err != nil {
		t.Fatal(err)
	}
	if err := p.ReadReplies(0, testsupport.Exchange{Want: "+OK\r\n"}); err != nil {
		t.Error(err)
	}
	other.MustGet("k0", "")
}
