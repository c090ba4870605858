package pubsub

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func TestAllOfItAtTheSameTime(t *testing.T) {
	b := newBroker(Limits{SessionMessages: 50, TotalBytes: 1 << 20})
	filters := []string{"a/b", "a/+", "#", "+/b", "a/#", "c/+/+", "c/d/e"}
	var tasks sync.WaitGroup
	for worker := range 8 {
		tasks.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 2))
			for range 3000 {
				s := b.Session(fmt.Sprint(random.IntN(5)))
				sub := Subscription{Filter: filters[random.IntN(len(filters))], QoS: byte(random.IntN(2)), Identifier: random.IntN(3)}
				switch random.IntN(9) {
				case 0:
					l := attach(s)
					_, _ = s.Append(l, nil, 1000)
					s.Detach(l)
				case 1:
					l := attach(s)
					_, _ = s.Append(l, nil, 1000)
				case 2:
					s.End()
				case 3, 4:
					_ = s.Subscribe(sub)
				case 5:
					s.Unsubscribe(sub.Filter)
					_, _ = s.Matches("a/b")
				case 6:
					s.Acknowledge(uint16(random.IntN(30)))
					b.Sweep()
					_ = b.Usage()
				default:
					m := message([]string{"a/b", "a/c", "c/d/e", "d"}[random.IntN(4)], "x", byte(random.IntN(2)))
					if random.IntN(2) == 0 {
						m.Expires = in(time.Microsecond)
					}
					b.Publish(m, goOn)
				}
			}
		})
	}
	await.Done(tasks.Wait)
	for i := range 5 {
		b.Session(fmt.Sprint(i)).End()
	}
	checkEmpty(t, b)
}

func TestASessionThatWaitsForTheIndexStillSendsItsMessages(t *testing.T) {
	b := newBroker(Limits{})
	s := b.Session("s")
	b.filters.RLock()
	var subscribed sync.WaitGroup
	subscribed.Go(func() { _ = s.Subscribe(Subscription{Filter: "a"}) })
	await.Until(func() bool {
		free := s.subscribing.TryLock()
		if free {
			s.subscribing.Unlock()
		}
		return !free
	})
	if !s.mu.TryLock() {
		t.Fatal("its messages wait too")
	}
	s.mu.Unlock()
	b.filters.RUnlock()
	await.Done(subscribed.Wait)
}

// Subscriptions that stay get every message, while others come and go around them.
func TestASubscriptionThatStaysMissesNothing(t *testing.T) {
	b := newBroker(Limits{SessionMessages: 100_000, SessionBytes: 1 << 30, TotalBytes: 1 << 40})
	const stay = 3
	for i := range stay {
		subscribe(t, b.Session(fmt.Sprint("stays", i)), Subscription{Filter: []string{"a/+/c", "a/b/c", "#"}[i], QoS: 1})
	}
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	for worker := range 2 {
		tasks.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 3))
			sessions := make([]*Session, 700)
			for i := range sessions {
				sessions[i] = b.Session(fmt.Sprint(worker, "/", i))
			}
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := sessions[random.IntN(len(sessions))]
				filter := []string{"a/+/c", "a/b/c", "#", "a/+/+", "a/b/+"}[random.IntN(5)]
				if random.IntN(3) > 0 {
					_ = s.Subscribe(Subscription{Filter: filter})
				} else {
					s.Unsubscribe(filter)
				}
				_ = s.Subscribe(Subscription{Filter: fmt.Sprint("a/+/", random.IntN(40))})
				s.Unsubscribe(fmt.Sprint("a/+/", random.IntN(40)))
			}
		})
	}
	const messages = 300
	for i := range messages {
		publish(t, b, message("a/b/c", fmt.Sprint(i), 1))
	}
	close(stop)
	await.Done(tasks.Wait)
	for i := range stay {
		s := b.Session(fmt.Sprint("stays", i))
		all := receive(t, s, attach(s))
		for at, p := range all {
			if string(p.Payload) != fmt.Sprint(at) {
				t.Fatalf("%s gets %s in place of %d", s.client, p.Payload, at)
			}
		}
		if len(all) != messages {
			t.Errorf("%s gets %d, want %d", s.client, len(all), messages)
		}
	}
}
