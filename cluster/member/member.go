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

// ErrRemoved ends a member that was taken out of its cluster.
var ErrRemoved = errors.New("member: this member was taken out of its cluster; start it again with an empty directory and Join")

// Member is a running member of etcd.
type Member struct {
	config *embed.Config
	socket string
	etcd   *embed.Etcd // nil until it has begun; of the goroutine of run, and of Close after that

	stop    func()
	ready   chan struct{}
	tasks   sync.WaitGroup
	done    chan struct{}
	err     error // after done is closed
	closing sync.Once
	ends    atomic.Bool // Close was called
}

// Start starts a member. It does not wait for the others: requests are answered once a majority
// is there. The error says which option makes no sense, or why etcd does not start.
//
// A member without data begins when another one answers, and ends with ErrLostData if its cluster
// has had it before.
//
// If a disk fails while the member runs, etcd logs the reason and ends the process.
func Start(options Options) (*Member, error) {
	m := &Member{ready: make(chan struct{}), done: make(chan struct{})}
	config, err := options.config(&m.ends)
	if err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	m.config, m.socket = config, config.ListenClientUrls[0].String()
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	var n *newcomer
	if others := options.others(); isNew(config, others) {
		if n, err = startNewcomer(config, others, options.Logger); err != nil {
			stop()
			return nil, fmt.Errorf("member: %w", err)
		}
	} else if err := m.begin(); err != nil {
		stop()
		return nil, err
	}
	m.tasks.Go(func() { m.run(ctx, n) })
	return m, nil
}

func (m *Member) begin() (err error) {
	if m.etcd, err = embed.StartEtcd(m.config); err != nil {
		return fmt.Errorf("member: start etcd: %w", err)
	}
	return nil
}

// run begins a newcomer, and notes why the member ended.
func (m *Member) run(ctx context.Context, n *newcomer) {
	defer close(m.done)
	if n != nil {
		err := n.mayBegin(ctx)
		n.close()
		if err == nil {
			err = m.begin()
		}
		if err != nil {
			if ctx.Err() == nil {
				m.err = err
			}
			return
		}
	}
	ready := m.etcd.Server.ReadyNotify()
	for {
		select {
		case <-ready:
			close(m.ready)
			ready = nil
		case <-ctx.Done():
			return
		case err := <-m.etcd.Err():
			m.err = fmt.Errorf("member: %w", err)
			select {
			case <-m.etcd.Server.StoppingNotify():
				m.err = ErrRemoved // what failed is what needs a running server
			default:
			}
			return
		case <-m.etcd.Server.StopNotify():
			m.err = ErrRemoved
			return
		}
	}
}

// Configure returns options with what a store beside this member needs: its socket as the only
// endpoint, its limits, and the right to compact.
func (m *Member) Configure(options cluster.Options) cluster.Options {
	options.Endpoints, options.TLS = []string{m.socket}, nil
	options.MaxOperations = maxOperations
	options.MaxTransactionBytes = int(m.config.MaxRequestBytes)
	options.Compact = true
	return options
}

// Ready is closed when the member has found its cluster and answers.
func (m *Member) Ready() <-chan struct{} { return m.ready }

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
		if m.etcd == nil {
			return
		}
		select {
		case <-m.etcd.Server.ReadyNotify():
		default:
			// etcd v3.6.14: before it is ready, Close waits for its servers for ever.
			m.etcd.Server.HardStop()
		}
		m.etcd.Close()
	})
}
