package server

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
	"github.com/tenurelock/tenure/statestore"
)

// newTestServer returns what a connection needs of a server.
func newTestServer() *Server {
	limits := Limits{OutgoingBytes: 1 << 20, AllOutgoingBytes: 1 << 30, AllArrivingBytes: 1 << 30}
	return &Server{
		options:    Options{MaxPacketSize: 1 << 20, Limits: limits},
		quotas:     newQuotas(&limits),
		processors: fairqueue.New(1),
		writers:    fairqueue.New(1),
	}
}

// outboxesOf returns outboxes that call writes, one at a time.
func outboxesOf(writes ...func()) []*outbox {
	all, writers := sharedquota.New(1<<30), fairqueue.New(1)
	outboxes := make([]*outbox, len(writes))
	for i, write := range writes {
		outboxes[i] = newOutbox(1<<20, all, fairqueue.New(1), writers)
		outboxes[i].begin(func() {
			outboxes[i].takeMessages()
			write()
		})
	}
	return outboxes
}

func TestOutboxesWriteOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, written int
		var mu sync.Mutex
		writes := make([]func(), 50)
		for i := range writes {
			writes[i] = func() {
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Millisecond / 2)
				mu.Lock()
				now--
				written++
				mu.Unlock()
			}
		}
		outboxes := outboxesOf(writes...)
		for _, o := range outboxes {
			o.Wake()
		}
		for _, o := range outboxes[1:] {
			o.Wake() // before it was let write: once is enough
		}
		time.Sleep(time.Minute)
		for _, o := range outboxes {
			o.close()
		}
		if written != len(writes) || most != 1 {
			t.Errorf("%d of %d were written, up to %d at a time", written, len(writes), most)
		}
	})
}

func TestAnOutboxThatIsWokenWhileItWritesWritesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written atomic.Int32
		o := outboxesOf(func() {
			time.Sleep(time.Millisecond)
			written.Add(1)
		})[0]
		o.Wake()
		synctest.Wait()
		o.Wake()
		o.Wake()
		time.Sleep(time.Minute)
		o.close()
		if got := written.Load(); got != 2 {
			t.Errorf("it wrote %d times", got)
		}
	})
}

// The goroutine that reads a connection writes what its own requests cause, and another writes what comes
// from other clients. One of them writes each packet, in order, and never both at once.
func TestEachPacketIsWrittenByTheReaderOrByAnother(t *testing.T) {
	const clients, each = 4, 2000
	var writing atomic.Bool
	var written atomic.Int32
	latest := make(map[string]int)
	var o *outbox
	write := func(by writer) {
		packets := o.take(by)
		if len(packets) > 0 && writing.Swap(true) {
			t.Error("two goroutines write at once")
		}
		runtime.Gosched() // or they would hardly meet
		for _, p := range packets {
			if n, ok := p.(*sharedNotification); ok {
				number, _ := strconv.Atoi(n.Value)
				if number != latest[n.Key]+1 {
					t.Errorf("%s: %d is written after %d", n.Key, number, latest[n.Key])
				}
				latest[n.Key] = number
				written.Add(1)
			}
		}
		o.release(packets...)
		if len(packets) > 0 {
			writing.Store(false)
		}
	}
	o = outboxesOf(func() { write(startedWrites) })[0]
	var pushing sync.WaitGroup
	for client := range clients {
		pushing.Go(func() {
			for i := range each {
				for queued := false; !queued; { // the room of 1 MiB may be taken
					change := &statestore.Change{Key: strconv.Itoa(client), Value: strconv.Itoa(i + 1)}
					queued, _ = o.notify(&sharedNotification{Change: change})
				}
			}
		})
	}
	var pushed atomic.Bool
	var reading sync.WaitGroup
	reading.Go(func() {
		for !pushed.Load() {
			p := replyOf(replyOverhead)
			if p.to = o; o.reserveReply(readerWrites, p.bytes, 100) {
				p.arrive(statestore.Reply{})
				write(readerWrites)
				o.rest(readerWrites)
			}
		}
	})
	await.Done(pushing.Wait)
	pushed.Store(true)
	await.Done(reading.Wait)
	await.Until(func() bool { return written.Load() == clients*each })
	o.close()
	if o.used != 0 || o.replies != 0 {
		t.Errorf("%d bytes and %d replies stay", o.used, o.replies)
	}
}

