package integration_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

var (
	stressDuration = flag.Duration("stress.duration", time.Second, "how long the stress test makes faults at least; each fault happens once in any case")
	stressSeed     = flag.Uint64("stress.seed", 1, "the order and lengths of the faults of the stress test")
)

const (
	stressTTL   = 300 * time.Millisecond
	stressLease = "press-7/active"
	stressKey   = "press-7/setpoint"
)

// stress is one run: its clients want one lease, and write one key while they hold it.
type stress struct {
	t      *testing.T
	server *servertest.Server
	random *rand.Rand // of the goroutine that makes the faults

	mu      sync.Mutex
	holders []*stressHolder // the tenures that may still be valid, in the order in which they began
	writers map[hlc.Timestamp]hlc.Token
	began   map[*stressNode]int // how many tenures each client has had
}

type stressNode struct {
	proxy   *testsupport.Proxy
	client  *transport.Client
	instant bool // the broker may release its lease before it knows
	delayed atomic.Bool
}

type stressHolder struct {
	node   *stressNode
	tenure *lease.Tenure
	token  hlc.Token
}

func (s *stress) node(id string) *stressNode {
	address := s.server.URL[len("mqtt://"):]
	n := &stressNode{proxy: testsupport.NewProxy(s.t, address)}
	n.client = testsupport.Dial(s.t, n.proxy.Address(), transport.Options{ClientID: id, ReconnectMax: 100 * time.Millisecond})
	return n
}

// hold writes for a while, or until ctx ends, and looks whether an older write overwrote one of its own.
func (s *stress) hold(ctx context.Context, n *stressNode, tenure *lease.Tenure) {
	token, err := tenure.Token()
	if err != nil {
		return
	}
	holder := &stressHolder{n, tenure, token}
	s.begin(holder)
	until := time.Now().Add(20*time.Millisecond + rand.N(stressTTL))
	guard := fencing.NewGuard(n.client, tenure)
	if _, err := guard.Claim(ctx, stressKey); err != nil {
		return
	}
	for ctx.Err() == nil && (n.delayed.Load() || time.Now().Before(until)) { // a delayed client believes in its tenure to its end
		if version, err := guard.Set(ctx, stressKey, []byte(token.String())); err == nil {
			s.wrote(version, token)
			s.checkOthers(holder)
		}
		time.Sleep(rand.N(5 * time.Millisecond))
		entry, err := n.client.Get(ctx, stressKey)
		if err != nil || len(entry.Value) == 0 {
			continue
		}
		written, err := hlc.ParseToken(string(entry.Value))
		if err != nil {
			s.t.Errorf("the key has %q", entry.Value)
		}
		s.wrote(entry.Version, written)
	}
}

func (s *stress) begin(h *stressHolder) {
	s.mu.Lock()
	s.holders = slices.DeleteFunc(s.holders, func(h *stressHolder) bool { return h.tenure.TokenContext().Err() != nil })
	s.holders = append(s.holders, h)
	s.began[h.node]++
	s.mu.Unlock()
	s.checkOthers(h)
}

// checkOthers checks that h is over, or all tenures before it. A tenure that is over stays over:
// of two that are valid one after the other, the second is valid at both moments.
func (s *stress) checkOthers(h *stressHolder) {
	s.mu.Lock()
	holders := slices.Clone(s.holders)
	s.mu.Unlock()
	if _, err := h.tenure.Token(); err != nil {
		return
	}
	for _, former := range holders {
		// With InstantFailover, only guarded writes exclude each other: see package lease.
		if former.node.instant || former.token.Compare(h.token) >= 0 {
			continue
		}
		if _, err := former.tenure.Token(); err == nil {
			s.t.Errorf("the tokens %v and %v are valid at one moment", former.token, h.token)
		}
	}
}

// wrote notes that the store gave version to a write with token.
func (s *stress) wrote(version hlc.Timestamp, token hlc.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writers[version] = token
}

// checkWrites checks that no write with an older token followed one with a newer token.
func (s *stress) checkWrites() {
	s.mu.Lock()
	defer s.mu.Unlock()
	versions := make([]hlc.Timestamp, 0, len(s.writers))
	for version := range s.writers {
		versions = append(versions, version)
	}
	slices.SortFunc(versions, hlc.Timestamp.Compare)
	for i := 1; i < len(versions); i++ {
		if before, after := s.writers[versions[i-1]], s.writers[versions[i]]; after.Compare(before) < 0 {
			s.t.Errorf("version %v was written with token %v, after token %v", versions[i], after, before)
		}
	}
	if len(versions) < 10 {
		s.t.Errorf("only %d writes were checked", len(versions))
	}
	s.t.Logf("%d writes, %d tenures of %d clients", len(versions), s.tenures(), len(s.began))
}

func (s *stress) tenures() (sum int) {
	for _, count := range s.began {
		sum += count
	}
	return sum
}

