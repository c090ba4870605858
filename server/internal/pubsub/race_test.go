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
	b := New(1<<20, 1<<20)
	filters := []string{"a/b", "a/+", "#", "+/b", "a/#", "c/+/+", "c/d/e"}
	var mu sync.Mutex
	sessions := make([]*Session, 5)
	for i := range sessions {
		sessions[i] = newSession(b, fmt.Sprint(i))
	}
	var tasks sync.WaitGroup
	for worker := range 8 {
		tasks.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 2))
			for range 3000 {
				i := random.IntN(len(sessions))
				mu.Lock()
				s := sessions[i]
				mu.Unlock()
				filter := filters[random.IntN(len(filters))]
				switch random.IntN(8) {
				case 0:
					attach(s)
					_, _ = s.Append(nil, 1000)
					s.Detach()
				case 1:
					attach(s)
					_, _ = s.Append(nil, 1000)
				case 2:
					s.End()
					mu.Lock()
					if sessions[i] == s {
						sessions[i] = newSession(b, fmt.Sprint(i))
					}
					mu.Unlock()
				case 3:
					_ = s.Subscribe(filter, Subscription{QoS: byte(random.IntN(2))})
				case 4:
					s.Unsubscribe(filter)
				case 5:
					s.Acknowledge(uint16(random.IntN(30)))
					s.Sweep(time.Now())
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
	for _, s := range sessions {
		s.End()
	}
	checkEmpty(t, b)
}

// Subscriptions that stay get every message, while others come and go around them.
func TestASubscriptionThatStaysMissesNothing(t *testing.T) {
	b := newBroker()
	stays := []*Session{newSession(b, "0"), newSession(b, "1"), newSession(b, "2")}
	for i, filter := range []string{"a/+/c", "a/b/c", "#"} {
		subscribe(t, stays[i], 1, filter)
	}
	stop := make(chan struct{})
	var tasks sync.WaitGroup
	for worker := range 2 {
		tasks.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 3))
			sessions := make([]*Session, 700)
			for i := range sessions {
				sessions[i] = newSession(b, fmt.Sprint(worker, "/", i))
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
					_ = s.Subscribe(filter, Subscription{})
				} else {
					s.Unsubscribe(filter)
				}
			}
		})
	}
	const messages = 300
	for i := range messages {
		publish(t, b, message("a/b/c", fmt.Sprint(i), 1))
	}
	close(stop)
	await.Done(tasks.Wait)
	for _, s := range stays {
		attach(s)
		all := receive(t, s)
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
