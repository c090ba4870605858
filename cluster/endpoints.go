package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/internal/sleep"
)

// endpoints are the members of etcd, each with a client of its own. etcd's own client with
// several endpoints takes them in turns, so while one member is frozen or cut off, each third
// request is lost, for more than 10 s until gRPC notices. Here requests stay with one member
// until it fails one.
type endpoints struct {
	clients   []*clientv3.Client
	preferred atomic.Uint32 // index in clients, modulo their number
}

const (
	// gRPC (v1.82) pings a silent connection after 10 s at the earliest.
	pingAfter, pingTimeout = 10 * time.Second, 2 * time.Second
	// maxReceived bounds an answer of etcd. A page of Load that is larger is asked for again,
	// with fewer records.
	maxReceived = 32 << 20
)

func dial(o *Options) (*endpoints, error) {
	e := &endpoints{}
	for _, endpoint := range o.Endpoints {
		client, err := clientv3.New(clientv3.Config{
			Endpoints:            []string{endpoint},
			TLS:                  o.TLS,
			DialKeepAliveTime:    pingAfter,
			DialKeepAliveTimeout: pingTimeout,
			MaxCallSendMsgSize:   o.MaxTransactionBytes + 1<<20,
			MaxCallRecvMsgSize:   max(maxReceived, o.MaxTransactionBytes+1<<20),
			MaxUnaryRetries:      1, // request repeats
			Logger:               zap.NewNop(),
		})
		if err != nil {
			e.close()
			return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
		}
		e.clients = append(e.clients, client)
	}
	return e, nil
}

func (e *endpoints) close() {
	for _, client := range e.clients {
		_ = client.Close() // the connections are of no use any more
	}
}

// at returns the client that is n after the preferred one, and what to give to failed.
func (e *endpoints) at(n uint32) (*clientv3.Client, uint32) {
	index := (e.preferred.Load() + n) % uint32(len(e.clients))
	return e.clients[index], index
}

// failed makes the next endpoint the preferred one, unless index is no longer preferred.
func (e *endpoints) failed(index uint32) {
	e.preferred.CompareAndSwap(index, (index+1)%uint32(len(e.clients)))
}

// answered makes the endpoint the preferred one.
func (e *endpoints) answered(index uint32) { e.preferred.Store(index) }

// final marks an error of a call that no repetition changes.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// do calls call, which must be safe to repeat, until it succeeds, etcd refuses it or ctx ends.
// An attempt has patience time at first and twice as much each time that it was too short: an
// etcd that is slow must not be asked for ever and never be heard. An attempt that is given up
// can still have effect later.
func (e *endpoints) do(ctx context.Context, patience time.Duration, call func(context.Context, *clientv3.Client) error) error {
	var last error
	pause := 25 * time.Millisecond
	for failures := 1; ; failures++ {
		client, index := e.at(0)
		attempt, cancel := context.WithTimeout(ctx, patience)
		err := call(attempt, client)
		tooSlow := attempt.Err() != nil
		cancel()
		switch {
		case err == nil:
			return nil
		case errors.As(err, &final{}):
			return err
		case refusal(err) != "":
			return explained(err)
		case ctx.Err() != nil:
			if last == nil {
				last = err
			}
			return gaveUp(ctx, last)
		}
		last = err
		e.failed(index)
		if tooSlow {
			patience *= 2
		} else if failures%len(e.clients) == 0 { // all of them, at once
			if !sleep.For(ctx, pause/2+rand.N(pause)) {
				return gaveUp(ctx, last)
			}
			pause = min(2*pause, time.Second/2)
		}
	}
}
