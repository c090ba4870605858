//go:build unix

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

const (
	askEvery = 10 * time.Millisecond
	// askPatience is how long an answer is waited for: a store that was frozen has requests that were
	// sent after another one had taken over.
	askPatience = time.Second
	// hearing is how long it may take to hear from a process that it serves, after it does.
	hearing = 500 * time.Millisecond
)

// overlap asks each store, over a connection to it alone, and looks for two that answer at once: a
// store that answers what was sent after another one had answered, and that has not begun to serve
// again since.
type overlap struct {
	tasks sync.WaitGroup
	stop  context.CancelFunc
	// serves returns when a store began to serve last.
	serves func(store string) time.Time

	mu      sync.Mutex
	serving string    // the store that took over last
	since   time.Time // its first answer
	answers int
	wrong   []string
}

func startOverlap(stores []*machine, serves func(store string) time.Time) *overlap {
	o := &overlap{serves: serves}
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	for _, store := range stores {
		o.tasks.Go(func() { o.ask(ctx, store.name, store.address) })
	}
	return o
}

func (o *overlap) close() {
	o.stop()
	o.tasks.Wait()
}

// ask sends requests to one store until ctx ends. It waits for no answer before the next request.
func (o *overlap) ask(ctx context.Context, store, address string) {
	dialer := net.Dialer{Timeout: askPatience}
	client, err := transport.Dial(ctx, "mqtt://"+address, transport.Options{
		ClientID: "ask-" + store, KeepAlive: time.Hour, ReconnectMin: askEvery, ReconnectMax: 2 * askEvery, Dialer: dialer.DialContext,
		ClientOptions: transport.ClientOptions{Logger: slog.New(slog.DiscardHandler)},
	}) // waits until the store serves for the first time
	if err != nil {
		if ctx.Err() == nil {
			o.found("%s: %v", store, err)
		}
		return
	}
	defer client.Close()
	var requests sync.WaitGroup
	defer requests.Wait()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		requests.Go(func() {
			asking, cancel := context.WithTimeout(ctx, askPatience)
			defer cancel()
			began := time.Now()
			if _, err := client.Get(asking, probeKey); err == nil {
				o.answered(ctx, store, began, time.Now())
			}
		})
	}
}

// answered notes an answer to a request that began at a time.
func (o *overlap) answered(ctx context.Context, store string, began, at time.Time) {
	if o.judge(store, began, at) || !sleep.For(ctx, hearing) || o.judge(store, began, at) {
		return
	}
	o.found("%s answered at %s what began at %s, after the other store", store, at.Format(clockTime), began.Format(clockTime))
}

const clockTime = "15:04:05.000"

// judge reports whether a store may have answered.
func (o *overlap) judge(store string, began, at time.Time) bool {
	serves := o.serves(store)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answers++
	switch {
	case store == o.serving, began.Before(o.since):
	case serves.After(o.since) || o.serving == "":
		o.serving, o.since = store, at
	default:
		return false
	}
	return true
}

func (o *overlap) found(format string, arguments ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wrong = append(o.wrong, fmt.Sprintf(format, arguments...))
}
