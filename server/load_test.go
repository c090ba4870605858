package server_test

import (
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
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// load is a number of clients of several kinds that connect at once.
type load struct {
	name                                 string // part of all client ids and keys
	connections, takeOvers, stuck, liars int
}

const requestsEach, window = 100, 10

// demands returns the requests of one client, from first on: renewals of a key of its
// own, reads of it in between, and its release at last.
func demands(c *testsupport.RawClient, first, count int) []testsupport.Exchange {
	key, holder := "lock/"+c.ID, "holder:"+c.ID
	list := make([]testsupport.Exchange, count)
	for i := range list {
		switch n := first + i; {
		case n == requestsEach-1:
			list[i] = testsupport.Exchange{Words: []string{"VDEL", key, holder}, Want: ":1\r\n"}
		case n%4 == 3:
			list[i] = testsupport.Exchange{Words: []string{"GET", key}, Want: fmt.Sprintf("$%d\r\n%s\r\n", len(holder), holder)}
		default:
			list[i] = testsupport.Exchange{Words: []string{"SET", key, holder, "NEX", "PX", "600000"}, Want: "+OK\r\n"}
		}
	}
	return list
}

// work performs a client's requests from first to before end.
func work(c *testsupport.RawClient, first, end int) error {
	for ; first < end; first += window {
		if err := c.Exchange(first, nil, demands(c, first, window)...); err != nil {
			return err
		}
	}
	return nil
}

// behave runs a well-behaved client.
func (w load) behave(address string, number int) error {
	c, err := testsupport.TryDialRaw(address, fmt.Sprintf("%s-good-%d", w.name, number))
	if err != nil {
		return err
	}
	defer c.Conn.Close()
	if err := work(c, 0, requestsEach); err != nil {
		return fmt.Errorf("%s: %w", c.ID, err)
	}
	if err := c.TryDisconnect(); err != nil {
		return fmt.Errorf("%s: %w", c.ID, err)
	}
	return nil
}

// beTakenOver runs a client that connects again while its first connection waits for replies. The
// second connection sends those requests again.
func (w load) beTakenOver(address string, number int) error {
	id := fmt.Sprintf("%s-twice-%d", w.name, number)
	old, err := testsupport.TryDialRaw(address, id)
	if err != nil {
		return err
	}
	defer old.Conn.Close()
	half := requestsEach / 2
	if err := work(old, 0, half); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	if err := old.SendRequests(half, nil, demands(old, half, window)...); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	present, err := testsupport.TryDialRaw(address, id)
	if err != nil {
		return err
	}
	defer present.Conn.Close()
	if err := work(present, half, requestsEach); err != nil {
		return fmt.Errorf("%s, the new connection: %w", id, err)
	}
	// The old one may have got any number of its replies, in order, and then its end.
	err = old.ReadReplies(half, demands(old, half, window)...)
	if err == nil {
		_, err = old.Receive()
	}
	var failure net.Error
	switch reset := errors.As(err, &failure) && !failure.Timeout(); {
	case errors.Is(err, testsupport.ErrSentAway), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), reset:
		return present.TryDisconnect()
	default:
		return fmt.Errorf("%s, the old connection: %w", id, err)
	}
}

// beStuck returns a client that watches a key and then reads nothing more.
func (w load) beStuck(address string, number int) (*testsupport.RawClient, error) {
	c, err := testsupport.TryDialRaw(address, fmt.Sprintf("%s-stuck-%d", w.name, number))
	if err != nil {
		return nil, err
	}
	if number%2 == 0 {
		c.ShrinkReadBuffer() // and half of them leave much in their sockets
	}
	return c, c.Exchange(0, nil, testsupport.Exchange{Words: []string{"KEYNOTIFY", w.hotKey()}, Want: "+OK\r\n"})
}

func (w load) hotKey() string { return "hot/" + w.name }

// heat writes the key that the stuck ones watch, until enough is true.
func (w load) heat(address string, enough func() bool) error {
	c, err := testsupport.TryDialRaw(address, w.name+"-writer")
	if err != nil {
		return err
	}
	defer c.Conn.Close()
	value := strings.Repeat("x", 64<<10)
	for n := 0; !enough(); n++ {
		if err := c.Exchange(n, nil, testsupport.Exchange{Words: []string{"SET", w.hotKey(), value}, Want: "+OK\r\n"}); err != nil {
			return fmt.Errorf("%s: write %d: %w", c.ID, n, err)
		}
		time.Sleep(time.Millisecond) // the others want to be served too
	}
	if err := c.Exchange(50_000, nil, testsupport.Exchange{Words: []string{"DEL", w.hotKey()}, Want: ":1\r\n"}); err != nil {
		return fmt.Errorf("%s: %w", c.ID, err)
	}
	return c.TryDisconnect()
}

