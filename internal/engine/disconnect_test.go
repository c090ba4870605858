package engine

import (
	"fmt"
	"sync"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

func newEngine(t *testing.T) *Engine {
	t.Helper()
	e, err := Open(t.Context(), statestore.Options{}, nil, func(statestore.Notification) {})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func watch(e *Engine, client, key string) statestore.Reply {
	reply, _ := e.Apply(statestore.Parse(statestore.Request{Client: client, Payload: resp3.AppendCommand(nil, "KEYNOTIFY", key)}))
	return reply
}

func TestDisconnectFreesAllThatAClientHad(t *testing.T) {
	for name, disconnect := range map[string]func(*Engine, string){"Disconnect": (*Engine).Disconnect, "EndSession": (*Engine).EndSession} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			for _, watches := range []int{0, 1, disconnectBatch - 1, disconnectBatch, disconnectBatch + 1, 3 * disconnectBatch} {
				for i := range watches {
					watch(e, "gone", fmt.Sprint(i))
				}
				watch(e, "stays", "0")
				disconnect(e, "gone")
				if got := e.Usage().Watches; got != 1 {
					t.Errorf("of %d watches and one of another client %d are left; want 1", watches, got)
				}
			}
		})
	}
}

// The disconnect of a client with many watches does not keep the lock.
func TestOtherClientsAreServedWhileAClientDisconnects(t *testing.T) {
	e := newEngine(t)
	const watches, tries = 20_000, 100
	for range tries {
		for i := range watches {
			watch(e, "gone", fmt.Sprint(i))
		}
		var task sync.WaitGroup
		task.Go(func() { e.Disconnect("gone") })
		between := 0 // how often the disconnect was half done
		for left := watches; left > 0; {
			if left = e.Usage().Watches; left > 0 && left < watches {
				between++
			}
		}
		await.Done(task.Wait)
		if between >= 3 {
			return
		}
	}
	t.Errorf("in %d tries no other got the lock three times while %d watches were dropped", tries, watches)
}

// Clients that disconnect and reconnect at the same time end up with their latest watches.
func TestClientsDisconnectAtTheSameTime(t *testing.T) {
	e := newEngine(t)
	const clients, rounds, watches = 4, 20, 3 * disconnectBatch
	var tasks sync.WaitGroup
	for client := range clients {
		tasks.Go(func() {
			for range rounds {
				for i := range watches {
					watch(e, fmt.Sprint(client), fmt.Sprint(i))
				}
				e.Disconnect(fmt.Sprint(client))
			}
			watch(e, fmt.Sprint(client), "0")
		})
	}
	await.Done(tasks.Wait)
	if got := e.Usage().Watches; got != clients {
		t.Errorf("%d watches are left; want %d", got, clients)
	}
}
