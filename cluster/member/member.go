package member

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/internal/sleep"
)

// ErrRemoved ends a member that was taken out of its cluster.
var ErrRemoved = errors.New("member: this member was taken out of its cluster; start it again with an empty directory, after it was announced again (tenure-cluster replace)")

// Member is a running member of etcd.
type Member struct {
	config *embed.Config
	listen url.URL      // of the other members' connections
	others []string     // URLs of the other members
	logger *slog.Logger // may be nil
	room   int64        // Options.MaxDatabase
	used   usage
	socket string
	peers  *peers      // nil until its address is free; like etcd
	etcd   *embed.Etcd // nil until it has begun; of the goroutine of run, and of all once ready is closed

	eligibility eligibility

	stop    func()
	ready   chan struct{}
	tasks   sync.WaitGroup
	done    chan struct{}
	err     error // after done is closed
	closing sync.Once
	phase   phase
}

// Start starts a member. It does not wait for the others: requests are answered once a majority
// is there. The error says which option makes no sense, or why etcd does not start. An address that
// is in use is tried again for 10 s, and ends the member then.
//
// A member without data begins when another one answers, and ends with ErrLostData if its cluster
// has had it before.
//
// If a disk fails while the member runs, etcd logs the reason and ends the process.
func Start(options Options) (*Member, error) {
	m := &Member{ready: make(chan struct{}), done: make(chan struct{})}
	m.eligibility.changed = make(chan struct{}, 1)
	m.eligibility.can = !options.Witness
	config, err := options.config(&m.phase)
	if err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	config.GRPCAdditionalServerOptions = m.used.interceptors()
	if err := prepare(options.Dir, options.Name); err != nil {
		return nil, fmt.Errorf("member: %w", explainRights(err))
	}
	m.listen, m.others = listener(config.AdvertisePeerUrls[0]), options.others()
	m.room = options.MaxDatabase
	m.config, m.logger, m.socket = config, options.Logger, config.ListenClientUrls[0].String()
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	n, err := m.begin()
	if err != nil && !isInUse(err) {
		stop()
		m.closePeers()
		return nil, err
	}
	begun := err == nil
	m.tasks.Go(func() { m.run(ctx, n, begun) })
	return m, nil
}

// prepare makes the directory, and refuses one that this member cannot use.
func prepare(dir, name string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := checkName(dir, name); err != nil {
		return err
	}
	return checkRoom(dir)
}

// begin starts etcd, or returns a newcomer.
func (m *Member) begin() (n *newcomer, err error) {
	if m.peers == nil {
		if m.peers, err = listenPeers(m.listen, m.config.PeerTLSInfo, m.logger); err != nil {
			return nil, fmt.Errorf("member: %w", err)
		}
	}
	if !isNew(m.config, m.others) {
		return nil, m.startEtcd()
	}
	if n, err = startNewcomer(m.config, m.others, m.peers, m.logger); err != nil {
		return nil, fmt.Errorf("member: %w", err)
	}
	return n, nil
}

func (m *Member) closePeers() {
	if m.peers != nil {
		m.peers.end()
	}
}

func (m *Member) startEtcd() (err error) {
	if m.etcd, err = embed.StartEtcd(m.config); err != nil {
		m.etcd = nil
		return fmt.Errorf("member: start etcd: %w", explainRights(err))
	}
	m.peers.answer(etcdhttp.NewPeerHandler(m.etcd.GetLogger(), m.etcd.Server))
	return nil
}

// explainRights adds what to do to an error because of rights to the directory. Those to listen on a TCP
// port are no matter of the directory.
func explainRights(err error) error {
	var listening *net.OpError
	if !errors.Is(err, fs.ErrPermission) || errors.As(err, &listening) && listening.Net != "unix" {
		return err
	}
	return fmt.Errorf("%w; run it as the user that owns it, give this user the rights to it, or use another directory", err)
}

const (
	// addressPatience is how long a member waits for its address: the process before it may
	// have ended a moment ago.
	addressPatience = 10 * time.Second
	addressPause    = 100 * time.Millisecond

	// askRunning is what to ask first where the address of a member is in use.
	askRunning = "is this member running already?"
)

func isInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

// whileInUse calls listen until its error is not that the address is in use, for addressPatience
// at most, and returns its last error.
func (m *Member) whileInUse(ctx context.Context, listen func() error) error {
	said := false
	for began := time.Now(); ; {
		err := listen()
		switch {
		case !isInUse(err):
			return err
		case time.Since(began) > addressPatience:
			return fmt.Errorf("%w, for more than %v: %s If not, stop the program that uses it, or give this member another URL", err, addressPatience, askRunning)
		case !said && m.logger != nil:
			said = true
			m.logger.Warn("the address of this member is in use: "+askRunning+" Trying again", "error", err)
		}
		if !sleep.For(ctx, addressPause) {
			return context.Cause(ctx)
		}
	}
}

// run begins, if Start could not because of the address, and notes why the member ended. n is the
// newcomer that Start made, or nil.
func (m *Member) run(ctx context.Context, n *newcomer, begun bool) {
	defer close(m.done)
	var err error
	if !begun {
		err = m.whileInUse(ctx, func() (err error) { n, err = m.begin(); return err })
	}
	if err == nil && n != nil {
		err = n.mayBegin(ctx)
		if err == nil {
			err = m.whileInUse(ctx, m.startEtcd)
		}
	}
	if err != nil {
		m.closePeers()
		if ctx.Err() == nil {
			m.err = err
		}
		return
	}
	ready := m.etcd.Server.ReadyNotify()
	for {
		select {
		case <-ready:
			m.phase.ready.Store(true)
			m.tasks.Go(func() { m.maintain(ctx) })
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
// endpoint, its limits, its leadership, the right to compact, and a Standing that fits its election
// timeout.
func (m *Member) Configure(options cluster.Options) cluster.Options {
	options.Endpoints, options.TLS = []string{m.socket}, nil
	options.MaxOperations = maxOperations
	options.MaxTransactionBytes = int(m.config.MaxRequestBytes)
	options.Compact, options.MaxDatabase = true, m.room
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
		m.phase.closing.Store(true)
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
		m.closePeers()
	})
}