// lie sends malformed and incomplete requests until done, and ignores the replies.
func (w load) lie(address string, number int, done <-chan struct{}) {
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
			c := testsupport.NewRaw(nil, conn, id)
			hello := testsupport.ConnectPacket{ID: id}.Packet()
			get := c.RequestNumber(round, "GET", "k")
			request, _ := get.Append(nil)
			switch random.IntN(5) {
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
			c.Reset()
			continue
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			continue
		}
		// All in one write: a client that waits for its CONNACK among many others is no flood.
		c := testsupport.NewRaw(nil, conn, id)
		flood := testsupport.ConnectPacket{ID: id}.Packet()
		for n := range 100 {
			request := c.RequestNumber(n, "SET", "lie", "v", "NX", "PX", "1")
			switch random.IntN(8) {
			case 0:
				request.Payload = noise(256)
			case 1:
				request.Payload = []byte("*3\r\n$3\r\nSET\r\n$1000000000\r\nk\r\n")
			case 2:
				request.ResponseTopic = ""
			case 3:
				request.CorrelationData = nil
			case 4:
				request.ResponseTopic = "clients/+/#"
			case 5:
				request.Retain, request.QoS = true, byte(random.IntN(2))
			case 6:
				request.User = []mqtt.UserProperty{{Name: "__ts", Value: fmt.Sprintf("%x", noise(64))}}
			case 7:
				if n > 90 {
					request.ResponseTopic = testsupport.InvokeTopic // which ends the connection
				}
			}
			flood, _ = request.Append(flood)
		}
		_, _ = conn.Write(flood)
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(testsupport.Patience))
		_, _ = io.Copy(io.Discard, conn) // until all of that was looked at
		c.Reset()
	}
}

