//go:build unix

package takeover_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/crashtest"
)

var (
	cycles = flag.Int("takeover.cycles", 3, "how often the active store is harmed in each way")
	seed   = flag.Uint64("takeover.seed", 1, "the seed of the choices")
)

func TestMain(m *testing.M) {
	crashtest.Main(serve)
	os.Exit(testprocess.Run(m))
}

// way is how the active gateway is harmed.
type way struct {
	name    string
	network bool // that can be cut
	lives   bool // its process goes on
	harm    func(p *pair, g *gateway) (name string, heal func() error, err error)
}

var killed = way{name: "killed", harm: func(p *pair, g *gateway) (string, func() error, error) {
	return "killed", func() error { return p.launch(g) }, g.child.Kill()
}}

var cutOff = way{name: "cut off", network: true, lives: true, harm: func(p *pair, g *gateway) (string, func() error, error) {
	return "cut off", func() error { return p.network.Mend(g.name) }, p.network.Cut(g.name)
}}

var ways = []way{
	killed,
	{name: "stopped", harm: func(p *pair, g *gateway) (string, func() error, error) {
		err := g.child.Stop()
		if !p.awaits(ends, func() bool { return g.address == "" }) { // then it resigns
			err = errors.Join(err, errors.New("the process did not stop"), g.child.Kill())
		}
		return "stopped", func() error { await.Next(g.child.Died()); return p.launch(g) }, err
	}},
	{name: "frozen and thawed", lives: true, harm: func(_ *pair, g *gateway) (string, func() error, error) {
		return "frozen", func() error { return g.child.Signal(syscall.SIGCONT) }, g.child.Signal(syscall.SIGSTOP)
	}},
	cutOff,
	{name: "cut off one way", network: true, lives: true, harm: func(p *pair, g *gateway) (string, func() error, error) {
		if p.random.IntN(2) == 0 {
			return "nothing that it sent arrived", func() error { return p.network.Unsilence(g.name) }, p.network.Silence(g.name)
		}
		return "nothing that was sent to it arrived", func() error { return p.network.Undeafen(g.name) }, p.network.Deafen(g.name)
	}},
}

// newPair starts the witness of a pair, in this process. Start starts the gateways.
func newPair(t testing.TB, way way) *pair {
	t.Helper()
	p := &pair{ctx: t.Context(), way: way, network: new(network), random: rand.New(rand.NewPCG(*seed, 3)),
		deaths: make(map[string]int)}
	names := []string{"a", "b"}
	if way.network {
		var err error
		p.network, err = newNetwork(names...)
		t.Cleanup(p.network.Remove)
		if err != nil {
			prerequisite.Missing(t, err.Error())
		}
	}
	authority, dir := etcdtest.NewAuthority(t), etcdtest.Dir(t, t.Cleanup)
	var members [3]member.Options
	var urls []string
	for i, host := range []string{p.network.Host(0), p.network.Host(1), p.network.Director()} {
		port, err := p.network.Port(2380)
		if err != nil {
			t.Fatal(err)
		}
		name := append(names, "w")[i]
		authority.Issue(t, name, net.ParseIP(host))
		members[i] = member.Options{Name: name, Dir: filepath.Join(dir, name), PeerTLS: authority.TLS(name), Witness: i == len(names)}
		urls = append(urls, fmt.Sprintf("%s=https://%s:%d", name, host, port))
		if i < len(names) {
			p.gateways[i] = &gateway{name: name, listen: net.JoinHostPort(host, "0")}
		}
	}
	for i := range members {
		members[i].Cluster = strings.Join(urls, ",")
	}
	for i, g := range p.gateways {
		g.member = members[i]
	}
	witness, err := member.Start(members[len(names)])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(witness.Close)
	return p
}

// Invariants 11, 13, 30, 32, 33, 35, 36 and 37 on a pair.
func TestInvariants32And33And35And37ATakeoverLosesNothingThatWasAcknowledged(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			p := newPair(t, way)
			// A takeover takes longer than a restart, and leases must outlast it on a busy machine.
			o := crashtest.Options{Cycles: *cycles, Seed: *seed, TTL: 8 * time.Second}
			report, err := crashtest.Run(t.Context(), p, o)
			if err := errors.Join(err, p.close(), report.Err()); err != nil {
				t.Error(err)
			}
			t.Logf("seed %d, the active store was %v:\n\n%v", *seed, p.deaths, report)
		})
	}
}
