//go:build unix

package machines

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
	// AskEvery is how often an Overlap asks each store.
	AskEvery = 10 * time.Millisecond
	// askPatience is how long an answer is waited for: a store that was frozen has requests that were
	// sent after another one had taken over.
	askPatience = time.Second
	// hearing is how long it may take to hear from a process that it serves, after it does.
	hearing = 500 * time.Millisecond
)

// Overlap asks each store, over a connection to it alone, and looks for two that answer at once: a
// store that answers what was sent after another one had answered, and that has not begun to serve
// again since.
type Overlap struct {
	tasks  sync.WaitGroup
	stop   context.CancelFunc
	stores map[string]Store

	mu      sync.Mutex
	serving string    // the store that took over last
	since   time.Time // its first answer
	answers int
	wrong   []string
}

// Store is a store that may take over.
type Store struct {
	// Address returns where the store listens now, or an empty string.
	Address func() string
	// Serves returns when the store began to serve last.
	Serves func() time.Time
}

// StartOverlap begins to ask stores by their names for a key. The caller calls Close.
func StartOverlap(stores map[string]Store, key string) *Overlap {
	o := &Overlap{stores: stores}
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	for name := range stores {
		o.tasks.Go(func() { o.ask(ctx, name, key) })
	}
	return o
}

// Close ends it, and returns how many answers there were, and those that must not have been.
func (o *Overlap) Close() (answers int, wrong []string) {
	o.stop()
	o.tasks.Wait()
	return o.answers, o.wrong
}

// ask sends requests to one store until ctx ends. It waits for no answer before the next request.
func (o *Overlap) ask(ctx context.Context, store, key string) {
	dialer := net.Dialer{Timeout: askPatience}
	client, err := transport.Dial(ctx, "mqtt://store", transport.Options{
		ClientID: "ask-" + store, KeepAlive: time.Hour, ReconnectMin: AskEvery, ReconnectMax: 2 * AskEvery,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, o.stores[store].Address())
		},
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
	tick := time.NewTicker(AskEvery)
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
			if _, err := client.Get(asking, key); err == nil {
				o.answered(ctx, store, began, time.Now())
			}
		})
	}
}

// answered notes an answer to a request that began at a time.
func (o *Overlap) answered(ctx context.Context, store string, began, at time.Time) {
	if o.judge(store, began, at) || !sleep.For(ctx, hearing) || o.judge(store, began, at) {
		return
	}
	o.found("%s answered at %s what began at %s, after the other store", store, at.Format(clockTime), began.Format(clockTime))
}

const clockTime = "15:04:05.000"

// judge reports whether a store may have answered.
func (o *Overlap) judge(store string, began, at time.Time) bool {
	serves := o.stores[store].Serves()
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

func (o *Overlap) found(format string, arguments ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wrong = append(o.wrong, fmt.Sprintf(format, arguments...))
}
