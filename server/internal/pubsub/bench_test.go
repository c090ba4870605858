package pubsub

import (
	"fmt"
	"testing"
)

func BenchmarkPublish(b *testing.B) {
	for _, subscribers := range []int{1, 1000} {
		b.Run(fmt.Sprint(subscribers), func(b *testing.B) {
			broker := newBroker(Limits{})
			var sessions []*Session
			var links []*testLink
			for i := range subscribers {
				s := broker.Session(fmt.Sprint(i))
				links = append(links, attach(s))
				_, _ = s.Subscribe(Subscription{Filter: "press/+/state"})
				sessions = append(sessions, s)
			}
			m := message("press/7/state", "0123456789abcdef", 0)
			buffer := make([]byte, 0, 4096)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = broker.Publish(m)
				for i, s := range sessions {
					_, _ = s.Append(links[i], buffer, 4096)
				}
			}
		})
	}
}

// A topic of 64 levels that 100,000 filters of other clients nearly match.
func BenchmarkPublishAmongDeepFilters(b *testing.B) {
	broker := newBroker(Limits{})
	var topic string
	for i := range 100 {
		var filters []string
		topic, filters = deep(i)
		for _, filter := range filters {
			_, _ = broker.Session(fmt.Sprint(i)).Subscribe(Subscription{Filter: filter})
		}
	}
	b.ReportAllocs()
	for _, topic := range []string{"press/7/state", topic} {
		b.Run(fmt.Sprint(len(topic)), func(b *testing.B) {
			m := message(topic, "x", 0)
			for b.Loop() {
				_, _ = broker.Publish(m)
			}
		})
	}
}

func BenchmarkMatches(b *testing.B) {
	for _, wild := range []int{0, 1000} {
		b.Run(fmt.Sprint(wild), func(b *testing.B) {
			s := newBroker(Limits{Subscriptions: 2000}).Session("s")
			_, _ = s.Subscribe(Subscription{Filter: "clients/s/reply"})
			for i := range wild {
				_, _ = s.Subscribe(Subscription{Filter: fmt.Sprint("clients/+/", i)})
			}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = s.Matches("clients/s/reply")
			}
		})
	}
}
