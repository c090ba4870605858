package server_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
)

// bare is a client with no goroutine and next to no memory of its own, so that many
// of them show what the server needs. It uses nothing of paho but its codec.
type bare struct {
	id      string
	conn    net.Conn
	in      *bufio.Reader
	replyTo string
}

func connectPacket(t testing.TB, id string, change func(*packets.Connect)) []byte {
	t.Helper()
	data, err := encode(connectOf(id, change))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func connectOf(id string, change func(*packets.Connect)) *packets.Connect {
	connect := &packets.Connect{
		ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: id, CleanStart: true, KeepAlive: 600,
		Properties: &packets.Properties{},
	}
	if change != nil {
		change(connect)
	}
	return connect
}

func encode(packet packets.Packet) ([]byte, error) {
	var buffer bytes.Buffer
	_, err := packet.WriteTo(&buffer)
	return buffer.Bytes(), err
}

// hail connects a bare client. change may alter its socket before anything is sent.
func hail(address, id string, change func(*net.TCPConn)) (*bare, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(conn.(*net.TCPConn))
	}
	c := &bare{id: id, conn: conn, in: bufio.NewReaderSize(conn, 512), replyTo: "clients/" + id + "/response"}
	if err := c.hello(nil); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	return c, nil
}

func (c *bare) hello(change func(*packets.Connect)) error {
	c.patient()
	if err := c.send(connectOf(c.id, change)); err != nil {
		return err
	}
	if err := c.expect(packets.CONNACK); err != nil {
		return err
	}
	return c.follow(c.replyTo, 1)
}

func (c *bare) follow(topic string, qos byte) error {
	c.patient()
	err := c.send(&packets.Subscribe{
		PacketID: 60000, Properties: &packets.Properties{},
		Subscriptions: []packets.SubOptions{{Topic: topic, QoS: qos}},
	})
	if err != nil {
		return err
	}
	return c.expect(packets.SUBACK)
}

// patient bounds the next calls. In a crowd each waits for all the others.
func (c *bare) patient() { _ = c.conn.SetDeadline(time.Now().Add(3 * patience)) }

func (c *bare) send(packet packets.Packet) error {
	data, err := encode(packet)
	if err != nil {
		return err
	}
	_, err = c.conn.Write(data)
	return err
}

func (c *bare) receive() (*packets.ControlPacket, error) {
	packet, err := packets.ReadPacket(c.in)
	if err == nil && packet.Type == packets.DISCONNECT {
		return nil, fmt.Errorf("%w: %#x", errSentAway, packet.Content.(*packets.Disconnect).ReasonCode)
	}
	return packet, err
}

var errSentAway = errors.New("the server sent a DISCONNECT")

// expect takes the next packet, which must be of a type and report no failure.
func (c *bare) expect(kind byte) error {
	packet, err := c.receive()
	if err != nil {
		return err
	}
	code := byte(0)
	switch content := packet.Content.(type) {
	case *packets.Connack:
		code = content.ReasonCode
	case *packets.Suback:
		code = content.Reasons[0]
	}
	if packet.Type != kind || code >= 0x80 {
		return fmt.Errorf("got %v, want a packet of type %d", packet, kind)
	}
	return nil
}

// request returns the request number n of a client.
func (c *bare) request(n int, change func(*packets.Publish), words ...string) *packets.Publish {
	message := &packets.Publish{
		QoS: 1, PacketID: uint16(1 + n%50000), Topic: invokeTopic, Payload: command(words...),
		Properties: &packets.Properties{
			ResponseTopic:   c.replyTo,
			CorrelationData: c.correlation(n),
			User:            []packets.User{{Key: "__ts", Value: fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), c.id)}},
		},
	}
	if change != nil {
		change(message)
	}
	return message
}

func (c *bare) correlation(n int) []byte { return fmt.Appendf(nil, "%s/%08d", c.id, n) }

// demand is a request and what must come of it.
type demand struct {
	words []string
	want  string
}

// ask sends demands numbered from first, all of them before it reads.
func (c *bare) ask(first int, change func(*packets.Publish), demands ...demand) error {
	if err := c.post(first, change, demands...); err != nil {
		return err
	}
	return c.collect(first, demands...)
}

func (c *bare) post(first int, change func(*packets.Publish), demands ...demand) error {
	c.patient()
	var buffer bytes.Buffer
	for i, d := range demands {
		if _, err := c.request(first+i, change, d.words...).WriteTo(&buffer); err != nil {
			return err
		}
	}
	_, err := c.conn.Write(buffer.Bytes())
	return err
}

