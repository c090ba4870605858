package cluster

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
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
			MaxCallSendMsgSize:   maxTransactionBytes + 1<<20,
			MaxCallRecvMsgSize:   maxReceived,
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

// do calls call, which must be safe to repeat, until it succeeds, etcd refuses it or ctx ends,
// and returns what the first successful attempt returned.
//
// An attempt without an answer goes on after patience, and another one begins at the next member;
// the one after that begins when one and a half times as long has passed. If do gave attempts up
// instead, a slow member would answer each of them too late: etcd answers after 7 s if a request
// came while it had no leader. When do returns, its attempts have ended, but what they sent can
// still have effect.
func do[T any](ctx context.Context, e *endpoints, patience time.Duration,
	call func(context.Context, *clientv3.Client) (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
		index uint32
	}
	var none T
	attempts, cancel := context.WithCancel(ctx)
	outcomes := make(chan outcome, maxAttempts)
	underWay, silent := 0, uint32(0) // silent: since the last answer
	defer func() {
		cancel()
		for ; underWay > 0; underWay-- {
			<-outcomes
		}
	}()
	begin := func() {
		client, index := e.at(silent)
		underWay++
		silent++
		go func() {
			value, err := call(attempts, client)
			outcomes <- outcome{value, err, index}
		}()
	}
	begin()
	next := time.NewTimer(patience)
	defer next.Stop()
	var last error
	pause := 10 * time.Millisecond
	for {
		select {
		case <-ctx.Done():
			return none, gaveUp(ctx, last)
		case <-next.C:
			if underWay < maxAttempts {
				begin()
				patience = patience * 3 / 2
			}
			next.Reset(patience)
		case o := <-outcomes:
			underWay--
			switch {
			case o.err == nil:
				e.answered(o.index)
				return o.value, nil
			case isFinal(o.err):
				return none, explained(o.err)
			case ctx.Err() != nil:
				return none, gaveUp(ctx, cmp.Or(last, o.err))
			}
			last = o.err
			e.failed(o.index)
			if underWay == 0 { // else the timer begins the next one in time
				silent = 0
				next.Reset(pause/2 + rand.N(pause))
				pause = min(2*pause, patience)
			}
		}
	}
}

// maxAttempts bounds the attempts of one request that are under way.
const maxAttempts = 6
