package server

import (
	"bytes"
	"context"
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
	limits := reflect.TypeFor[Limits]()
	for field := range limits.NumField() {
		var o Options
		reflect.ValueOf(&o.Limits).Elem().Field(field).SetInt(-1)
		wrong["Limits."+limits.Field(field).Name] = o
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
		keyBytes, outgoing, allOutgoing, session, allSessions, watches, subscriptions int64
	}{
		"no limit": {0, 10_000, 0, 0, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte, 256 * mebibyte, 256 * mebibyte},
		"32 MiB": {32 * mebibyte, 51, 8 << 10, 8 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte,
			2 * mebibyte},
		"64 MiB": {64 * mebibyte, 102, 16 << 10, 16 * mebibyte, 8 * mebibyte, 8 * mebibyte, 4 * mebibyte, 8 * mebibyte, 8 * mebibyte,
			4 * mebibyte},
		"512 MiB": {512 * mebibyte, 819, 128 << 10, 128 * mebibyte, 8 * mebibyte, 64 * mebibyte, 4 * mebibyte, 64 * mebibyte, 64 * mebibyte,
			32 * mebibyte},
		"8 GiB": {8 << 30, 10_000, 2 << 20, 2 << 30, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte, 256 * mebibyte,
			256 * mebibyte},
		"all that can be said": {math.MaxInt64, 10_000, math.MaxInt32, math.MaxInt64 / 4, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte,
			256 * mebibyte, 256 * mebibyte},
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
			"OutgoingBytes":           {o.Limits.OutgoingBytes, test.outgoing},
			"AllOutgoingBytes":        {o.Limits.AllOutgoingBytes, test.allOutgoing},
			"SessionBytes":            {o.Limits.SessionBytes, test.session},
			"AllSessionBytes":         {o.Limits.AllSessionBytes, test.allSessions},
			"SessionMessages":         {int64(o.Limits.SessionMessages), 10_000},
			"Subscriptions":           {int64(o.Limits.Subscriptions), 1000},
			"AllSubscriptionBytes":    {o.Limits.AllSubscriptionBytes, test.subscriptions},
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
	limits := reflect.ValueOf(&set.Limits).Elem()
	for field := range limits.NumField() {
		limits.Field(field).SetInt(int64(100 + field))
	}
	got := set
	if err := got.complete(); err != nil {
		t.Fatal(err)
	}
	if got.Limits != set.Limits || got.MaxClients != set.MaxClients || !reflect.DeepEqual(got.Store, set.Store) {
		t.Errorf("of\n%+v\nthis was made:\n%+v", set, got)
	}
}

func TestALargeDedupWindowLeavesRoomForAClient(t *testing.T) {
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

func TestOneConnectionAtATimeHasAClientID(t *testing.T) {
	s := newTestServer()
	var inside, got, gaveUp atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 500 {
				// Some give up when their turn is about to come.
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration((i+j)%5)*10*time.Microsecond)
				release, err := s.lockID(ctx, "p")
				cancel()
				if err != nil {
					gaveUp.Add(1)
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two connections have taken one client id")
				}
				got.Add(1)
				time.Sleep(time.Microsecond)
				inside.Add(-1)
				release()
			}
		})
	}
	await.Done(all.Wait)
	if got.Load() == 0 || gaveUp.Load() == 0 {
		t.Errorf("%d took it, %d gave up: nothing is tested", got.Load(), gaveUp.Load())
	}
	if len(s.ids) != 0 {
		t.Error("the client id is taken by no connection")
	}
}

