package member

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/tenurelock/tenure/cluster"
)

// ErrRemoved is why a member ended that was taken out of its cluster.
var ErrRemoved = errors.New("member: this member was taken out of its cluster; start it again with an empty directory and Join")

// Member is a running member of etcd.
type Member struct {
	options Options
	etcd    *embed.Etcd
	socket  string

	stop    func()
	tasks   sync.WaitGroup
	done    chan struct{}
	err     error // after done is closed
	closing sync.Once
	ends    atomic.Bool // Close was called
}

// Start starts a member. It does not wait for the others: requests are answered once a majority
// is there. The error says which option makes no sense, or why etcd does not start.
//
// If a disk fails while the member runs, etcd logs the reason and ends the process.
func Start(options Options) (*Member, error) {
	m := &Member{options: options, done: make(chan struct{})}
	config, err := options.config(&m.ends)
	if err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("member: start etcd: %w", err)
	}
	m.etcd, m.socket = etcd, config.ListenClientUrls[0].String()
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.tasks.Go(func() { m.watch(ctx) })
	return m, nil
}

// watch notes why the member ended.
func (m *Member) watch(ctx context.Context) {
	defer close(m.done)
	select {
	case <-ctx.Done():
	case err := <-m.etcd.Err():
		m.err = fmt.Errorf("member: %w", err)
	case <-m.etcd.Server.StopNotify():
		m.err = ErrRemoved
	}
}

// Configure returns options with what a store beside this member needs: its socket as the only
// endpoint, its limits, and the right to compact.
func (m *Member) Configure(options cluster.Options) cluster.Options {
	options.Endpoints, options.TLS = []string{m.socket}, nil
	options.MaxOperations = maxOperations
	options.MaxTransactionBytes = int(m.etcd.Server.Cfg.MaxRequestBytes)
	options.Compact = true
	return options
}

// Ready is closed when the member has found its cluster and answers.
func (m *Member) Ready() <-chan struct{} { return m.etcd.Server.ReadyNotify() }

// Done is closed when the member no longer runs.
func (m *Member) Done() <-chan struct{} { return m.done }

// Err returns nil until Done is closed, and then why: nil after Close.
func (m *Member) Err() error {
	select {
	case <-m.done:
		return m.err
	default:
		return nil
	}
}

// Close stops the member, within seconds. If it leads its cluster, it first hands that to
// another member, so the others need no election; it waits up to 7 s for one that can take
// over. Its data stays. Close the store beside it before: it resigns through this member.
func (m *Member) Close() {
	m.closing.Do(func() {
		m.ends.Store(true)
		m.stop()
		m.tasks.Wait()
		m.etcd.Close()
	})
}
