package peer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) {
	peer.ServeChild(nil)
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	defer func() {
		if shared.host != nil {
			_ = shared.host.Close()
		}
	}()
	return testprocess.Run(m)
}

// shared has the servers of all tests: to start them takes longer than the tests.
var shared struct {
	sync.Mutex
	host    *peer.Host
	servers map[string]*peer.Server
}

// server returns the running server of a peer. It skips the test where a program is missing, or
// fails it where CI is true and everything must run.
func server(t *testing.T, p *peer.Peer) *peer.Server {
	t.Helper()
	if err := p.Installed(); err != nil {
		prerequisite.Missing(t, err.Error())
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.host == nil {
		host, err := peer.NewHost()
		if err != nil {
			t.Fatal(err)
		}
		shared.host, shared.servers = host, make(map[string]*peer.Server)
		// Where nothing is compiled yet, this compiles etcd.
		ctx, cancel := context.WithTimeout(t.Context(), 8*await.Patience)
		defer cancel()
		if err := host.Build(ctx, peer.Commands); err != nil {
			t.Fatal(err)
		}
	}
	if shared.servers[p.Name] == nil {
		s, err := p.Serve(bounded(t), shared.host)
		if err != nil {
			t.Fatal(err)
		}
		shared.servers[p.Name] = s
	}
	return shared.servers[p.Name]
}

// bounded returns a context that ends before a wait for it would take too long.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*await.Patience)
	t.Cleanup(cancel)
	return ctx
}

func TestOneClientAtATimeHoldsANameAndALateWriteIsRefused(t *testing.T) {
	for _, p := range peer.All() {
		t.Run(p.Name, func(t *testing.T) {
			s, ctx := server(t, p), bounded(t)
			var clients [2]peer.Locker
			for i := range clients {
				var err error
				if clients[i], err = p.Lock(ctx, s, fmt.Sprintf("%c-%d", 'a'+i, time.Now().UnixNano())); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(clients[i].Close)
			}
			a, b, name := clients[0], clients[1], fmt.Sprintf("press-%d/active", time.Now().UnixNano())
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			mustNotObtain := func(l peer.Locker) {
				t.Helper()
				if _, err := l.TryObtain(ctx, name); !errors.Is(err, peer.ErrHeld) {
					t.Fatalf("a second client obtains the name with the result %v, want ErrHeld", err)
				}
			}
			held, err := a.TryObtain(ctx, name)
			must(err)
			mustNotObtain(b)
			other, err := b.TryObtain(ctx, name+"-2")
			must(err)
			must(b.Release(ctx, other))

			write, err := a.Writer(ctx, held, name+"-setpoint")
			if lacks := p.Lacks[peer.Write] != ""; lacks != errors.Is(err, errors.ErrUnsupported) || !lacks && err != nil {
				t.Fatalf("the peer prepares a guarded write with the result %v", err)
			}
			if write != nil {
				must(write(ctx, []byte("of the first")))
				must(write(ctx, []byte("of the first")))
			}
			renew, err := a.Renewal(ctx, held)
			if lacks := p.Lacks[peer.Renewal] != ""; lacks != errors.Is(err, errors.ErrUnsupported) || !lacks && err != nil {
				t.Fatalf("the peer prepares a renewal with the result %v", err)
			}
			if renew != nil {
				must(renew(ctx))
				must(renew(ctx))
				mustNotObtain(b)
			}

			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			if err := await.Result(func() error { _, err := b.Obtain(short, name); return err }); err == nil {
				t.Fatal("the waiter has the name although it is held")
			}
			var next peer.Held
			obtained := make(chan error, 1)
			go func() {
				var err error
				next, err = b.Obtain(ctx, name)
				obtained <- err
			}()
			select {
			case err := <-obtained:
				t.Fatalf("the waiter returned before the release: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			must(a.Release(ctx, held))
			must(await.Receive(obtained))
			mustNotObtain(a)
			if write != nil {
				newer, err := b.Writer(ctx, next, name+"-setpoint")
				must(err)
				must(newer(ctx, []byte("of the second")))
				if err := write(ctx, []byte("late")); err == nil {
					t.Error("a write of the first holder was accepted after one of the second")
				}
				must(newer(ctx, []byte("of the second")))
			}
			must(b.Release(ctx, next))
		})
	}
}

func TestServersEndWithTheirHost(t *testing.T) {
	host, err := peer.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	var processes []int
	for _, p := range peer.All() {
		if p.Name == "NATS KV" || p.Installed() == nil && p.Name == "redislock" {
			s, err := p.Serve(bounded(t), host)
			if err != nil {
				t.Fatal(err)
			}
			processes = append(processes, s.Process)
		}
	}
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range processes {
		if p, err := os.FindProcess(id); err == nil && p.Signal(syscall.Signal(0)) == nil {
			t.Errorf("process %d exists", id)
		}
	}
}

// A server that cannot start says why, and does not keep the run waiting.
func TestAServerThatCannotStartIsAnError(t *testing.T) {
	host, err := peer.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := peer.All()[0].Serve(bounded(t), host); err == nil {
		t.Error("a server of ours started without Build")
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
}
