package pubsub

import (
	"fmt"
	"testing"
	"time"
)

// A message for very many subscriptions lets others in between, with no lock held.
func TestInvariant57OneMessageDoesNotKeepAProcessor(t *testing.T) {
	const sessions, each = 50, 200
	for _, test := range []struct {
		name, topic string
		filter      func(session, i int) string
	}{
		{"groups", "a", func(_, i int) string { return fmt.Sprintf("$share/%d/a", i) }},
		{"filters", "a/b/c/d/e/f/g/h", func(_, i int) string {
			filter := []byte("a/b/c/d/e/f/g/h")
			for level := range 8 {
				if (i+1)>>level&1 != 0 {
					filter[2*level] = '+'
				}
			}
			return string(filter)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBroker(Limits{SessionMessages: 1})
			for n := range sessions {
				s := b.Session(fmt.Sprint("s", n))
				for i := range each {
					subscribe(t, s, Subscription{Filter: test.filter(n, i), QoS: 1})
				}
				subscribe(t, s, Subscription{Filter: "fill", QoS: 1})
				attach(s)
			}
			if _, err := b.Publish(&Message{Topic: "fill", QoS: 1}); err != nil {
				t.Fatal(err)
			}
			pauses := 0
			s := b.Session("another")
			_, _ = b.PublishInTurns(&Message{Topic: test.topic, QoS: 1}, func() {
				pauses++
				subscribe(t, s, Subscription{Filter: "x/+"}) // takes all locks
				s.Unsubscribe("x/+")
			})
			if pauses < sessions*each/sliceSize {
				t.Errorf("%d pauses for %d subscriptions", pauses, sessions*each)
			}
		})
	}
}

func TestInvariant57ASearchForRetainedMessagesDoesNotKeepAProcessor(t *testing.T) {
	b := newBroker(Limits{RetainedMessages: 10_000})
	for i := range 10_000 {
		if _, err := b.Publish(&Message{Topic: fmt.Sprint("a/", i), Retain: true, Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	s, pauses := b.Session("s"), 0
	began := time.Now()
	s.SendRetained(Subscription{Filter: "+/x"}, false, func() { pauses++ })
	if pauses < 10_000/sliceSize {
		t.Errorf("%d pauses in %v", pauses, time.Since(began))
	}
}

// A session that ends may leave ten thousand messages to groups that have no room for them.
func TestInvariant57TheEndOfASessionDoesNotKeepAProcessor(t *testing.T) {
	const messages, members = 200, 50
	b := newBroker(Limits{})
	ends := b.Session("ends")
	subscribe(t, ends, Subscription{Filter: "$share/g/a", QoS: 1})
	for range messages {
		publish(t, b, message("a", "x", 1))
	}
	for i := range members {
		s := b.Session(fmt.Sprint(i))
		subscribe(t, s, Subscription{Filter: "$share/g/a", QoS: 1})
		s.Attach(Receiver{Link: newLink(), MQTT5: true, MayRead: func(string) bool { return false }})
	}
	pauses := 0
	s := b.Session("another")
	ends.end(func() {
		pauses++
		subscribe(t, s, Subscription{Filter: "x/+"}) // takes all locks
		s.Unsubscribe("x/+")
	})
	if least := messages * triedHere * offerSteps / sliceSize; pauses < least {
		t.Errorf("%d pauses, want at least %d", pauses, least)
	}
	if dropped := b.Usage().Dropped; dropped[Forbidden] != messages {
		t.Errorf("%+v, want %d forbidden", dropped, messages)
	}
}