// A thousand that wait for their clients cost others some tens of milliseconds, not ten each.
func TestWritesThatAreStuckHoldUpOthersForMomentsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 500
		release := make(chan struct{})
		var reached sync.WaitGroup
		var writes []func()
		for range each {
			reached.Add(1)
			writes = append(writes, func() { _, _ = await.Next(release) }, func() { reached.Done() })
		}
		began := time.Now()
		outboxes := outboxesOf(writes...)
		for _, o := range outboxes {
			o.Wake()
		}
		await.Done(reached.Wait)
		if took := time.Since(began); took > 300*time.Millisecond {
			t.Errorf("the last one that could write waited %v", took)
		}
		close(release)
		for _, o := range outboxes {
			o.close()
		}
	})
}

func TestAnOutboxThatIsClosedWhileItWaitsHoldsUpNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var written atomic.Bool
		outboxes := outboxesOf(
			func() { _, _ = await.Next(release) },
			func() { t.Error("it writes when it is closed") },
			func() { written.Store(true) },
		)
		for _, o := range outboxes {
			o.Wake()
		}
		outboxes[1].close()
		close(release)
		synctest.Wait()
		if !written.Load() {
			t.Error("the next one has not written")
		}
		for _, o := range []*outbox{outboxes[0], outboxes[2]} {
			o.close()
		}
	})
}

// The engine delivers with its lock held, so a wait for one client delays all. Closing a TLS
// connection sends an alert first, and waits up to five seconds for the client to read it.
func TestInvariant38DisconnectingASlowReaderDelaysNoOtherClient(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		socket := tls.Server(near, &tls.Config{
			Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
			SessionTicketsDisabled: true, // which the client would have to read
		})
		shaken := make(chan error)
		go func() { shaken <- tls.Client(far, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
		if err := socket.Handshake(); err != nil {
			t.Fatal(err)
		}
		if err := await.Receive(shaken); err != nil {
			t.Fatal(err)
		}
		s := newTestServer()
		conn := s.newConnection(socket)
		s.clients = map[string]*client{"slow": {conn: conn}}
		began := time.Now()
		for range 1<<20/int(envelope.NotificationCost(new(statestore.Change))) + 1 {
			s.deliver(statestore.Notification{Client: "slow", Change: new(statestore.Change)})
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		if !conn.closed.Load() {
			t.Error("the client is still connected")
		}
		if _, err := socket.Write([]byte("x")); err == nil {
			t.Error("its socket is still open")
		}
	})
}

// A client for which a notification does not fit is disconnected. Other clients must not be able
// to take the room that it needs.
func TestInvariant57ClientsThatDoNotReadLeaveRoomForTheNotificationsOfOthers(t *testing.T) {
	all := sharedquota.New(1 << 20)
	for range 1000 { // each takes as much as it gets, in pieces of all sizes
		deaf := newOutbox(64<<10, all, fairqueue.New(1), fairqueue.New(1))
		for size := 64 << 10; size > 0; size /= 2 {
			for queued := true; queued; {
				queued, _ = deaf.notify(&sharedNotification{Change: &statestore.Change{Value: string(make([]byte, size))}})
			}
		}
	}
	reads := newOutbox(64<<10, all, fairqueue.New(1), fairqueue.New(1))
	for range 10 {
		if queued, _ := reads.notify(&sharedNotification{Change: &statestore.Change{Key: "key", Value: string(make([]byte, 100))}}); !queued {
			t.Fatalf("a client that reads has no room for a notification; %d of %d bytes are taken", all.Used(), 1<<20)
		}
	}
	reads.close()
	if used := reads.used; used != 0 {
		t.Errorf("%d bytes stay", used)
	}
}

// What a client can send without pause is answered in turns: else 200 clients that send
// PINGREQ take the processors from all others.
func TestInvariant57AllThatIsAnsweredIsAnsweredInTurns(t *testing.T) {
	for _, test := range []struct {
		name           string
		version        byte
		packet, answer string
	}{
		{"PINGREQ", 5, "\xc0\x00", "\xd0\x00"},
		{"PINGREQ of 3.1.1", 4, "\xc0\x00", "\xd0\x00"},
		{"PUBREC", 5, "\x50\x02\x01\x02", "\x62\x03\x01\x02\x92"},
		{"PUBREL", 5, "\x62\x02\x01\x02", "\x70\x03\x01\x02\x92"},
		{"PUBREL of 3.1.1", 4, "\x62\x02\x01\x02", "\x70\x02\x01\x02"},
		{"PUBCOMP", 5, "\x70\x02\x01\x02", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := new(sink)
			conn := newTestServer().newConnection(out)
			conn.gate.Version, conn.gate.Begun = test.version, true
			if err := conn.check([]byte(test.packet)); err != nil || !conn.handle([]byte(test.packet)) {
				t.Fatalf("the connection ends: %v", err)
			}
			if out.Len() > 0 {
				t.Error("it is answered in the turn")
			}
			conn.pause()
			if got := out.String(); got != test.answer {
				t.Errorf("the answer is %x, want %x", got, test.answer)
			}
		})
	}
}