// run runs the clients of a load, and returns when all have ended.
func (w load) run(t *testing.T, address string, s *server.Server) {
	t.Helper()
	sentAway := s.Stats().SlowReaders
	var stuck []*testsupport.RawClient
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
		deadline := time.Now().Add(3 * testsupport.Patience)
		err := w.heat(address, func() bool {
			if time.Now().After(deadline) {
				t.Errorf("%d of %d clients that do not read were sent away", s.Stats().SlowReaders-sentAway, w.stuck)
				return true
			}
			return s.Stats().SlowReaders-sentAway == uint64(w.stuck) && testsupport.IsDone(done)
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
		c.Reset()
	}
}

func TestManyClientsLoseNoReplyAndLeaveNothingBehind(t *testing.T) {
	first := load{name: "first", connections: 250, takeOvers: 20, stuck: 20, liars: 10}
	second := load{name: "second", connections: 100, takeOvers: 20, stuck: 5, liars: 5}
	if prerequisite.LongRun() && !testsupport.UnderRace { // the detector takes several times as long for each
		first.connections, second.connections = 1000, 300
	}
	// On a busy machine a login of many at once may take longer than the default bounds allow.
	address, s := testsupport.StartServer(t, server.Options{MaxUnauthenticated: 4096},
		func(s *server.Server) { s.SetAuthenticationTimeout(testsupport.Patience) })
	probe, err := testsupport.TryDialRaw(address, "probe") // what the server starts late is started now
	if err != nil {
		t.Fatal(err)
	}
	if err := probe.TryDisconnect(); err != nil {
		t.Fatal(err)
	}
	mustBeEmpty(t, s)
	goroutines := runtime.NumGoroutine()
	var heap [3]uint64
	heap[0] = testsupport.HeapInUse()
	for i, w := range []load{first, second} {
		w.run(t, address, s)
		mustBeEmpty(t, s)
		testsupport.MustEndGoroutines(t, goroutines)
		w.mustHaveNoWatches(t, address)
		mustBeEmpty(t, s)
		testsupport.MustEndGoroutines(t, goroutines)
		heap[i+1] = testsupport.HeapInUse()
	}
	t.Logf("heap: %d KiB before, %d KiB after the first load, %d KiB after the second; %d requests; dropped %v",
		heap[0]>>10, heap[1]>>10, heap[2]>>10, s.Stats().Requests, s.Stats().Dropped)
	// Maps and pools keep their size after the first load. A second load with new client ids must
	// not add to that.
	const tables, growth = 16 << 20, 2 << 20
	if heap[1] > heap[0]+tables {
		t.Errorf("the first load left %d KiB", (heap[1]-heap[0])>>10)
	}
	if heap[2] > heap[1]+growth {
		t.Errorf("the second load left %d KiB", (heap[2]-heap[1])>>10)
	}
}

// mustBeEmpty waits until the server has no client.
func mustBeEmpty(t *testing.T, s *server.Server) {
	t.Helper()
	testsupport.Eventually(t, "the server knows of no client", func() bool {
		return s.Sockets() == 0 && s.Stats().Connected == 0 && s.Clients() == 0
	})
	if usage := s.Usage(); usage.Subscriptions != 0 || usage.Sessions != 0 || usage.OutgoingBytes != 0 || usage.WaitingBytes != 0 {
		t.Errorf("the server still holds %+v", usage)
	}
}

// mustHaveNoWatches checks for each former watcher that its watch has ended. It connects without
// Clean Start, which would itself end a watch that was left.
func (w load) mustHaveNoWatches(t *testing.T, address string) {
	t.Helper()
	for i := range w.stuck {
		id := fmt.Sprintf("%s-stuck-%d", w.name, i)
		c := testsupport.ConnectPacket{ID: id, Resume: true}.Connect(t, address)
		c.Subscribe(c.ReplyTo)
		if err := c.Exchange(1, nil, testsupport.Exchange{Words: []string{"KEYNOTIFY", w.hotKey(), "STOP"}, Want: ":0\r\n"}); err != nil {
			t.Error(err)
		}
		if err := c.TryDisconnect(); err != nil {
			t.Error(err)
		}
	}
}

// The reader of a connection waits when as many replies wait as the client may have requests in
// flight; it reads on after the commit.
func TestManyClientsWhoseRepliesWaitStayWithinTheBounds(t *testing.T) {
	t.Parallel()
	const each, window = 24, 8
	clients := 1000
	if testsupport.UnderRace {
		clients = 200
	}
	d := startDurable(t, server.Options{
		Store:  statestore.Options{DedupWindow: window},
		Limits: server.Limits{AllOutgoingBytes: 64 << 20},
	})
	all := make([]*testsupport.RawClient, clients)
	for i := range all {
		all[i] = testsupport.DialRaw(t, d.address, fmt.Sprintf("c%d", i))
	}
	requests := make([]testsupport.Exchange, each)
	for i := range requests {
		requests[i] = testsupport.Exchange{Words: []string{"SET", fmt.Sprint(i), "v"}, Want: "+OK\r\n"}
	}
	release := d.journal.Hold()
	defer release()
	for _, c := range all {
		if err := c.SendRequests(0, nil, requests...); err != nil {
			t.Fatal(err)
		}
	}
	var most int64
	full := func() bool {
		most = max(most, d.server.Usage().OutgoingBytes)
		return most >= int64(clients*window*512)
	}
	testsupport.Eventually(t, "replies of all connections wait", full)
	for range 20 {
		time.Sleep(10 * time.Millisecond)
		full()
	}
	if most > int64(clients*window*640) { // a reply counts for its topic and 512 bytes
		t.Errorf("%d bytes wait for %d replies of %d clients", most, window, clients)
	}
	release()
	for _, c := range all {
		c.ExtendDeadline()
		if err := c.ReadReplies(0, requests...); err != nil {
			t.Fatal(err)
		}
	}
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
}

// Long values count before they are queued: a client cannot make the server hold 256 of them.
func TestLongRepliesThatWaitAreBounded(t *testing.T) {
	const limit = 1 << 20
	d := startDurable(t, server.Options{Limits: server.Limits{OutgoingBytes: limit}})
	p := testsupport.DialRaw(t, d.address, "p")
	value := strings.Repeat("v", 100<<10)
	requests := []testsupport.Exchange{{Words: []string{"SET", "k", value}, Want: "+OK\r\n"}}
	for range 100 {
		requests = append(requests, testsupport.Exchange{Words: []string{"GET", "k"}, Want: fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)})
	}
	release := d.journal.Hold()
	defer release()
	if err := p.SendRequests(0, nil, requests...); err != nil {
		t.Fatal(err)
	}
	var most int64
	testsupport.Eventually(t, "some replies wait", func() bool { most = max(most, d.server.Usage().OutgoingBytes); return most > limit/4 })
	other := testsupport.Connect(t, d.address, "other", nil)
	for range 20 {
		other.MustGet("another key", "")
		most = max(most, d.server.Usage().OutgoingBytes)
	}
	if most > limit/2 {
		t.Errorf("%d bytes wait for a client, above half of the limit of %d", most, limit)
	}
	release()
	if err := p.ReadReplies(0, requests...); err != nil {
		t.Fatal(err)
	}
}

