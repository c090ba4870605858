package peer

import (
	"context"
	"errors"
	"sync"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// ours returns Tenure in each way to run a server. Leases have their default options.
func ours() []*Peer {
	return []*Peer{
		{
			Name:  Reference,
			About: "`tenure serve --memory`, one connection.",
			Serve: func(ctx context.Context, h *Host) (*Server, error) { return h.Tenure(ctx, "tenure", "--memory") },
			Lock:  dialTenure,
		},
		{
			Name:  "tenure, durable",
			About: "`tenure serve --data`: each answer to a write waits for its commit to the disk.",
			Serve: func(ctx context.Context, h *Host) (*Server, error) {
				dir, err := h.folder("data")
				if err != nil {
					return nil, err
				}
				return h.Tenure(ctx, "tenure", "--data", dir)
			},
			Lock: dialTenure,
		},
		{
			Name:  "tenure, on etcd",
			About: "`tenure-cluster serve --etcd` with the data on one member of etcd, as the peer etcd has it.",
			Serve: func(ctx context.Context, h *Host) (*Server, error) {
				etcd, err := h.child(ctx, "etcd")
				if err != nil {
					return nil, err
				}
				return h.Tenure(ctx, "tenure-cluster", "--etcd", etcd.Address)
			},
			Lock: dialTenure,
		},
	}
}

// Tenure runs the serve of a command of ours, and returns when it accepts clients.
func (h *Host) Tenure(ctx context.Context, command string, arguments ...string) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return h.start(ctx, listening, nil, h.command(command), append([]string{"serve", "--addr", loopback}, arguments...)...)
}

// tenureLocker is a client of ours.
type tenureLocker struct {
	client *transport.Client

	mu     sync.RWMutex // guards leases
	leases map[string]*lease.Lease
}

func dialTenure(ctx context.Context, server *Server, id string) (Locker, error) {
	client, err := transport.Dial(ctx, server.Address, transport.Options{ClientID: id})
	if err != nil {
		return nil, err
	}
	return &tenureLocker{client: client, leases: make(map[string]*lease.Lease)}, nil
}

// lease returns the lease with a name. A program makes it once, and not for each tenure.
func (l *tenureLocker) lease(name string) (*lease.Lease, error) {
	l.mu.RLock()
	named := l.leases[name]
	l.mu.RUnlock()
	if named != nil {
		return named, nil
	}
	named, err := lease.New(l.client, name, lease.Options{TTL: TTL})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.leases[name] = named
	l.mu.Unlock()
	return named, nil
}

func (l *tenureLocker) TryObtain(ctx context.Context, name string) (Held, error) {
	named, err := l.lease(name)
	if err != nil {
		return nil, err
	}
	tenure, err := named.TryAcquire(ctx)
	if errors.Is(err, lease.ErrHeld) {
		return nil, ErrHeld
	}
	return tenure, err
}

func (l *tenureLocker) Obtain(ctx context.Context, name string) (Held, error) {
	named, err := l.lease(name)
	if err != nil {
		return nil, err
	}
	return named.Acquire(ctx)
}

func (l *tenureLocker) Release(ctx context.Context, held Held) error {
	return held.(*lease.Tenure).Release(ctx)
}

// Renewal returns the request with which a tenure renews itself. Tenures have no method for it.
func (l *tenureLocker) Renewal(ctx context.Context, held Held) (func(context.Context) error, error) {
	tenure := held.(*lease.Tenure)
	named, err := l.lease(tenure.Name())
	if err != nil {
		return nil, err
	}
	holder, err := named.Holder(ctx)
	if err != nil {
		return nil, err
	}
	binding, err := tenure.Bind(ctx, l.client)
	if err != nil {
		return nil, err
	}
	binding.Urgent = true
	name, value := tenure.Name(), []byte(holder.Value)
	options := transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: TTL, Binding: binding}
	return func(ctx context.Context) error {
		_, err := l.client.Set(ctx, name, value, options)
		return err
	}, nil
}

func (l *tenureLocker) Writer(_ context.Context, held Held, key string) (func(context.Context, []byte) error, error) {
	guard := fencing.NewGuard(l.client, held.(*lease.Tenure))
	return func(ctx context.Context, value []byte) error {
		_, err := guard.Set(ctx, key, value)
		return err
	}, nil
}

func (l *tenureLocker) Close() { _ = l.client.Close() }