// collect takes exactly the replies and acknowledgements of demands, in order.
// Notifications may come in between.
func (c *bare) collect(first int, demands ...demand) error {
	replies, acks := 0, 0
	for replies < len(demands) || acks < len(demands) {
		packet, err := c.receive()
		if err != nil {
			return fmt.Errorf("after %d replies and %d acknowledgements to requests %d and later: %w", replies, acks, first, err)
		}
		switch content := packet.Content.(type) {
		case *packets.Puback:
			if want := uint16(1 + (first+acks)%50000); acks == len(demands) || content.PacketID != want || content.ReasonCode >= 0x80 {
				return fmt.Errorf("PUBACK %v, want that of packet id %d", content, want)
			}
			acks++
		case *packets.Publish:
			if strings.HasPrefix(content.Topic, reservedPrefix) {
				continue
			}
			if replies == len(demands) {
				return fmt.Errorf("one reply too many, to %q", content.Properties.CorrelationData)
			}
			if want := c.correlation(first + replies); content.Topic != c.replyTo || !bytes.Equal(content.Properties.CorrelationData, want) {
				return fmt.Errorf("a reply to %q on %s, want one to %q", content.Properties.CorrelationData, content.Topic, want)
			}
			if got, want := string(content.Payload), demands[replies].want; got != want {
				return fmt.Errorf("%q is answered %q, want %q", demands[replies].words, got, want)
			}
			replies++
		default:
			return fmt.Errorf("got %v", packet)
		}
	}
	return nil
}

// leave ends the connection, after a look whether anything came that nobody asked for.
func (c *bare) leave() error {
	defer c.conn.Close()
	c.patient()
	if _, err := c.conn.Write([]byte{packets.PINGREQ << 4, 0}); err != nil {
		return err
	}
	if err := c.expect(packets.PINGRESP); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	_, err := c.conn.Write([]byte{packets.DISCONNECT << 4, 0})
	return err
}

// drop ends the connection without a word and leaves no TIME_WAIT behind.
func (c *bare) drop() {
	_ = c.conn.(*net.TCPConn).SetLinger(0)
	_ = c.conn.Close()
}

// crowd is what comes upon the server at once.
type crowd struct {
	name                                 string // part of all client ids and keys
	connections, takeOvers, stuck, liars int
}

const requestsEach, window = 100, 10

// demands returns the requests of one client, from first on: renewals of a key of its
// own, reads of it in between, and its release at last.
func (c *bare) demands(first, count int) []demand {
	key, holder := "lock/"+c.id, "holder:"+c.id
	list := make([]demand, count)
	for i := range list {
		switch n := first + i; {
		case n == requestsEach-1:
			list[i] = demand{[]string{"VDEL", key, holder}, ":1\r\n"}
		case n%4 == 3:
			list[i] = demand{[]string{"GET", key}, fmt.Sprintf("$%d\r\n%s\r\n", len(holder), holder)}
		default:
			list[i] = demand{[]string{"SET", key, holder, "NEX", "PX", "600000"}, "+OK\r\n"}
		}
	}
	return list
}

// work performs a client's requests from first to before end.
func (c *bare) work(first, end int) error {
	for ; first < end; first += window {
		if err := c.ask(first, nil, c.demands(first, window)...); err != nil {
			return err
		}
	}
	return nil
}

// behave is the life of a good client.
func (w crowd) behave(address string, number int) error {
	c, err := hail(address, fmt.Sprintf("%s-good-%d", w.name, number), nil)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	if err := c.work(0, requestsEach); err != nil {
		return fmt.Errorf("%s: %w", c.id, err)
	}
	if err := c.leave(); err != nil {
		return fmt.Errorf("%s: %w", c.id, err)
	}
	return nil
}

// beTakenOver is the life of a client whose second connection comes while the first
// waits for replies. What the first did not get the second asks for again.
func (w crowd) beTakenOver(address string, number int) error {
	id := fmt.Sprintf("%s-twice-%d", w.name, number)
	old, err := hail(address, id, nil)
	if err != nil {
		return err
	}
	defer old.conn.Close()
	half := requestsEach / 2
	if err := old.work(0, half); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	if err := old.post(half, nil, old.demands(half, window)...); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	present, err := hail(address, id, nil)
	if err != nil {
		return err
	}
	defer present.conn.Close()
	if err := present.work(half, requestsEach); err != nil {
		return fmt.Errorf("%s, the new connection: %w", id, err)
	}
	// The old one may have got any number of its replies, in order, and then its end.
	err = old.collect(half, old.demands(half, window)...)
	if err == nil {
		_, err = old.receive()
	}
	var failure net.Error
	switch reset := errors.As(err, &failure) && !failure.Timeout(); {
	case errors.Is(err, errSentAway), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), reset:
		return present.leave()
	default:
		return fmt.Errorf("%s, the old connection: %w", id, err)
	}
}

