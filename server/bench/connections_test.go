//go:build linux

package bench_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// serverVariable makes TestServerOfConnections a server for another process.
const serverVariable = "TENURE_BENCH_SERVER"

// BenchmarkConnections measures connections that hold a lease each and do nothing: the memory of the
// server's process for each, as the operating system counts it (rss-B, and least-rss-B after garbage
// collection), of its heap and of the stacks of its goroutines, and how long it takes until all are
// connected and hold their leases (s-all). The clients are sockets of another process: this one.
func BenchmarkConnections(b *testing.B) {
	for _, count := range []int{1000, 5000, 10000} {
		b.Run("connections="+strconv.Itoa(count), func(b *testing.B) {
			for b.Loop() {
				measureConnections(b, count)
			}
			b.ReportMetric(0, "ns/op") // says nothing
		})
	}
}

func measureConnections(b *testing.B, count int) {
	process := startServerProcess(b)
	before := process.usage()
	began := time.Now()
	sockets := make([]net.Conn, count)
	defer func() {
		for _, socket := range sockets {
			if socket != nil {
				_ = socket.Close()
			}
		}
	}()
	connectAll(b, count, func(i int, id string) (err error) {
		sockets[i], err = holdLease(process.address, id)
		return err
	})
	b.ReportMetric(time.Since(began).Seconds(), "s-all")
	process.usage().report(b, before, count, "connection")
}

// connectAll calls connect for each number below count, with a client id.
func connectAll(b *testing.B, count int, connect func(number int, id string) error) {
	b.Helper()
	failures := make(chan error, count)
	var connecting sync.WaitGroup
	const atOnce = 32 // as a server takes from one address before they have authenticated
	for first := range atOnce {
		connecting.Go(func() {
			for i := first; i < count; i += atOnce {
				if err := connect(i, fmt.Sprintf("client-%05d", i)); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	await.Done(connecting.Wait)
	select {
	case err := <-failures:
		b.Fatal(err)
	default:
	}
}

// holdLease connects a client as ours do: it subscribes to its replies and notifications, takes a lease,
// watches it, and renews it once.
func holdLease(address, id string) (net.Conn, error) {
	c, err := testsupport.TryDialRaw(address, id)
	if err != nil {
		return nil, err
	}
	notifications := fmt.Sprintf("%s/%X/command/notify/+", testsupport.ReservedPrefix, id)
	if _, err := c.Conn.Write(rawmqtt.SubscribeTo(1, 1, notifications)); err != nil {
		return nil, err
	}
	if _, err := c.Receive(); err != nil {
		return nil, err
	}
	set := testsupport.Exchange{Words: []string{"SET", "lease/" + id, id + ":0123456789abcdef", "NEX", "PX", "3600000"}, Want: "+OK\r\n"}
	watch := testsupport.Exchange{Words: []string{"KEYNOTIFY", "lease/" + id}, Want: "+OK\r\n"}
	return c.Conn, c.Exchange(0, nil, set, watch, set)
}

// serverProcess is a server in a process of its own.
type serverProcess struct {
	b       *testing.B
	address string
	input   io.Writer
	output  *bufio.Reader
}

func startServerProcess(b *testing.B) *serverProcess {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestServerOfConnections$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), serverVariable+"=1")
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = input.Close() // the server ends
		if err := await.Result(cmd.Wait); err != nil {
			b.Errorf("the server: %v", err)
		}
	})
	p := &serverProcess{b: b, input: input, output: bufio.NewReader(output)}
	p.address = p.line()
	return p
}

func (p *serverProcess) line() string {
	p.b.Helper()
	text, err := p.output.ReadString('\n')
	if err != nil {
		p.b.Fatal(err)
	}
	return strings.TrimSpace(text)
}

// processUsage is what a process takes.
type processUsage struct {
	present    int64 // resident memory as it is
	resident   int64 // resident memory after garbage collection
	heap       int64
	stacks     int64
	goroutines int64
}

// report reports what one of count items takes, from what the process took before there were any.
func (u processUsage) report(b *testing.B, before processUsage, count int, item string) {
	report := func(unit string, before, after int64) {
		b.ReportMetric(float64(after-before)/float64(count), unit+"/"+item)
	}
	report("rss-B", before.present, u.present)
	report("least-rss-B", before.resident, u.resident)
	report("heap-B", before.heap, u.heap)
	report("stack-B", before.stacks, u.stacks)
	report("goroutines", before.goroutines, u.goroutines)
}

func (p *serverProcess) usage() (u processUsage) {
	p.b.Helper()
	if _, err := fmt.Fprintln(p.input); err != nil {
		p.b.Fatal(err)
	}
	if _, err := fmt.Sscan(p.line(), &u.present, &u.resident, &u.heap, &u.stacks, &u.goroutines); err != nil {
		p.b.Fatal(err)
	}
	return u
}

// TestServerOfConnections is the server of BenchmarkConnections. It says its address, and what it takes
// for each line that it reads.
func TestServerOfConnections(t *testing.T) {
	if os.Getenv(serverVariable) == "" {
		t.Skip("only for BenchmarkConnections, as a process of its own")
	}
	fmt.Println(testsupport.Start(t, server.Options{}))
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		u := usageOfProcess(t)
		fmt.Println(u.present, u.resident, u.heap, u.stacks, u.goroutines)
	}
}

// usageOfProcess measures this process: as it is, and after it has returned what it does not use, as the
// command does now and then.
func usageOfProcess(t testing.TB) processUsage {
	present := residentMemory(t)
	debug.FreeOSMemory()
	debug.FreeOSMemory() // the first has emptied the pools and halved the stacks
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return processUsage{present, residentMemory(t), int64(memory.HeapAlloc), int64(memory.StackInuse), int64(runtime.NumGoroutine())}
}

// residentMemory returns what this process has in memory, in bytes.
func residentMemory(t testing.TB) int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}