// sink is a connection that records what is written to it.
type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Read(p []byte) (int, error) { return s.Buffer.Read(p) }

func (s *sink) Write(p []byte) (int, error) { return s.Buffer.Write(p) }

func (s *sink) RemoteAddr() net.Addr { return nil }

func (s *sink) SetReadDeadline(time.Time) error { return nil }

func (s *sink) SetWriteDeadline(time.Time) error { return nil }

// A goroutine holds answers back in its turn. If it waited there for another goroutine that writes to
// a client that does not read, all other clients would wait for that client too.
func TestAnswersAreHeldBackWhileAWriteIsStuck(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	conn := newTestServer().newConnection(near)
	stuck := make(chan error, 1)
	go func() {
		stuck <- conn.send([]byte("no one reads this"))
	}()
	for conn.writing.TryLock() { // until the write is under way
		conn.writing.Unlock()
		time.Sleep(time.Millisecond)
	}
	held := make(chan int, 1)
	go func() { held <- conn.holdBack(func(held []byte) []byte { return append(held, "answer"...) }) }()
	if got := await.Receive(held); got != len("answer") {
		t.Errorf("%d bytes are held back", got)
	}
	select {
	case err := <-stuck:
		t.Errorf("the write was not stuck: %v", err)
	default:
	}
	conn.close()
	if err := await.Receive(stuck); err == nil {
		t.Error("the write reached a client that reads nothing")
	}
}

// replyOf returns a reply that takes some bytes of an outbox.
func replyOf(bytes int64) *pendingReply {
	p := new(Server).newReply(&request{Publish: new(mqtt.Publish)}, new(statestore.Command))
	p.bytes = bytes
	return p
}