// A thousand connections that end at once have a thousand Wills, and each may match very many subscriptions.
func TestInvariant57WillsArePublishedInTurns(t *testing.T) {
	ends := func(conn *connection) {
		conn.why.Store(endLost)
		_ = conn.endWill()
	}
	// away returns what is done to the client when it has left, with its Will delayed.
	away := func(later time.Duration, do func(s *Server, now time.Time)) func(*connection) {
		return func(conn *connection) {
			conn.gate.SessionExpiry, conn.ordinaryWill.delay = 60, time.Second
			ends(conn)
			conn.server.endConnection(conn)
			do(conn.server, time.Now().Add(later))
		}
	}
	for _, test := range []struct {
		name    string
		publish func(conn *connection)
	}{
		{"when the connection ends", ends},
		{"when its delay is over", away(2*time.Second, (*Server).sweep)},
		{"when its session expires", away(time.Hour, (*Server).sweep)},
		{"when its client begins a new session", away(0, func(s *Server, _ time.Time) {
			next := s.newConnection(new(sink))
			next.identity.Client = "p"
			s.enter(next, true)
		})},
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
					session := s.messages.Session(fmt.Sprint(i))
					if err := session.Subscribe(pubsub.Subscription{Filter: "t", QoS: 1}); err != nil {
						t.Fatal(err)
					}
					session.Attach(pubsub.Receiver{Link: freeLink{}, MQTT5: true, ReceiveMaximum: 1, MayRead: func(string) bool {
						offered++
						time.Sleep(step)
						return true
					}})
				}
				conn := s.newConnection(new(sink))
				conn.identity = access.Identity{Client: "p"}
				conn.gate.Version = mqtt.Version5
				setOrdinaryWill(conn, &mqtt.Publish{Topic: []byte("t"), QoS: 1, Payload: []byte("gone")})
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

// freeLink is a link with room for everything, which sends nothing.
type freeLink struct{}

func (freeLink) Wake() {}

// newTestServer returns what a connection needs of a server.
func newTestServer() *Server {
	return &Server{
		options:    Options{MaxPacketSize: 1 << 20, MaxClients: 10, Limits: Limits{OutgoingBytes: 1 << 20}},
		outgoing:   sharedquota.New(1 << 30),
		arriving:   sharedquota.NewUsers(1 << 30),
		processors: fairqueue.New(1),
		writers:    fairqueue.New(1),
		clients:    make(map[string]*client),
		ids:        make(map[string]*idLock),
		stats:      Stats{Refused: make(map[RefusalReason]uint64)},
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
			if n := p.change; n != nil {
				number, _ := strconv.Atoi(n.Value)
				if number != latest[n.Key]+1 {
					t.Errorf("%s: %d is written after %d", n.Key, number, latest[n.Key])
				}
				latest[n.Key] = number
				written.Add(1)
			}
			o.release(p)
		}
		if len(packets) > 0 {
			o.reuse(packets)
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
			if o.reserveReply(p.bytes, 100) {
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
		for range 1<<20/int(envelope.NotificationCost(new(statestore.Change))) + 1 {
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
// to take the room that it needs.
func TestInvariant57ClientsThatDoNotReadLeaveRoomForTheNotificationsOfOthers(t *testing.T) {
	all := sharedquota.New(1 << 20)
	for range 1000 { // each takes as much as it gets, in pieces of all sizes
		deaf := newOutbox(64<<10, all, fairqueue.New(1), fairqueue.New(1))
		for size := 64 << 10; size > 0; size /= 2 {
			for queued := true; queued; {
				queued, _ = deaf.notify(packet{change: &statestore.Change{Value: string(make([]byte, size))}})
			}
		}
	}
	reads := newOutbox(64<<10, all, fairqueue.New(1), fairqueue.New(1))
	for range 10 {
		if queued, _ := reads.notify(packet{change: &statestore.Change{Key: "key", Value: string(make([]byte, 100))}}); !queued {
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
	} {
		t.Run(test.name, func(t *testing.T) {
			out := new(sink)
			conn := newTestServer().newConnection(out)
			conn.gate.Version, conn.gate.Begun = test.version, true
			if err := conn.check([]byte(test.packet)); err != nil || !conn.dispatch([]byte(test.packet)) {
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
func replyOf(o *outbox, bytes int64) *pendingReply {
	c := &connection{outbox: o, server: new(Server)}
	p := c.newReply(&request{Publish: new(mqtt.Publish)}, "")
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
				if !o.reserveReply(bytes, 4) {
					t.Fatal("no room for the first replies")
				}
			}
			if got := o.reserveReply(test.bytes, 4); got != test.want {
				t.Errorf("room for a reply of %d bytes: %t, want %t", test.bytes, got, test.want)
			}
			if !test.want {
				if o.release(packet{reply: replyOf(o, test.first[0])}); len(o.room) != 1 {
					t.Error("nothing says that there is room again")
				}
				return
			}
			for _, bytes := range append(test.first, test.bytes) {
				o.release(packet{reply: replyOf(o, bytes)})
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
		p := replyOf(o, replyOverhead)
		if !o.reserveReply(p.bytes, 10) {
			t.Fatal("no room")
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
	if o.reserveReply(1, 10) || o.awaitReply(1, 10) {
		t.Error("a closed connection has room")
	}
}

func TestAKeepAliveIsAtMostFiveMinutes(t *testing.T) {
	for asked, want := range map[uint16][2]uint16{ // of MQTT 5, and 3.1.1, whose CONNACK cannot tell
		0: {60, 60}, 1: {1, 1}, 300: {300, 300}, 301: {300, 301}, 65535: {300, 65535},
	} {
		if got := [2]uint16{limitKeepAlive(asked, mqtt.Version5), limitKeepAlive(asked, mqtt.Version5-1)}; got != want {
			t.Errorf("%d s become %v, want %v", asked, got, want)
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
