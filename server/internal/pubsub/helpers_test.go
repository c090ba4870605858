package pubsub

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// testLink is a connection with room for some bytes of QoS 0.
type testLink struct {
	room  atomic.Int64
	wakes atomic.Int64
}

func newLink() *testLink {
	l := &testLink{}
	l.room.Store(1 << 20)
	return l
}

func (l *testLink) Wake() { l.wakes.Add(1) }

func (l *testLink) Reserve(bytes int) bool {
	if l.room.Add(-int64(bytes)) < 0 {
		l.room.Add(int64(bytes))
		return false
	}
	return true
}

func (l *testLink) Release(bytes int) { l.room.Add(int64(bytes)) }

func attach(s *Session) *testLink {
	l := newLink()
	s.Attach(Receiver{Link: l, MQTT5: true})
	return l
}

func subscribe(t *testing.T, s *Session, subs ...Subscription) {
	t.Helper()
	for _, sub := range subs {
		if _, err := s.Subscribe(sub); err != nil {
			t.Fatalf("Subscribe %q: %v", sub.Filter, err)
		}
	}
}

// receive returns what is sent to a connection now.
func receive(t *testing.T, s *Session, l *testLink) (all []*packets.Publish) {
	t.Helper()
	out, more := s.Append(l, nil, 1<<30)
	for in := bytes.NewReader(out); in.Len() > 0; {
		read, err := packets.ReadPacket(in)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, read.Content.(*packets.Publish))
	}
	if more {
		t.Errorf("Append has more after %d packets", len(all))
	}
	return all
}

// payloads names messages as payload, QoS, and D for one that is sent again and R for one
// that is retained.
func payloads(all []*packets.Publish) string {
	var texts []string
	for _, p := range all {
		text := fmt.Sprintf("%s:%d", p.Payload, p.QoS)
		if p.Duplicate {
			text += "D"
		}
		if p.Retain {
			text += "R"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

func checkReceived(t *testing.T, s *Session, l *testLink, want string) []*packets.Publish {
	t.Helper()
	all := receive(t, s, l)
	if got := payloads(all); got != want {
		t.Errorf("%s receives %q, want %q", s.client, got, want)
	}
	return all
}

func message(topic, payload string, qos byte) *Message {
	return &Message{Topic: topic, Payload: []byte(payload), QoS: qos, Publisher: "p"}
}

func publish(t *testing.T, b *Broker, messages ...*Message) {
	t.Helper()
	for _, m := range messages {
		if matched, err := b.Publish(m); !matched || err != nil {
			t.Errorf("Publish %q: %t, %v", m.Topic, matched, err)
		}
	}
}

// checkEmpty checks that nothing is held any more.
func checkEmpty(t *testing.T, b *Broker) {
	t.Helper()
	usage := b.Usage()
	usage.Dropped = Dropped{}
	if usage != (Usage{}) {
		t.Errorf("what is held at the end: %+v", usage)
	}
	if len(b.order) != 0 || b.tree.exact != nil || b.tree.root.count != 0 {
		t.Error("sessions or filters are left")
	}
}

func in(d time.Duration) time.Time { return time.Now().Add(d) }

// newBroker returns a broker with limits, or the default for one that is 0. Retained messages
// stay off.
func newBroker(limits Limits) *Broker {
	standard := DefaultLimits()
	return New(Limits{
		Subscriptions:     cmp.Or(limits.Subscriptions, standard.Subscriptions),
		SubscriptionBytes: cmp.Or(limits.SubscriptionBytes, standard.SubscriptionBytes),
		SessionMessages:   cmp.Or(limits.SessionMessages, standard.SessionMessages),
		SessionBytes:      cmp.Or(limits.SessionBytes, standard.SessionBytes),
		TotalBytes:        cmp.Or(limits.TotalBytes, standard.TotalBytes),
		RetainedMessages:  limits.RetainedMessages,
		RetainedBytes:     cmp.Or(limits.RetainedBytes, standard.RetainedBytes),
	})
}