// A value is a part of the memory of its key, so a reply that waits keeps both, though the key is gone.
func TestAReplyThatWaitsCountsForItsKey(t *testing.T) {
	const gets = 4
	d := startDurable(t, server.Options{})
	p := testsupport.DialRaw(t, d.address, "p")
	key := strings.Repeat("k", 100<<10)
	requests := []testsupport.Exchange{{Words: []string{"SET", key, ""}, Want: "+OK\r\n"}}
	for range gets {
		requests = append(requests, testsupport.Exchange{Words: []string{"GET", key}, Want: "$0\r\n\r\n"})
	}
	requests = append(requests, testsupport.Exchange{Words: []string{"DEL", key}, Want: ":1\r\n"})
	release := d.journal.Hold()
	defer release()
	if err := p.SendRequests(0, nil, requests...); err != nil {
		t.Fatal(err)
	}
	testsupport.Eventually(t, "the values that wait count with their keys", func() bool {
		return d.server.Usage().OutgoingBytes >= gets*int64(len(key))
	})
	release()
	if err := p.ReadReplies(0, requests...); err != nil {
		t.Fatal(err)
	}
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
}

func TestAReplyLargerThanTheLimitsLeavesAfterItsCommit(t *testing.T) {
	d := startDurable(t, server.Options{Limits: server.Limits{OutgoingBytes: 16 << 10, AllOutgoingBytes: 16 << 10}})
	p := testsupport.Connect(t, d.address, "p", nil)
	value := strings.Repeat("v", 100<<10)
	release := d.journal.Hold()
	defer release()
	set := p.SendRequest("SET", "k", value)
	d.journal.MustBeCommitting(t)
	get := p.Request("GET", "k")
	acknowledged := make(chan error, 1)
	go func() { _, err := p.Publish(get); acknowledged <- err }() // PUBACK waits for room
	await.Done(func() { time.Sleep(20 * time.Millisecond) })
	release()
	if err := await.Receive(acknowledged); err != nil {
		t.Fatal(err)
	}
	p.MustBeAnswered(set, "+OK\r\n")
	p.MustBeAnswered(get, fmt.Sprintf("$%d\r\n%s\r\n", len(value), value))
}

func TestAClientThatDoesNotReadItsRepliesIsDisconnectedAfterTheCommit(t *testing.T) {
	t.Parallel()
	d := startDurable(t, server.Options{})
	stuck := testsupport.DialRaw(t, d.address, "stuck").ShrinkReadBuffer()
	release := d.journal.Hold()
	defer release()
	value := strings.Repeat("v", 64<<10)
	go func() { // the server stops reading
		stuck.Write(testsupport.PacketOf(t, stuck.Request("SET", "k", value)))
		for range 10_000 {
			if _, err := stuck.Conn.Write(testsupport.PacketOf(t, stuck.Request("GET", "k"))); err != nil {
				return
			}
		}
	}()
	d.journal.MustBeCommitting(t)
	release()
	testsupport.Eventually(t, "the client is disconnected", func() bool { return d.server.Stats().SlowReaders == 1 })
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
	testsupport.Connect(t, d.address, "p", nil).MustGet("k", value)
}

func TestAClientThatLeavesWhileItsRepliesWaitLeavesNothingBehind(t *testing.T) {
	d := startDurable(t, server.Options{})
	release := d.journal.Hold()
	defer release()
	for range 50 {
		p := testsupport.DialRaw(t, d.address, "p")
		if err := p.SendRequests(0, nil, testsupport.Exchange{Words: []string{"SET", "k", "v"}}, testsupport.Exchange{Words: []string{"GET", "k"}}); err != nil {
			t.Fatal(err)
		}
		if packet, err := p.Receive(); err != nil || packet[0]>>4 != packets.PUBACK {
			t.Fatalf("%x, %v; want PUBACK", packet, err)
		}
		p.Reset()
	}
	next := testsupport.Connect(t, d.address, "p", nil) // does not wait for the commit
	if d.server.Usage().OutgoingBytes == 0 {
		t.Error("replies that wait for a commit count for nothing")
	}
	release()
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
	next.MustGet("k", "v")
	if len(next.Received) > 0 {
		t.Error("a connection got a reply to its predecessor")
	}
}
