//go:build unix

package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

const (
	probeKey     = "failover/probe"
	probeEvery   = 5 * time.Millisecond
	probeTimeout = 250 * time.Millisecond
)

// prober writes a number again and again, to find out when the store answers and whether it loses
// what it has answered.
type prober struct {
	client *transport.Client
	tasks  sync.WaitGroup
	stop   context.CancelFunc

	mu       sync.Mutex
	latest   time.Time // when a write was answered last
	from, to time.Time // the longest time without an answer since begin
	answered int
	version  hlc.Timestamp // of the latest write that was answered
	wrong    []string      // what must not be
}

func startProber(ctx context.Context, stores string) (*prober, error) {
	client, err := transport.Dial(ctx, stores, transport.Options{ClientID: "prober", ClientOptions: transport.ClientOptions{Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		return nil, err
	}
	p := &prober{client: client, latest: time.Now()}
	ctx, p.stop = context.WithCancel(context.Background())
	p.tasks.Go(func() { p.run(ctx) })
	return p, nil
}

func (p *prober) close() {
	p.stop()
	p.tasks.Wait()
	_ = p.client.Close()
}

func (p *prober) run(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		if !p.write(ctx, n) {
			p.client.Probe(probeTimeout) // as leases do: a frozen server keeps its connections
			p.read(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// write writes a number, and reports whether that was answered.
func (p *prober) write(ctx context.Context, n int) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	version, err := p.client.Set(ctx, probeKey, strconv.AppendInt(nil, int64(n), 10), transport.SetOptions{})
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if version.Compare(p.version) <= 0 {
		p.wrong = append(p.wrong, fmt.Sprintf("a write got version %v after one with %v", version, p.version))
	}
	now := time.Now()
	if now.Sub(p.latest) > p.to.Sub(p.from) {
		p.from, p.to = p.latest, now
	}
	p.latest, p.version = now, version
	p.answered++
	return true
}

// read checks that the latest write that was answered is still there, or a later one.
func (p *prober) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	entry, err := p.client.Get(ctx, probeKey)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if entry.Version.Compare(p.version) < 0 {
		p.wrong = append(p.wrong, fmt.Sprintf("the store has version %v and had answered %v", entry.Version, p.version))
	}
}

// begin begins to look for the longest time without an answer.
func (p *prober) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from, p.to = p.latest, p.latest
}

// longest returns the longest time without an answer since begin.
func (p *prober) longest() (from, to time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.from, p.to
}

// answeredAt returns when a write was answered last.
func (p *prober) answeredAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest
}
