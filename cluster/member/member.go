package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"

	"github.com/tenurelock/tenure/cluster"
)

// ErrRemoved ends a member that was taken out of its cluster.
var ErrRemoved = errors.New("member: this member was taken out of its cluster; start it again with an empty " +
	"directory, after it was announced again (tenure-cluster replace)")

// Member is a running member of etcd.
type Member struct {
	config *embed.Config
	others []string // URLs of the other members
	logger *slog.Logger
	limit  int64  // Options.MaxDatabase
	socket string // URL of the socket in Options.Dir
	peers  *peers
	etcd   *embed.Etcd // nil until it has begun; of the goroutine of run, and of all once ready is closed

	unable atomic.Pointer[time.Time] // since when its process cannot serve; nil: it can, or has not said yet

	stop    func()
	ready   chan struct{}
	tasks   sync.WaitGroup
	done    chan struct{}
	err     error // after done is closed
	closing sync.Once
	quiet   atomic.Bool // Close was called
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
	if options.Witness {
		m.unable.Store(new(time.Time)) // from ever on
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	config, err := options.config(&m.quiet)
	if err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("member: %w", explain(err))
	}
	if err := checkSpace(options.Dir); err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	m.limit, m.config, m.logger = options.MaxDatabase, config, options.Logger
	members, _ := options.peers() // config has checked them
	delete(members, options.Name)
	for _, u := range members {
		m.others = append(m.others, u.String())
	}
	m.socket = config.ListenClientUrls[0].String()
	m.peers, err = listenPeers(listener(config.AdvertisePeerUrls[0]), config.PeerTLSInfo, m.logger)
	if err != nil {
		return nil, fmt.Errorf("member: %w", explain(err))
	}
	isNew := m.isNew()
	if !isNew {
		if err := m.startEtcd(); err != nil {
			m.peers.end()
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.tasks.Go(func() { m.run(ctx, isNew) })
	return m, nil
}

func (m *Member) startEtcd() (err error) {
	if m.etcd, err = embed.StartEtcd(m.config); err != nil {
		m.etcd = nil
		return fmt.Errorf("member: start etcd: %w", explain(err))
	}
	m.peers.answer(etcdhttp.NewPeerHandler(m.etcd.GetLogger(), m.etcd.Server))
	return nil
}

// explain adds what to do to an error of the system. Rights to listen on a TCP port are no matter of the directory.
func explain(err error) error {
	var listening *net.OpError
	switch onNetwork := errors.As(err, &listening) && listening.Net != "unix"; {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: is this member running already? If not, stop the program that uses the address, or give "+
			"this member another URL", err)
	case errors.Is(err, fs.ErrPermission) && !onNetwork:
		return fmt.Errorf("%w; run it as the user that owns it, give this user the rights to it, or use another directory",
			err)
	}
	return err
}

// run notes why the member ended. If it is new, etcd does not run yet.
func (m *Member) run(ctx context.Context, isNew bool) {
	defer close(m.done)
	if isNew {
		err := m.awaitOthers(ctx)
		if err == nil {
			err = m.startEtcd()
		}
		if err != nil {
			m.peers.end()
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
			m.tasks.Go(func() { m.lead(ctx) })
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
// endpoint, the limit of its database, its leadership, and a Standing that fits its election
// timeout.
func (m *Member) Configure(options cluster.Options) cluster.Options {
	options.Endpoints, options.TLS = []string{m.socket}, nil
	options.MaxDatabase = m.limit
	options.Member = m
	if options.Standing == 0 {
		options.Standing = min(max(m.election()*4/5, cluster.MinStanding), cluster.MaxStanding)
	}
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
// another member, so the others need no election, if one can take it within two election timeouts.
// Its data stays. Close the store beside it before: it resigns through this member.
func (m *Member) Close() {
	m.closing.Do(func() {
		m.quiet.Store(true)
		m.stop()
		m.tasks.Wait()
		if m.etcd == nil {
			return
		}
		if leads, _ := m.Leads(); leads {
			m.yield(context.Background(), 0)
		}
		// etcd v3.6.14: before it is ready, Close waits for its servers for ever, and if it leads,
		// for seconds for a member that takes over.
		m.etcd.Server.HardStop()
		m.etcd.Close()
		m.peers.end()
	})
}
