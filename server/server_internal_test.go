package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"math"
	"net"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
	"github.com/tenurelock/tenure/server/internal/wire"
	"github.com/tenurelock/tenure/statestore"
)

func TestALimitThatMakesNoSenseIsRefusedByItsName(t *testing.T) {
	wrong := map[string]Options{
		"MaxMemory":         {MaxMemory: -1},
		"MaxMemory ":        {MaxMemory: 32<<20 - 1},
		"MaxClients":        {MaxClients: -1},
		"MaxPacketSize":     {MaxPacketSize: 1023},
		"Store.DedupWindow": {Store: statestore.Options{DedupWindow: 1 << 16}},
	}
	for name, o := range wrong {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), "Options."+strings.TrimSpace(name)+" ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLimitsFollowFromMaxMemory(t *testing.T) {
	const mebibyte = 1 << 20
	for name, test := range map[string]struct {
		memory int64
		clients,
		keys int
		keyBytes, outgoing, watches, subscriptions int64
	}{
		"no limit":             {0, 10_000, 0, 0, 256 * mebibyte, 256 * mebibyte, 256 * mebibyte},
		"32 MiB":               {32 * mebibyte, 51, 8 << 10, 8 * mebibyte, 4 * mebibyte, 4 * mebibyte, 2 * mebibyte},
		"512 MiB":              {512 * mebibyte, 819, 128 << 10, 128 * mebibyte, 64 * mebibyte, 64 * mebibyte, 32 * mebibyte},
		"8 GiB":                {8 << 30, 10_000, 2 << 20, 2 << 30, 256 * mebibyte, 256 * mebibyte, 256 * mebibyte},
		"all that can be said": {math.MaxInt64, 10_000, math.MaxInt32, math.MaxInt64 / 4, 256 * mebibyte, 256 * mebibyte, 256 * mebibyte},
	} {
		o := Options{MaxMemory: test.memory}
		if err := o.complete(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for what, got := range map[string][2]int64{
			"MaxClients":              {int64(o.MaxClients), int64(test.clients)},
			"Store.MaxKeys":           {int64(o.Store.MaxKeys), int64(test.keys)},
			"Store.MaxBytes":          {o.Store.MaxBytes, test.keyBytes},
			"Outgoing":                {o.limits.Outgoing, min(8*mebibyte, test.outgoing)},
			"AllOutgoing":             {o.limits.AllOutgoing, test.outgoing},
			"Messages":                {o.limits.Messages, test.outgoing},
			"Arriving":                {o.limits.Arriving, max(4*mebibyte, test.subscriptions)},
			"Subscriptions":           {o.limits.Subscriptions, test.subscriptions},
			"Store.MaxAllWatchBytes":  {o.Store.MaxAllWatchBytes, test.watches},
			"Store.MaxWatchBytes":     {o.Store.MaxWatchBytes, min(4*mebibyte, test.watches)},
			"Store.MaxWatches":        {int64(o.Store.MaxWatches), 10_000},
			"Store.DedupWindow":       {int64(o.Store.DedupWindow), statestore.DefaultDedupWindow},
			"MaxPacketSize unchanged": {int64(o.MaxPacketSize), mebibyte},
		} {
			if got[0] != got[1] {
				t.Errorf("%s: %s is %d, want %d", name, what, got[0], got[1])
			}
		}
	}
}

func TestAnExplicitLimitIsNotChanged(t *testing.T) {
	set := Options{
		MaxMemory:  64 << 20,
		MaxClients: 7,
		Store: statestore.Options{
			MaxKeys: 8, MaxBytes: 1 << 40, MaxWatches: 9, MaxWatchBytes: 10, MaxAllWatchBytes: 11, DedupWindow: 12,
		},
	}
	got := set
	if err := got.complete(); err != nil {
		t.Fatal(err)
	}
	if got.MaxClients != set.MaxClients || !reflect.DeepEqual(got.Store, set.Store) {
		t.Errorf("of\n%+v\nthis was made:\n%+v", set, got)
	}
}

func TestALargeDedupWindowLeavesSpaceForAClient(t *testing.T) {
	o := Options{MaxMemory: 32 << 20, Store: statestore.Options{DedupWindow: 1<<16 - 1}}
	if err := o.complete(); err != nil || o.MaxClients != 1 {
		t.Errorf("%d clients, %v", o.MaxClients, err)
	}
}

// The next connection may not be admitted, so it has no claim until it has made one.
func TestAClaimDoesNotPassToTheConnectionThatWaits(t *testing.T) {
	s := newTestServer()
	release, err := s.lockID(t.Context(), "p")
	if err != nil || !s.ClaimClientID("p") || !s.collides("70") {
		t.Fatalf("the client id is not free, or its claim not seen: %v", err)
	}
	next := make(chan func())
	go func() {
		release, _ := s.lockID(t.Context(), "p")
		next <- release
	}()
	await.Until(func() bool { return s.Waits("p") })
	release()
	release = await.Receive(next)
	if s.collides("70") {
		t.Error("the claim of a connection outlives it")
	}
	if release(); len(s.ids) != 0 {
		t.Error("the client id is taken by no connection")
	}
}

// A thousand connections that end at once have a thousand Wills, and each may match very many subscriptions.
func TestInvariant57WillsArePublishedInTurns(t *testing.T) {
	ends := func(conn *connection) {
		conn.why.Store(endLost)
		_ = conn.endWill()
	}
	for _, test := range []struct {
		name    string
		publish func(conn *connection)
	}{
		{"when the connection ends", ends},
		{"the reply to a request", func(conn *connection) {
			conn.ordinaryWill = nil
			refused := conn.server.setWillRequest(conn, &mqtt.Publish{
				Topic: []byte(protocol.InvokeTopic), QoS: 1, ResponseTopic: []byte("t"), CorrelationData: []byte("c"),
				Payload: []byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
			})
			if refused != nil {
				t.Error(refused)
			}
			ends(conn)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(Options{Listener: deafListener{}})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				s.processors = fairqueue.New(1)
				const subscriptions, step = 200, fairqueue.Budget / 10
				offered := 0
				for i := range subscriptions {
					session := s.messages.NewSession(fmt.Sprint(i), func(string) bool { return true })
					if !session.Subscribe("t", pubsub.Subscription{QoS: 1}) {
						t.Fatal("it is refused")
					}
					session.Attach(pubsub.Receiver{Wake: func() {
						offered++
						time.Sleep(step)
					}})
				}
				conn := s.newConnection(new(sink))
				conn.identity = access.Identity{Client: "p"}
				if refused := s.admitWill(conn, &mqtt.Publish{Topic: []byte("t"), QoS: 1, Payload: []byte("gone")}); refused != nil {
					t.Fatal(refused)
				}
				s.enter(conn, true)

				other := s.processors.NewPlace()
				other.Begin()
				over := make(chan struct{})
				go func() {
					defer close(over)
					test.publish(conn)
				}()
				synctest.Wait()
				if offered > 0 {
					t.Error("it does not wait for a turn")
				}
				other.End()
				synctest.Wait()
				other.Begin()
				if offered == 0 || offered == subscriptions {
					t.Errorf("another has its turn when %d of %d clients were offered the Will", offered, subscriptions)
				}
				other.End()
				await.Receive(over)
				await.Done(s.tasks.Wait) // a goroutine publishes the reply
				if offered != subscriptions {
					t.Errorf("%d of %d clients were offered the Will", offered, subscriptions)
				}
				began := time.Now()
				if other.Begin(); time.Since(began) > 0 {
					t.Error("its turn does not end")
				}
				other.End()
			})
		})
	}
}

