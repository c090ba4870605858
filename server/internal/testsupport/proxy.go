package testsupport

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// Proxy is a TCP proxy between clients and a server. It delays or drops whole MQTT packets, so
// that the rest of the stream stays readable. Its methods may be called concurrently.
type Proxy struct {
	listener net.Listener
	Target   atomic.Pointer[string]
	Accepted atomic.Int64
	tasks    sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool         // true: all its packets are dropped
	holding [directions]chan struct{} // while not nil, packets are held back until it is closed
	held    [directions]int           // packets that wait for that now
	refuse  bool
}

// Direction is one of the two directions through the proxy.
type Direction int

const (
	ToServer Direction = iota // from the client to the server
	ToClient                  // from the server to the client
	directions
)

// NewProxy runs a proxy to the server at target until the test ends.
func NewProxy(t *testing.T, target string) *Proxy {
	t.Helper()
	p := &Proxy{listener: Listen(t), conns: make(map[net.Conn]bool)}
	p.Target.Store(&target)
	p.tasks.Go(p.serve)
	t.Cleanup(func() {
		_ = p.listener.Close()
		p.Release(ToServer)
		p.Release(ToClient)
		p.Cut()
		await.Done(p.tasks.Wait)
	})
	return p
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.Accepted.Add(1)
		server, err := net.Dial("tcp", *p.Target.Load())
		if err != nil || !p.track(client, server) {
			_ = client.Close()
			if server != nil {
				_ = server.Close()
			}
			continue
		}
		p.tasks.Go(func() { p.pass(server, client, ToServer) })
		p.tasks.Go(func() { p.pass(client, server, ToClient) })
	}
}

func (p *Proxy) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return false
	}
	for _, conn := range conns {
		p.conns[conn] = false
	}
	return true
}

// pass copies packets from one side to the other. Packets to the server are read even while they are
// held, so that they outlive the connection of their client; those to the client wait unread.
func (p *Proxy) pass(to, from net.Conn, way Direction) {
	room := 0
	if way == ToServer {
		room = 1000
	}
	packets := make(chan []byte, room)
	p.tasks.Go(func() { p.write(to, from, way, packets) })
	defer close(packets)
	reader := bufio.NewReader(from)
	for {
		packet, err := ReadPacket(reader)
		if err != nil {
			return
		}
		packets <- packet
	}
}

// write writes packets until there are no more.
func (p *Proxy) write(to, from net.Conn, way Direction, packets <-chan []byte) {
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
			if way == ToServer {
				_ = from.Close() // which ends the reading
			}
			// A client that is gone ends its own reading. Its packets to the server must
			// outlive it, so the connection to the server stays until they are written.
		}
	}
	_ = from.Close()
}

// ReadPacket returns the next packet as it was sent [MQTT-2.1].
func ReadPacket(from *bufio.Reader) ([]byte, error) {
	first, body, err := rawmqtt.Read(from, 256<<20)
	if err != nil {
		return nil, err
	}
	return rawmqtt.Packet(first>>4, first, body), nil
}

// wait returns when a packet may pass.
func (p *Proxy) wait(way Direction) {
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

func (p *Proxy) isDeaf(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[conn]
}

// Swallow makes the present connections half-open: both ends stay connected, and the proxy drops
// all their packets.
func (p *Proxy) Swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		p.conns[conn] = true
	}
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}

// Hold keeps the packets of a direction back until Release.
func (p *Proxy) Hold(way Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding[way], p.held[way] = make(chan struct{}), 0
}

// Release lets the packets of a direction pass again.
func (p *Proxy) Release(way Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holding[way] != nil {
		close(p.holding[way])
		p.holding[way] = nil
	}
}

// Holds reports whether a packet is held back.
func (p *Proxy) Holds(way Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[way] > 0
}

// Refuse makes new connections fail while on is true.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}
