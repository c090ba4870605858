package server_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
)

// proxy stands between a client and a server and does what networks do, to whole MQTT
// packets: what it holds back or swallows leaves the rest of the stream readable.
type proxy struct {
	listener net.Listener
	target   atomic.Pointer[string]
	accepted atomic.Int64
	tasks    sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	holding [directions]chan struct{} // while not nil, packets are held back until it is closed
	held    [directions]int           // packets that wait for that now
	deaf    map[net.Conn]struct{}     // those whose packets are swallowed
	refuse  bool
}

// direction is a way through the proxy.
type direction int

const (
	requests direction = iota // from the client to the server
	answers                   // from the server to the client
	directions
)

// newProxy returns a proxy to the server at target, until the test ends.
func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, conns: make(map[net.Conn]struct{}), deaf: make(map[net.Conn]struct{})}
	p.target.Store(&target)
	p.tasks.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.release(requests)
		p.release(answers)
		p.cut()
		await.Done(p.tasks.Wait)
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		server, err := net.Dial("tcp", *p.target.Load())
		if err != nil || !p.keep(client, server) {
			_ = client.Close()
			if server != nil {
				_ = server.Close()
			}
			continue
		}
		p.tasks.Go(func() { p.pass(server, client, requests) })
		p.tasks.Go(func() { p.pass(client, server, answers) })
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return false
	}
	for _, conn := range conns {
		p.conns[conn] = struct{}{}
	}
	return true
}

// pass copies packets from one side to the other. Requests are read as they come, even if
// they are held: what a client has sent survives the end of its connection. Answers that
// are held wait unread.
func (p *proxy) pass(to, from net.Conn, way direction) {
	room := 0
	if way == requests {
		room = 1000
	}
	packets := make(chan []byte, room)
	p.tasks.Go(func() { p.write(to, from, way, packets) })
	defer close(packets)
	reader := bufio.NewReader(from)
	for {
		packet, err := readPacket(reader)
		if err != nil {
			return
		}
		packets <- packet
	}
}

// write writes packets until there are no more.
func (p *proxy) write(to, from net.Conn, way direction, packets <-chan []byte) {
	defer to.Close()
	broken := false
	for packet := range packets {
		if broken {
			continue
		}
		p.wait(way)
		if p.isDeaf(from) {
			continue
		}
		if _, err := to.Write(packet); err != nil {
			broken = true
			_ = from.Close() // which ends the reading
		}
	}
	_ = from.Close()
}

// readPacket reads one packet as it is [MQTT-2.1].
func readPacket(from *bufio.Reader) ([]byte, error) {
	first, err := from.ReadByte()
	if err != nil {
		return nil, err
	}
	length, err := binary.ReadUvarint(from) // MQTT's variable byte integer is the same
	if err != nil {
		return nil, err
	}
	if length > 256<<20 {
		return nil, fmt.Errorf("no MQTT packet is %d bytes long", length)
	}
	packet := binary.AppendUvarint([]byte{first}, length)
	body := make([]byte, length)
	_, err = io.ReadFull(from, body)
	return append(packet, body...), err
}

// wait returns when a packet may go on.
func (p *proxy) wait(way direction) {
	p.mu.Lock()
	holding := p.holding[way]
	if holding != nil {
		p.held[way]++
	}
	p.mu.Unlock()
	if holding != nil {
		await.Receive(holding)
	}
}

func (p *proxy) isDeaf(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, deaf := p.deaf[conn]
	return deaf
}

// swallow makes the present connections half-open: both ends stay connected, and no
// packet arrives any more.
func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		p.deaf[conn] = struct{}{}
	}
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}

// hold keeps packets back, until release.
func (p *proxy) hold(way direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding[way], p.held[way] = make(chan struct{}), 0
}

func (p *proxy) release(way direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holding[way] != nil {
		close(p.holding[way])
		p.holding[way] = nil
	}
}

// holds reports whether a packet waits. Those behind it wait unread.
func (p *proxy) holds(way direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[way] > 0
}

// refuses makes new connections fail, or not.
func (p *proxy) refuses(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}
