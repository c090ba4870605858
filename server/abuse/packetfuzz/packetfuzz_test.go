package packetfuzz_test

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

var (
	duration = flag.Duration("packetfuzz.duration", 3*time.Second, "how long to fuzz")
	seed     = flag.Uint64("packetfuzz.seed", 0, "which packets to make; 0 takes the clock")
)

const workers = 8

// Packets that are almost valid, on several connections at a time. The server runs in this
// process: a panic that it does not recover ends the test, and the race detector sees it.
// What the packets do depends on how the connections meet, so a seed repeats the packets and
// not their order between connections.
func TestAServerSurvivesPacketsThatAreNearlyRight(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	// Not t.Log: a panic would keep that to itself.
	fmt.Fprintf(os.Stderr, "packetfuzz: replay with -packetfuzz.seed %d -packetfuzz.duration %v\n", *seed, *duration)
	log := &panicLog{}
	s, err := server.New(server.Options{
		Addr:       "127.0.0.1:0",
		Store:      statestore.Options{MaxKeys: 1_000},
		MaxClients: 50,
		Logger:     slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(serving) }()
	defer func() {
		stop()
		if err := await.Receive(served); err != nil {
			t.Errorf("Serve: %v", err)
		}
		if text := log.panics(); text != "" {
			t.Errorf("the server panicked, and went on:\n%s", text)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), *duration)
	defer cancel()
	var tasks sync.WaitGroup
	var packets atomic.Int64
	for i := range workers {
		tasks.Go(func() { fuzz(ctx, s.Addr().String(), *seed+uint64(i), &packets) })
	}
	healthy(ctx, t, s.Addr().String())
	await.Done(tasks.Wait)
	t.Logf("%d packets; %+v", packets.Load(), s.Stats())
	if packets.Load() == 0 {
		t.Error("nothing was sent")
	}
}

// healthy writes and reads a key until ctx ends, and then once more. It must always be
// answered, and with what it wrote.
func healthy(ctx context.Context, t *testing.T, address string) {
	t.Helper()
	bounded, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	client, err := transport.Dial(bounded, "mqtt://"+address, transport.Options{ClientID: "healthy"})
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close()
	for i := 0; ; i++ {
		value := fmt.Sprint("value ", i)
		bounded, cancel := context.WithTimeout(context.Background(), await.Patience)
		_, err := client.Set(bounded, "healthy/key", []byte(value), transport.SetOptions{})
		entry, readErr := client.Get(bounded, "healthy/key")
		cancel()
		if err != nil || readErr != nil || string(entry.Value) != value {
			t.Errorf("the healthy client is not served: %v, %v, %q", err, readErr, entry.Value)
			return
		}
		select {
		case <-ctx.Done():
			if n := client.Connection().Connections; n != 1 {
				t.Errorf("the healthy client had %d connections", n)
			}
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// fuzz makes one connection after the other.
func fuzz(ctx context.Context, address string, seed uint64, packets *atomic.Int64) {
	g := newGenerator(seed)
	for ctx.Err() == nil {
		conn, err := net.DialTimeout("tcp", address, await.Patience)
		if err != nil {
			continue
		}
		packets.Add(connection(ctx, g, conn.(*net.TCPConn)))
	}
}

// connection sends what a generator makes on one connection and returns how many packets
// that were. It reads, or does not, and ends in one of several ways.
func connection(ctx context.Context, g *generator, conn *net.TCPConn) (sent int64) {
	_ = conn.SetLinger(0)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	reading := make(chan struct{})
	if g.chance(10) > 0 {
		go func() {
			defer close(reading)
			_, _ = io.Copy(io.Discard, bufio.NewReader(conn))
		}()
	} else {
		close(reading)
	}
	defer func() {
		_ = conn.Close()
		await.Receive(reading)
	}()
	stream := bytes.NewBuffer(g.login())
	for range g.chance(60) {
		for range 1 + g.chance(5) {
			stream.Write(g.packet())
			sent++
		}
		for stream.Len() > 0 {
			n := stream.Len()
			if g.chance(4) == 0 {
				n = 1 + g.chance(n)
			}
			_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)) // it may have stopped to read
			if _, err := conn.Write(stream.Next(n)); err != nil {
				return sent
			}
		}
	}
	switch g.chance(8) {
	case 0: // with a reset, which takes back what the server has not read
	case 1:
		_ = conn.SetLinger(-1) // all of it arrives, and no answer does
	default:
		_ = conn.CloseWrite()
		select {
		case <-reading:
		case <-time.After(time.Second):
		}
	}
	return sent
}

// panicLog keeps the lines of a log that are about a panic.
type panicLog struct {
	mu   sync.Mutex
	kept strings.Builder
}

func (l *panicLog) Write(line []byte) (int, error) {
	if !bytes.Contains(line, []byte("panic")) {
		return len(line), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept.Len() < 1<<20 {
		l.kept.Write(line)
	}
	return len(line), nil
}

func (l *panicLog) panics() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.String()
}
