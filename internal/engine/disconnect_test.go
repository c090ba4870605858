package engine

import (
	"fmt"
	"testing"

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