// beStuck returns a client that watches a key and then reads nothing more.
func (w crowd) beStuck(address string, number int) (*bare, error) {
	c, err := hail(address, fmt.Sprintf("%s-stuck-%d", w.name, number), func(conn *net.TCPConn) {
		if number%2 == 0 {
			_ = conn.SetReadBuffer(4096) // and half of them leave much in their sockets
		}
	})
	if err != nil {
		return nil, err
	}
	return c, c.ask(0, nil, demand{[]string{"KEYNOTIFY", w.hotKey()}, "+OK\r\n"})
}

func (w crowd) hotKey() string { return "hot/" + w.name }

// heat writes the key that the stuck ones watch, until enough is true.
func (w crowd) heat(address string, enough func() bool) error {
	c, err := hail(address, w.name+"-writer", nil)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	value := strings.Repeat("x", 64<<10)
	for n := 0; !enough(); n++ {
		if err := c.ask(n, nil, demand{[]string{"SET", w.hotKey(), value}, "+OK\r\n"}); err != nil {
			return fmt.Errorf("%s: write %d: %w", c.id, n, err)
		}
		time.Sleep(time.Millisecond) // the others want to be served too
	}
	if err := c.ask(50_000, nil, demand{[]string{"DEL", w.hotKey()}, ":1\r\n"}); err != nil {
		return fmt.Errorf("%s: %w", c.id, err)
	}
	return c.leave()
}

// lie sends garbage of all kinds until done. What the server makes of it is its affair.
func (w crowd) lie(address string, number int, done <-chan struct{}) {
	random := rand.New(rand.NewPCG(42, uint64(number)))
	noise := func(most int) []byte {
		data := make([]byte, 1+random.IntN(most))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		return data
	}
	id := fmt.Sprintf("%s-liar-%d", w.name, number)
	for round := number; ; round++ {
		select {
		case <-done:
			return
		case <-time.After(2 * time.Millisecond): // ten clients, not a machine full
		}
		if round%4 < 2 {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				continue
			}
			c := &bare{id: id, conn: conn, replyTo: "clients/" + id + "/response"}
			hello, _ := encode(connectOf(id, nil))
			switch request, _ := encode(c.request(round, nil, "GET", "k")); random.IntN(5) {
			case 0:
				_, _ = conn.Write(noise(4096))
			case 1:
				_, _ = conn.Write(hello[:random.IntN(len(hello))])
			case 2:
				_, _ = conn.Write([]byte("\x10\xff\xff\xff\x7f\x00\x04MQTT\x05"))
			case 3: // almost a client
				all := append(hello, request...)
				for range 1 + random.IntN(3) {
					all[random.IntN(len(all))] ^= 1 << random.IntN(8)
				}
				_, _ = conn.Write(all)
			case 4: // no CONNECT
				_, _ = conn.Write(request)
			}
			if random.IntN(2) == 0 {
				_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				_, _ = io.Copy(io.Discard, conn)
			}
			c.drop()
			continue
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			continue
		}
		// All at once: who waits for a CONNACK behind a crowd is no flood.
		c := &bare{id: id, conn: conn, replyTo: "clients/" + id + "/response"}
		flood, _ := encode(connectOf(id, nil))
		for n := range 100 {
			request := c.request(n, nil, "SET", "lie", "v", "NX", "PX", "1")
			switch random.IntN(8) {
			case 0:
				request.Payload = noise(256)
			case 1:
				request.Payload = []byte("*3\r\n$3\r\nSET\r\n$1000000000\r\nk\r\n")
			case 2:
				request.Properties.ResponseTopic = ""
			case 3:
				request.Properties.CorrelationData = nil
			case 4:
				request.Properties.ResponseTopic = "clients/+/#"
			case 5:
				request.Retain, request.QoS = true, byte(random.IntN(2))
			case 6:
				request.Properties.User = []packets.User{{Key: "__ts", Value: fmt.Sprintf("%x", noise(64))}}
			case 7:
				if n > 90 {
					request.Properties.ResponseTopic = invokeTopic // which ends the connection
				}
			}
			data, _ := encode(request)
			flood = append(flood, data...)
		}
		_, _ = conn.Write(flood)
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		_, _ = io.Copy(io.Discard, conn) // until all of that was looked at
		c.drop()
	}
}