// deafListener accepts nothing.
type deafListener struct{}

func (deafListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (deafListener) Close() error              { return nil }
func (deafListener) Addr() net.Addr            { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// newTestServer returns what a connection needs of a server.
func newTestServer() *Server {
	return &Server{
		options:    Options{MaxPacketSize: 1 << 20, MaxClients: 10},
		limits:     limits{Outgoing: 1 << 20},
		outgoing:   sharedquota.New(1 << 30),
		arriving:   sharedquota.NewUsers(1 << 30),
		processors: fairqueue.New(1),
		writers:    fairqueue.New(1),
		clients:    make(map[string]*client),
		ids:        make(map[string]*idLock),
		stats:      Stats{Refused: make(map[RefusalReason]uint64)},
	}
}

// outboxOf returns an outbox of a server with space for so many bytes. Without write nothing is written.
func outboxOf(limit int64, all *sharedquota.Quota, write func(o *outbox)) (o *outbox) {
	s := newTestServer()
	s.limits.Outgoing, s.outgoing = limit, all
	o = s.newOutbox(func() { write(o) })
	o.writing = write == nil
	return o
}

func TestAnOutboxThatIsWokenWhileItWritesWritesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written atomic.Int32
		o := outboxOf(1<<20, sharedquota.New(1<<30), func(o *outbox) {
			o.takeMessages()
			time.Sleep(time.Millisecond)
			written.Add(1)
		})
		o.wake()
		synctest.Wait()
		o.wake()
		o.wake()
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
	write := func(o *outbox) {
		if writing.Swap(true) {
			t.Error("two goroutines write at once")
		}
		defer writing.Store(false)
		for {
			p, ok, _ := o.next()
			if !ok {
				return
			}
			runtime.Gosched() // or they would hardly meet
			if n := p.change; n != nil {
				number, _ := strconv.Atoi(n.Value)
				if number != latest[n.Key]+1 {
					t.Errorf("%s: %d is written after %d", n.Key, number, latest[n.Key])
				}
				latest[n.Key] = number
				written.Add(1)
			}
		}
	}
	o := outboxOf(1<<20, sharedquota.New(1<<30), write)
	var pushing sync.WaitGroup
	for client := range clients {
		pushing.Go(func() {
			for i := range each {
				for queued := false; !queued; { // the space of 1 MiB may be taken
					change := &statestore.Change{Key: strconv.Itoa(client), Value: strconv.Itoa(i + 1)}
					queued, _ = o.notify(packet{change: change})
				}
			}
		})
	}
	var pushed atomic.Bool
	var reading sync.WaitGroup
	reading.Go(func() {
		for !pushed.Load() {
			p := replyOf(o, replyOverhead)
			_, writes, ok := o.reserveReply(p.bytes, 100, true)
			if !ok {
				t.Error("no space")
				return
			}
			p.arrive(statestore.Reply{})
			if writes {
				write(o)
				o.rest()
			}
		}
	})
	await.Done(pushing.Wait)
	pushed.Store(true)
	await.Done(reading.Wait)
	await.Until(func() bool { return written.Load() == clients*each })
	o.close()
	if o.used != 0 || o.replies != 0 || len(o.queue) != 0 {
		t.Errorf("%d bytes and %d replies stay", o.used, o.replies)
	}
}

// The engine delivers with its lock held, so a wait for one client delays all. Closing a TLS
// connection sends an alert first, and waits up to five seconds for the client to read it.
func TestInvariant38DisconnectingASlowReaderDelaysNoOtherClient(t *testing.T) {
	authority := certificates.New(t, "authority")
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		socket := tls.Server(near, &tls.Config{
			Certificates:           []tls.Certificate{authority.Issue(pkix.Name{CommonName: "localhost"})},
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
		s.clients["slow"] = &client{conn: conn}
		began := time.Now()
		for n := 0; n < 1<<21 && !conn.isClosed(); n += int(envelope.NotificationCost(new(statestore.Change))) {
			s.deliver(statestore.Notification{Client: "slow", Change: new(statestore.Change)})
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		if !conn.isClosed() {
			t.Error("the client is still connected")
		}
		if _, err := socket.Write([]byte("x")); err == nil {
			t.Error("its socket is still open")
		}
	})
}

// A client for which a notification does not fit is disconnected. Other clients must not be able
// to take the space that it needs.
func TestInvariant57ClientsThatDoNotReadLeaveSpaceForTheNotificationsOfOthers(t *testing.T) {
	all := sharedquota.New(1 << 20)
	for range 1000 { // each takes as much as it gets, in pieces of all sizes
		deaf := outboxOf(64<<10, all, nil)
		for size := 64 << 10; size > 0; size /= 2 {
			for queued := true; queued; {
				queued, _ = deaf.notify(packet{change: &statestore.Change{Value: string(make([]byte, size))}})
			}
		}
	}
	reads := outboxOf(64<<10, all, nil)
	for range 10 {
		if queued, _ := reads.notify(packet{change: &statestore.Change{Key: "key", Value: string(make([]byte, 100))}}); !queued {
			t.Fatalf("a client that reads has no space for a notification; %d of %d bytes are taken", all.Used(), 1<<20)
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
	out := new(sink)
	conn := newTestServer().newConnection(out)
	conn.gate.Version, conn.gate.Begun = 5, true
	ping := []byte{0xc0, 0}
	if err := conn.check(ping); err != nil || !conn.dispatch(ping) {
		t.Fatalf("the connection ends: %v", err)
	}
	if out.Len() > 0 {
		t.Error("it is answered in the turn")
	}
	if conn.pause(); out.String() != "\xd0\x00" {
		t.Errorf("the answer is %x", out.String())
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
	await.Done(func() { conn.holdBack(func(held []byte) []byte { return append(held, "answer"...) }) })
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
func replyOf(o *outbox, bytes int64) *pendingReply {
	c := &connection{outbox: o, server: new(Server)}
	p := c.newReply(&request{Publish: new(mqtt.Publish)}, "")
	p.bytes = bytes
	return p
}

func TestSpaceForRepliesThatWaitForACommit(t *testing.T) {
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
			o := outboxOf(limit, all, nil)
			for _, bytes := range test.first {
				if _, _, ok := o.reserveReply(bytes, 4, false); !ok {
					t.Fatal("no space for the first replies")
				}
			}
			_, _, got := o.reserveReply(test.bytes, 4, false)
			if got != test.want {
				t.Errorf("space for a reply of %d bytes: %t, want %t", test.bytes, got, test.want)
			}
			granted := make(chan bool, 1)
			if !test.want {
				go func() {
					_, _, ok := o.reserveReply(test.bytes, 4, true)
					granted <- ok
				}()
			}
			for _, bytes := range test.first {
				o.release(replyOf(o, bytes))
			}
			if !test.want && !await.Receive(granted) {
				t.Error("there is no space after the others")
			}
			o.release(replyOf(o, test.bytes))
			if all.Used() != test.other || o.replies != 0 || o.used != 0 {
				t.Errorf("%d bytes are taken at the end, %+v", all.Used()-test.other, o)
			}
		})
	}
}

// The engine has the reply until its commit, whether or not the connection is there.
func TestSpaceOfAReplyThatWaitsIsTakenUntilItsCommit(t *testing.T) {
	all := sharedquota.New(2 << 20)
	o := outboxOf(1<<20, all, nil)
	var waiting []*pendingReply
	for range 3 {
		p := replyOf(o, replyOverhead)
		if _, _, ok := o.reserveReply(p.bytes, 10, false); !ok {
			t.Fatal("no space")
		}
		waiting = append(waiting, p)
	}
	const value = "its length is not known before"
	waiting[0].arrive(statestore.Reply{Outcome: statestore.Found, Value: value})
	o.overdraw(int64(len(value)))
	await.Done(o.close)
	if got := all.Used(); got != 2*replyOverhead {
		t.Errorf("%d bytes are taken after the end of the connection, want %d", got, 2*replyOverhead)
	}
	waiting[1].arrive(statestore.Reply{})
	waiting[2].arrive(statestore.Reply{})
	if got := all.Used(); got != 0 || len(o.queue) > 0 {
		t.Errorf("%d bytes are taken after the commit, and %d replies queued", got, len(o.queue))
	}
	for _, wait := range []bool{false, true} {
		if _, _, ok := o.reserveReply(1, 10, wait); ok {
			t.Error("a closed connection has space")
		}
	}
}

func TestAKeepAliveIsAtMostFiveMinutes(t *testing.T) {
	for asked, want := range map[uint16]time.Duration{0: 60, 1: 1, 300: 300, 301: 300, 65535: 300} {
		s := newTestServer()
		conn := s.newConnection(new(sink))
		announced := s.announce(conn, &wire.Connect{KeepAlive: asked}).ServerKeepAlive
		if conn.silenceAllowed != want*time.Second*3/2 || (announced == nil) != (asked == uint16(want)) {
			t.Errorf("%d s: silent for %v, announced %v", asked, conn.silenceAllowed, announced)
		}
	}
}

// TLS answers new keys of a client of its own accord, long after the last packet, and perhaps to a client that
// does not read.
func TestAWriteOfTLSItselfHasADeadlineOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		conn := newTestServer().newConnection(near)
		socket := &encryptedSocket{Socket: unauthenticated.Socket{Conn: near}, conn: conn}
		_ = near.SetWriteDeadline(time.Now().Add(-time.Hour)) // of the last packet
		go func() { _, _ = far.Read(make([]byte, 1)) }()
		if _, err := socket.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		began := time.Now()
		if _, err := socket.Write([]byte("not read")); err == nil || time.Since(began) != writeTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