func TestRoomForRepliesThatWaitForACommit(t *testing.T) {
	const limit = 100 << 10
	for _, test := range []struct {
		name  string
		other int64 // taken by other connections, of 1 MiB
		first []int64
		bytes int64
		want  bool
	}{
		{"nothing waits", 0, nil, 1000, true},
		{"nothing waits, larger than every limit", 1 << 20, nil, 2 << 20, true},
		{"as many as may wait", 0, []int64{1, 1, 1, 1}, 1, false},
		{"half of the limit", 0, []int64{limit / 4}, limit / 4, true},
		{"more than half of the limit", 0, []int64{limit / 4}, limit/4 + 1, false},
		{"others have taken all, with what is assured", 1 << 20, []int64{1000}, 1000, true},
		{"others have taken all", 1 << 20, []int64{1000}, 10_000, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := sharedquota.New(1 << 20)
			all.Add(test.other)
			o := newOutbox(limit, all, fairqueue.New(1), fairqueue.New(1))
			for _, bytes := range test.first {
				if !o.reserveReply(readerWrites, bytes, 4) {
					t.Fatal("no room for the first replies")
				}
			}
			if got := o.reserveReply(readerWrites, test.bytes, 4); got != test.want {
				t.Errorf("room for a reply of %d bytes: %t, want %t", test.bytes, got, test.want)
			}
			if !test.want {
				if o.release(replyOf(test.first[0])); len(o.room) != 1 {
					t.Error("nothing says that there is room again")
				}
				return
			}
			for _, bytes := range append(test.first, test.bytes) {
				o.release(replyOf(bytes))
			}
			if all.Used() != test.other || o.replies != 0 || o.used != 0 {
				t.Errorf("%d bytes are taken at the end, %+v", all.Used()-test.other, o)
			}
		})
	}
}

// The engine has the reply until its commit, whether or not the connection is there.
func TestRoomOfAReplyThatWaitsIsTakenUntilItsCommit(t *testing.T) {
	all := sharedquota.New(2 << 20)
	o := newOutbox(1<<20, all, fairqueue.New(1), fairqueue.New(1))
	var waiting []*pendingReply
	for range 3 {
		p := replyOf(replyOverhead)
		if p.to = o; !o.reserveReply(readerWrites, p.bytes, 10) {
			t.Fatal("no room")
		}
		waiting = append(waiting, p)
	}
	const value = "its length is not known before"
	waiting[0].arrive(statestore.Reply{Outcome: statestore.Found, Value: value})
	if !o.growReply(replyOverhead, int64(len(value))) {
		t.Fatal("no room for a value")
	}
	await.Done(o.close)
	if got := all.Used(); got != 2*replyOverhead {
		t.Errorf("%d bytes are taken after the end of the connection, want %d", got, 2*replyOverhead)
	}
	waiting[1].arrive(statestore.Reply{})
	waiting[2].arrive(statestore.Reply{})
	if got := all.Used(); got != 0 || len(o.queue) > 0 {
		t.Errorf("%d bytes are taken after the commit, and %d replies queued", got, len(o.queue))
	}
	if o.reserveReply(readerWrites, 1, 10) || o.awaitRoom(func() bool { return o.growReply(0, 1) }) {
		t.Error("a closed connection has room")
	}
}

// The parts that several clients share are encoded once; what one client gets is encoded in memory that
// is used again. Both are the same bytes.
func TestANotificationIsTheSameForOneClientAndForSeveral(t *testing.T) {
	s := &Server{notificationProperties: encodeNotificationProperties("identity")}
	for name, change := range map[string]*statestore.Change{
		"set":     {Key: "press-7/active", Value: "gateway-a:1", Version: hlc.Timestamp{Wall: 1, Node: "store"}},
		"deleted": {Key: "press-7/active", Deleted: true, Version: hlc.Timestamp{Wall: 2, Node: "store"}},
		"large":   {Key: strings.Repeat("k", 3*maxEncodedPublish), Value: strings.Repeat("v", 3*maxEncodedPublish)},
	} {
		t.Run(name, func(t *testing.T) {
			encode := func(n *sharedNotification) []byte {
				message := s.encodeNotification("gateway-a", n)
				defer message.free()
				packet, err := message.Append(nil)
				if err != nil {
					t.Fatal(err)
				}
				return packet
			}
			alone, several := &sharedNotification{Change: change}, &sharedNotification{Change: change}
			several.several.Store(new(sharedEncoding))
			if a, b, c := encode(alone), encode(several), encode(several); !bytes.Equal(a, b) || !bytes.Equal(b, c) {
				t.Errorf("one client gets % x\nand several get % x\nand then % x", a, b, c)
			}
		})
	}
}