// come lets a crowd come and go, and returns when nothing of it is left on its side.
func (w crowd) come(t *testing.T, address string, s *server.Server) {
	t.Helper()
	sentAway := s.Stats().SlowReaders
	var stuck []*bare
	for i := range w.stuck {
		c, err := w.beStuck(address, i)
		if err != nil {
			t.Fatal(err)
		}
		stuck = append(stuck, c)
	}
	var good, others sync.WaitGroup
	done := make(chan struct{})
	for i := range w.liars {
		others.Go(func() { w.lie(address, i, done) })
	}
	others.Go(func() {
		deadline := time.Now().Add(3 * patience)
		err := w.heat(address, func() bool {
			if time.Now().After(deadline) {
				t.Errorf("%d of %d clients that do not read were sent away", s.Stats().SlowReaders-sentAway, w.stuck)
				return true
			}
			return s.Stats().SlowReaders-sentAway == uint64(w.stuck) && isDone(done)
		})
		if err != nil {
			t.Error(err)
		}
	})
	for i := range w.connections - w.takeOvers {
		good.Go(func() {
			if err := w.behave(address, i); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range w.takeOvers {
		good.Go(func() {
			if err := w.beTakenOver(address, i); err != nil {
				t.Error(err)
			}
		})
	}
	await.Done(good.Wait)
	close(done)
	await.Done(others.Wait)
	for _, c := range stuck {
		c.drop()
	}
}

func TestACrowdLosesNoReplyAndLeavesNothingBehind(t *testing.T) {
	first := crowd{name: "first", connections: 1000, takeOvers: 20, stuck: 20, liars: 10}
	second := crowd{name: "second", connections: 300, takeOvers: 20, stuck: 5, liars: 5}
	if underRace || testing.Short() {
		// The race detector needs several times as long for each of them.
		first.connections, second.connections = 250, 100
	}
	address, s := startServer(t, server.Options{})
	probe, err := hail(address, "probe", nil) // what the server starts late is started now
	if err != nil {
		t.Fatal(err)
	}
	if err := probe.leave(); err != nil {
		t.Fatal(err)
	}
	mustBeEmpty(t, s)
	goroutines := runtime.NumGoroutine()
	var heap [3]uint64
	heap[0] = live()
	for i, w := range []crowd{first, second} {
		w.come(t, address, s)
		mustBeEmpty(t, s)
		mustSettle(t, goroutines)
		w.mustHaveNoWatches(t, address)
		mustBeEmpty(t, s)
		mustSettle(t, goroutines)
		heap[i+1] = live()
	}
	t.Logf("heap: %d KiB before, %d KiB after the first crowd, %d KiB after the second; %d requests; dropped %v",
		heap[0]>>10, heap[1]>>10, heap[2]>>10, s.Stats().Requests, s.Stats().Dropped)
	// Maps and pools stay as large as the first crowd made them. Nothing in them says
	// that a second one, all of whose names are new, may add to that.
	const tables, growth = 16 << 20, 2 << 20
	if heap[1] > heap[0]+tables {
		t.Errorf("the first crowd left %d KiB", (heap[1]-heap[0])>>10)
	}
	if heap[2] > heap[1]+growth {
		t.Errorf("the second crowd left %d KiB", (heap[2]-heap[1])>>10)
	}
}

// live returns how many bytes are in use.
func live() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // pools keep things for one more
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// mustBeEmpty waits until the server knows of no client any more.
func mustBeEmpty(t *testing.T, s *server.Server) {
	t.Helper()
	eventually(t, "the server knows of no client", func() bool {
		return s.Sockets() == 0 && s.Stats().Connected == 0 && s.Broker().Clients.Len() == 0
	})
	if usage := s.Usage(); usage.Subscriptions != 0 || usage.Sessions != 0 || usage.OutgoingBytes != 0 || usage.WaitingBytes != 0 {
		t.Errorf("the server still holds %+v", usage)
	}
}

// mustHaveNoWatches asks for each of those that watched whether it still does. They
// ask without a clean start, which would end a watch that was left.
func (w crowd) mustHaveNoWatches(t *testing.T, address string) {
	t.Helper()
	for i := range w.stuck {
		id := fmt.Sprintf("%s-stuck-%d", w.name, i)
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c := &bare{id: id, conn: conn, in: bufio.NewReader(conn), replyTo: "clients/" + id + "/response"}
		if err := c.hello(func(connect *packets.Connect) { connect.CleanStart = false }); err != nil {
			t.Fatal(err)
		}
		if err := c.ask(1, nil, demand{[]string{"KEYNOTIFY", w.hotKey(), "STOP"}, ":0\r\n"}); err != nil {
			t.Error(err)
		}
		if err := c.leave(); err != nil {
			t.Error(err)
		}
	}
}
