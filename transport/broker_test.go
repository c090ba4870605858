package transport

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
)

// pipeBroker knows just enough of MQTT for a client to connect to it over a pipe, in
// virtual time.
type pipeBroker struct {
	dialing func() // called by dial; nil: nothing
	t       *testing.T
	// answer, if not nil, may handle a packet in place of the broker; it then reports
	// true.
	answer func(conn net.Conn, packet *packets.ControlPacket) bool

	mu    sync.Mutex
	conn  net.Conn // the latest
	seen  []string // what came in, but for subscriptions and pings
	hosts []string // that were dialled
	down  bool     // dialling fails
	left  []byte   // reason codes of DISCONNECT that came in
	tasks sync.WaitGroup
}

// dialTo is Dial to a broker in this process.
func dialTo(t *testing.T, b *pipeBroker, addresses string, options Options) (*Client, error) {
	t.Helper()
	b.t = t
	servers, err := mqtt.ParseAddresses(addresses)
	if err != nil {
		t.Fatal(err)
	}
	if err := options.complete(); err != nil {
		t.Fatal(err)
	}
	if err := options.checkCredentials(servers); err != nil {
		t.Fatal(err)
	}
	options.Dialer = b.dial
	conn := newMQTTConn(t.Context(), servers, options)
	client, err := NewClient(conn, options.ClientOptions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		b.cut()
		await.Done(b.tasks.Wait)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return client, conn.awaitFirst(ctx)
}

func mustDialTo(t *testing.T, b *pipeBroker, options Options) *Client {
	t.Helper()
	client, err := dialTo(t, b, "mqtt://broker", options)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// dial is the Dialer of clients.
func (b *pipeBroker) dial(_ context.Context, _, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dialing != nil {
		b.dialing()
	}
	b.hosts = append(b.hosts, host)
	if b.down {
		return nil, fmt.Errorf("%s is down", host)
	}
	near, end := net.Pipe()
	far := newBufferedPipe(end)
	b.conn = far
	b.tasks.Go(func() {
		defer far.Close()
		for b.serve(far) {
		}
	})
	b.tasks.Go(far.drain)
	return near, nil
}

func (b *pipeBroker) serve(conn net.Conn) bool {
	packet, err := packets.ReadPacket(conn)
	if err != nil {
		return false
	}
	switch content := packet.Content.(type) {
	case *packets.Connect:
		b.saw(fmt.Sprintf("CONNECT %s%s %s:%s", content.Properties.AuthMethod, content.Properties.AuthData, content.Username, content.Password))
	case *packets.Auth:
		b.saw(fmt.Sprintf("AUTH %#x %s%s", content.ReasonCode, content.Properties.AuthMethod, content.Properties.AuthData))
	case *packets.Publish:
		b.saw("PUBLISH")
	case *packets.Disconnect:
		b.mu.Lock()
		b.left = append(b.left, content.ReasonCode)
		b.mu.Unlock()
		return false
	}
	if b.answer != nil && b.answer(conn, packet) {
		return true
	}
	switch content := packet.Content.(type) {
	case *packets.Connect:
		send(conn, packets.CONNACK, func(*packets.Connack) {})
	case *packets.Subscribe:
		send(conn, packets.SUBACK, func(p *packets.Suback) {
			p.PacketID, p.Reasons = content.PacketID, make([]byte, len(content.Subscriptions))
		})
	case *packets.Pingreq:
		send(conn, packets.PINGRESP, func(*packets.Pingresp) {})
	case *packets.Publish:
		send(conn, packets.PUBACK, func(p *packets.Puback) { p.PacketID = content.PacketID })
	case *packets.Auth:
		send(conn, packets.AUTH, func(p *packets.Auth) { p.Properties.AuthMethod = methodServiceAccount })
	}
	return true
}

// bufferedPipe lets a broker write while its client writes, as with a socket. Over a bare
// pipe each would wait for the other to read.
type bufferedPipe struct {
	net.Conn
	queue  chan []byte
	closed chan struct{}
	close  sync.Once
}

func newBufferedPipe(conn net.Conn) *bufferedPipe {
	return &bufferedPipe{Conn: conn, queue: make(chan []byte, 1000), closed: make(chan struct{})}
}

func (p *bufferedPipe) Write(packet []byte) (int, error) {
	select {
	case p.queue <- bytes.Clone(packet):
		return len(packet), nil
	case <-p.closed:
		return 0, net.ErrClosed
	}
}

func (p *bufferedPipe) Close() error {
	p.close.Do(func() { close(p.closed) })
	return p.Conn.Close()
}

// drain writes what is queued, until the pipe is closed.
func (p *bufferedPipe) drain() {
	for {
		select {
		case packet := <-p.queue:
			_, _ = p.Conn.Write(packet) // the other end may be gone
		case <-p.closed:
			return
		}
	}
}

// goroutines returns how many goroutines the bubble of a test has. runtime.NumGoroutine also counts the one
// that runs finalizers, while it does.
func goroutines() int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(", synctest bubble "))
}

// send writes a packet as a whole; the other end may be gone.
func send[P any](conn net.Conn, kind byte, fill func(P)) {
	packet := packets.NewControlPacket(kind)
	fill(packet.Content.(P))
	if kind == packets.AUTH {
		packet.Flags = 0 // NewControlPacket of paho v0.23.0 sets one that is reserved [MQTT-3.15.1-1]
	}
	var encoded bytes.Buffer
	_, _ = packet.WriteTo(&encoded)
	_, _ = conn.Write(encoded.Bytes())
}

// reply answers a GET or a KEYNOTIFY like a store without keys.
func reply(conn net.Conn, request *packets.Publish) {
	send(conn, packets.PUBLISH, func(p *packets.Publish) {
		p.Topic = request.Properties.ResponseTopic
		p.Payload = []byte("$-1\r\n")
		if bytes.Contains(request.Payload, []byte("KEYNOTIFY")) {
			p.Payload = []byte("+OK\r\n")
		}
		p.Properties.CorrelationData = request.Properties.CorrelationData
	})
}

// refuse returns an answer to the CONNECTs after the first ones.
func refuse(first int, code func() byte) func(net.Conn, *packets.ControlPacket) bool {
	return func(conn net.Conn, packet *packets.ControlPacket) bool {
		if _, ok := packet.Content.(*packets.Connect); !ok {
			return false
		}
		if first--; first >= 0 {
			return false
		}
		send(conn, packets.CONNACK, func(p *packets.Connack) { p.ReasonCode = code() })
		return true
	}
}

func (b *pipeBroker) saw(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, what)
}

// dialled returns the hosts that were dialled.
func (b *pipeBroker) dialled() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.hosts)
}

// latestHost returns the host that was dialled last.
func (b *pipeBroker) latestHost() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hosts[len(b.hosts)-1]
}

// count returns how much came in.
func (b *pipeBroker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.seen)
}

// cut ends the latest connection.
func (b *pipeBroker) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		_ = b.conn.Close()
	}
}

// present returns the latest connection.
func (b *pipeBroker) present() net.Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn
}

// mustHaveSeen fails unless exactly these packets arrived, after all goroutines of the bubble
// are blocked.
func (b *pipeBroker) mustHaveSeen(want ...string) {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.seen, want) {
		b.t.Errorf("the broker saw %q\nwant %q", b.seen, want)
	}
}
