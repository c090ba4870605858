package peer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"

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

// forEachLock runs a test for each peer that has locks, with two clients of it.
func forEachLock(t *testing.T, test func(ctx context.Context, t *testing.T, p *peer.Peer, name string, a, b peer.Locker)) {
	t.Helper()
	for _, p := range peer.All() {
		if isEcho(p) {
			continue
		}
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
			test(ctx, t, p, fmt.Sprintf("press-%d/active", time.Now().UnixNano()), clients[0], clients[1])
		})
	}
}

func obtain(ctx context.Context, t *testing.T, l peer.Locker, name string) peer.Held {
	t.Helper()
	held, err := l.TryObtain(ctx, name)
	if err != nil {
		t.Fatalf("obtain a free name: %v", err)
	}
	return held
}

func release(ctx context.Context, t *testing.T, l peer.Locker, held peer.Held) {
	t.Helper()
	if err := l.Release(ctx, held); err != nil {
		t.Fatalf("release: %v", err)
	}
}

func TestOneClientAtATimeHoldsAName(t *testing.T) {
	forEachLock(t, func(ctx context.Context, t *testing.T, _ *peer.Peer, name string, a, b peer.Locker) {
		held := obtain(ctx, t, a, name)
		if _, err := b.TryObtain(ctx, name); !errors.Is(err, peer.ErrHeld) {
			t.Errorf("a second client obtains the name with the result %v, want ErrHeld", err)
		}
		other := obtain(ctx, t, b, name+"-2")
		release(ctx, t, a, held)
		held = obtain(ctx, t, b, name)
		if _, err := a.TryObtain(ctx, name); !errors.Is(err, peer.ErrHeld) {
			t.Errorf("the first client obtains the name of the second with the result %v, want ErrHeld", err)
		}
		release(ctx, t, b, held)
		release(ctx, t, b, other)
	})
}

func TestAWaiterObtainsANameAfterItsReleaseAndNotBefore(t *testing.T) {
	forEachLock(t, func(ctx context.Context, t *testing.T, _ *peer.Peer, name string, a, b peer.Locker) {
		held := obtain(ctx, t, a, name)
		type result struct {
			held peer.Held
			err  error
		}
		obtained := make(chan result, 1)
		go func() {
			held, err := b.Obtain(ctx, name)
			obtained <- result{held, err}
		}()
		select {
		case got := <-obtained:
			t.Fatalf("the waiter returned before the release: %v", got.err)
		case <-time.After(100 * time.Millisecond):
		}
		release(ctx, t, a, held)
		got := await.Receive(obtained)
		if got.err != nil {
			t.Fatalf("the waiter: %v", got.err)
		}
		if _, err := a.TryObtain(ctx, name); !errors.Is(err, peer.ErrHeld) {
			t.Errorf("the first client obtains the name again with the result %v, want ErrHeld", err)
		}
		release(ctx, t, b, got.held)
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	forEachLock(t, func(ctx context.Context, t *testing.T, _ *peer.Peer, name string, a, b peer.Locker) {
		held := obtain(ctx, t, a, name)
		waiting, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		err := await.Result(func() error { _, err := b.Obtain(waiting, name); return err })
		if err == nil {
			t.Error("the waiter has the name although it is held")
		}
		release(ctx, t, a, held)
		release(ctx, t, a, obtain(ctx, t, a, name))
	})
}

func TestARenewalSucceedsWhileTheNameIsHeld(t *testing.T) {
	forEachLock(t, func(ctx context.Context, t *testing.T, p *peer.Peer, name string, a, b peer.Locker) {
		held := obtain(ctx, t, a, name)
		renew, err := a.Renewal(ctx, held)
		if _, lacks := p.Lacks[peer.Renewal]; lacks {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("the peer lacks renewals, and prepares one with the result %v", err)
			}
			release(ctx, t, a, held)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := renew(ctx); err != nil {
				t.Fatalf("renew: %v", err)
			}
		}
		if _, err := b.TryObtain(ctx, name); !errors.Is(err, peer.ErrHeld) {
			t.Errorf("a second client obtains the name with the result %v, want ErrHeld", err)
		}
		release(ctx, t, a, held)
		release(ctx, t, b, obtain(ctx, t, b, name))
	})
}

func TestAWriteIsRefusedAfterALaterHolderHasWritten(t *testing.T) {
	forEachLock(t, func(ctx context.Context, t *testing.T, p *peer.Peer, name string, a, b peer.Locker) {
		key := name + "-setpoint"
		old := obtain(ctx, t, a, name)
		late, err := a.Writer(ctx, old, key)
		if _, lacks := p.Lacks[peer.Write]; lacks {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("the peer lacks guarded writes, and prepares one with the result %v", err)
			}
			release(ctx, t, a, old)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := late(ctx, []byte("of the first")); err != nil {
				t.Fatalf("the write of the holder: %v", err)
			}
		}
		release(ctx, t, a, old)
		held := obtain(ctx, t, b, name)
		write, err := b.Writer(ctx, held, key)
		if err != nil {
			t.Fatal(err)
		}
		if err := write(ctx, []byte("of the second")); err != nil {
			t.Fatalf("the write of the next holder: %v", err)
		}
		if err := late(ctx, []byte("late")); err == nil {
			t.Error("a write of the first holder was accepted after one of the second")
		}
		if err := write(ctx, []byte("of the second")); err != nil {
			t.Errorf("the next holder writes again: %v", err)
		}
		release(ctx, t, b, held)
	})
}

func TestAnEchoAnswersManyRequestsAtOnce(t *testing.T) {
	for _, p := range peer.All() {
		if !isEcho(p) {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			ctx := bounded(t)
			echo, err := p.Lock(ctx, server(t, p), "echo")
			if err != nil {
				t.Fatal(err)
			}
			defer echo.Close()
			var asking sync.WaitGroup
			for range 16 {
				asking.Go(func() {
					for range 20 {
						if err := echo.Release(ctx, nil); err != nil {
							t.Error(err)
						}
					}
				})
			}
			await.Done(asking.Wait)
		})
	}
}

// isEcho reports whether the peer has no locks.
func isEcho(p *peer.Peer) bool { return p.Lacks[peer.HandOver] != "" }

func TestServersEndWithTheirHost(t *testing.T) {
	host, err := peer.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	var processes []int
	for _, p := range peer.All() {
		if isEcho(p) || p.Installed() == nil && p.Name == "redislock" {
			s, err := p.Serve(bounded(t), host)
			if err != nil {
				t.Fatal(err)
			}
			processes = append(processes, s.Processes...)
		}
	}
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range processes {
		if exists, err := process.PidExists(int32(id)); exists || err != nil {
			t.Errorf("process %d exists: %t, %v", id, exists, err)
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