// beganBy returns how many tenures a client has had.
func (s *stress) beganBy(n *stressNode) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began[n]
}

// holds reports whether a tenure is valid.
func (s *stress) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.holders, func(h *stressHolder) bool { return h.tenure.Remaining() > 0 })
}

// latest returns the tenure that began last.
func (s *stress) latest() *stressHolder {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders[len(s.holders)-1] // never empty once a tenure has begun
}

func (s *stress) campaign(ctx context.Context, n *stressNode) {
	elector, err := election.New(n.client, stressLease, election.Options{TTL: stressTTL, HoldOff: stressTTL / 10})
	if err != nil {
		s.t.Error(err)
		return
	}
	err = elector.Run(ctx, func(ctx context.Context, term *election.Term) error {
		s.hold(ctx, n, term.Tenure())
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		s.t.Errorf("Run: %v", err)
	}
}

func (s *stress) acquire(ctx context.Context, n *stressNode, options lease.Options) {
	options.TTL = stressTTL
	l, err := lease.New(n.client, stressLease, options)
	if err != nil {
		s.t.Error(err)
		return
	}
	for ctx.Err() == nil {
		tenure, err := l.Acquire(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.t.Errorf("Acquire: %v", err)
			}
			return
		}
		s.hold(tenure.Context(), n, tenure)
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stressTTL)
		_ = tenure.Release(releasing) // without a connection the TTL releases it
		cancel()
		time.Sleep(rand.N(stressTTL / 10))
	}
}

// some returns a duration from a tenth of the TTL to one and a half.
func (s *stress) some() time.Duration {
	return stressTTL/10 + time.Duration(s.random.Int64N(int64(stressTTL*14/10)))
}

// delayWrites keeps back what the present holder sends, a write too, until another client holds
// the lease. No client learns anything from its silent connection.
func (s *stress) delayWrites() {
	late := s.latest()
	late.node.delayed.Store(true)
	defer late.node.delayed.Store(false)
	proxy := late.node.proxy
	proxy.Hold(testsupport.ToClient)
	proxy.Hold(testsupport.ToServer)
	proxy.Refuse(true) // a new connection would end the old one at the server, with what is late
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*stressTTL)
	defer cancel()
	var write sync.WaitGroup
	write.Go(func() {
		if version, err := fencing.NewGuard(late.node.client, late.tenure).Set(ctx, stressKey, []byte(late.token.String())); err == nil {
			s.wrote(version, late.token)
		}
	})
	for s.latest().node == late.node && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // the other writes
	proxy.Release(testsupport.ToServer)
	proxy.Release(testsupport.ToClient)
	time.Sleep(20 * time.Millisecond) // what is late arrives
	proxy.Refuse(false)
	await.Done(write.Wait)
}

// Faults of the network and restarts of the server come in a random order, and writes arrive late.
func TestInvariant13UnderRandomFaultsNoWriteFollowsOneWithANewerToken(t *testing.T) {
	t.Parallel()
	s := &stress{
		t:       t,
		server:  servertest.NewWithOptions(t, servertest.Options{Server: server.Options{Store: statestore.Options{HoldOff: stressTTL}}}),
		random:  rand.New(rand.NewPCG(*stressSeed, 0)),
		writers: make(map[hlc.Timestamp]hlc.Token),
		began:   make(map[*stressNode]int),
	}
	nodes := []*stressNode{s.node("elector-a"), s.node("elector-b"), s.node("instant"), s.node("fragile")}
	nodes[2].instant = true
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer func() { // before the proxies and the clients close
		stop()
		await.Done(clients.Wait)
		s.checkWrites()
	}()
	clients.Go(func() { s.campaign(ctx, nodes[0]) })
	clients.Go(func() { s.campaign(ctx, nodes[1]) })
	clients.Go(func() { s.acquire(ctx, nodes[2], lease.Options{InstantFailover: true}) })
	clients.Go(func() { s.acquire(ctx, nodes[3], lease.Options{EndOnDisconnect: true}) })

	faults := []func(){
		s.server.Cut,
		func() { s.server.Down(); time.Sleep(s.some()); s.server.Up() },
		func() { s.server.Freeze(); time.Sleep(s.some()); s.server.Cut(); s.server.Thaw() },
		s.server.Restart,
		s.delayWrites,
		s.delayWrites,
	}
	for began := time.Now(); time.Since(began) < *stressDuration; {
		for _, i := range s.random.Perm(len(faults)) {
			testsupport.Eventually(t, "a client holds the lease", func() bool { return s.holds() })
			time.Sleep(s.some() / 5)
			faults[i]()
		}
	}
	for _, n := range nodes {
		before := s.beganBy(n)
		testsupport.Eventually(t, "after the last fault each client holds the lease again", func() bool { return s.beganBy(n) > before })
	}
}
