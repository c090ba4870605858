package server_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// durable is a server with a journal that a test can hold up, crash and restart.
type durable struct {
	t       *testing.T
	journal *transporttest.Journal
	options server.Options
	stays   bool // at its address
	server  *server.Server
	address string
	cancel  context.CancelFunc
	served  chan error // receives the error of Serve
}

func startDurable(t *testing.T, options server.Options) *durable {
	t.Helper()
	d := &durable{t: t, journal: new(transporttest.Journal), options: options}
	d.start()
	t.Cleanup(func() { d.stop() })
	return d
}

func (d *durable) start() {
	d.t.Helper()
	options := d.options
	options.Addr, options.Journal = "127.0.0.1:0", d.journal.Open()
	if d.stays && d.address != "" {
		options.Addr = d.address
	}
	s, err := server.New(options)
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.server, d.address, d.cancel, d.served = s, s.Addr().String(), cancel, make(chan error, 1)
	go func() { d.served <- s.Serve(ctx) }()
}

// stop stops the server and returns the error of Serve.
func (d *durable) stop() error {
	if d.cancel == nil {
		return nil
	}
	d.cancel()
	d.cancel = nil
	return await.Receive(d.served)
}

func (d *durable) restart() {
	d.t.Helper()
	if err := d.stop(); err != nil {
		d.t.Errorf("Serve: %v", err)
	}
	d.start()
}

// crash ends the server; what is not committed yet is lost. Then it starts another one.
func (d *durable) crash() {
	d.t.Helper()
	d.journal.Fail(0)
	if err := d.stop(); err != nil && !strings.Contains(err.Error(), "the journal failed") {
		d.t.Errorf("Serve: %v", err)
	}
	d.start()
}

func TestInvariant33RepliesAndNotificationsLeaveAfterTheCommit(t *testing.T) {
	d := startDurable(t, server.Options{})
	writer := testsupport.Connect(t, d.address, "writer", nil)
	reader := testsupport.Connect(t, d.address, "reader", nil)
	watcher := testsupport.WatchKey(t, d.address, "k")
	listener := testsupport.Connect(t, d.address, "listener", nil)
	listener.Subscribe("replies/of/writer")
	writer.Do("SET", "lease", "writer:1", "NEX", "PX", "600000")

	release := d.journal.Hold()
	defer release()
	set := writer.SendRequest("SET", "k", "v") // PUBACK does not wait
	testsupport.Eventually(t, "a commit begins", d.journal.Committing)
	open := writer.Request("SET", "k", "w") // of the next batch
	open.Properties.ResponseTopic = "replies/of/writer"
	writer.SendMessage(open)
	get := reader.SendRequest("GET", "k")
	for range 3 {
		if got := writer.Do("SET", "lease", "writer:1", "NEX", "PX", "600000"); got != "+OK\r\n" {
			t.Errorf("a renewal is answered %q during a commit", got)
		}
		reader.MustGet("lease", "writer:1")
	}
	watcher.MustBeSilent()
	listener.MustBeSilent()

	release()
	writer.MustBeAnswered(set, "+OK\r\n")
	reader.MustBeAnswered(get, "$1\r\nw\r\n")
	listener.MustBeAnswered(open, "+OK\r\n")
	watcher.MustBeNotified("SET", "VALUE", "v")
	watcher.MustBeNotified("SET", "VALUE", "w")
	testsupport.Eventually(t, "nothing waits", func() bool { return d.server.Usage().OutgoingBytes == 0 })
	if got := d.server.Stats().Requests; got < 10 {
		t.Errorf("%d requests are counted", got)
	}
}

func TestInvariant59RenewalsCauseNoCommit(t *testing.T) {
	d := startDurable(t, server.Options{})
	p := testsupport.Connect(t, d.address, "p", nil)
	p.Do("SET", "lease", "p:1", "NEX", "PX", "600000")
	before := d.journal.Commits()
	for range 1000 {
		if got := p.Do("SET", "lease", "p:1", "NEX", "PX", "600000"); got != "+OK\r\n" {
			t.Fatal(got)
		}
	}
	// The bound of the versions moves every twenty seconds.
	if commits := d.journal.Commits() - before; commits > 5 {
		t.Errorf("%d commits for 1,000 renewals", commits)
	}
	if p.Do("SET", "lease", "p:2"); d.journal.Commits() == before {
		t.Error("another value caused no commit: this test counts nothing")
	}
}

func TestInvariant34AFailedCommitAnswersNothingAndEndsServe(t *testing.T) {
	d := startDurable(t, server.Options{})
	p := testsupport.Connect(t, d.address, "p", nil)
	watcher := testsupport.WatchKey(t, d.address, "k")
	p.Do("SET", "before", "v")
	release := d.journal.Hold()
	p.SendRequest("SET", "k", "v")
	p.SendRequest("GET", "k")
	testsupport.Eventually(t, "a commit begins", d.journal.Committing)
	p.SendRequest("SET", "k", "w")
	d.journal.Fail(0)
	release()

	err := await.Receive(d.served)
	d.cancel()
	d.cancel = nil
	if err == nil || !strings.Contains(err.Error(), "the journal failed") || !strings.Contains(err.Error(), "the test made the commit fail") {
		t.Errorf("Serve: %v; want the cause", err)
	}
	for _, client := range []*testsupport.PahoClient{p, watcher} {
		client.MustBeDisconnected(packets.DisconnectServerShuttingDown)
		if len(client.Received)+len(client.Notified) > 0 {
			t.Errorf("%s got something that is not durable", client.ID)
		}
	}
	d.start()
	p = testsupport.Connect(t, d.address, "p", nil)
	p.MustGet("k", "")
	p.MustGet("before", "v")
}

// Clients with large values fill what may wait for a commit while the disk is slow. Renewals need no
// commit, so they are answered meanwhile.
func TestInvariant59RenewalsAreAnsweredWhileTooMuchWaitsForACommit(t *testing.T) {
	d := startDurable(t, server.Options{})
	holder := testsupport.Connect(t, d.address, "holder", nil)
	holder.Do("SET", "lease", "holder:1", "NEX", "PX", "600000")
	value := strings.Repeat("v", 900<<10)
	release := d.journal.Hold()
	defer release()
	var writers []*testsupport.RawClient
	for i := range 20 {
		w := testsupport.DialRaw(t, d.address, fmt.Sprintf("writer%d", i))
		if err := w.SendRequests(0, nil, testsupport.Exchange{Words: []string{"SET", fmt.Sprint(i), value}}); err != nil {
			t.Fatal(err)
		}
		writers = append(writers, w)
	}
	testsupport.Eventually(t, "too much waits for a commit", func() bool { return !d.server.HasCapacity() })
	for range 10 {
		if got := holder.Do("SET", "lease", "holder:1", "NEX", "PX", "600000"); got != "+OK\r\n" {
			t.Fatalf("a renewal is answered %q", got)
		}
		holder.MustGet("lease", "holder:1")
	}
	if d.server.HasCapacity() {
		t.Error("a commit has made space: this test shows nothing")
	}
	release()
	for _, w := range writers {
		if err := w.ReadReplies(0, testsupport.Exchange{Want: "+OK\r\n"}); err != nil {
			t.Error(err)
		}
	}
}

// All notifications of a batch leave at once. The server must not take a client for slow that could
// not read them yet.
// A watcher that gets no processor reads too slowly, which is no fault of the server: one of three commits must do.
func TestAWatcherThatReadsGetsAllChangesOfALongCommit(t *testing.T) {
	var err error
	for range 3 {
		if err = watchLongCommit(t); err == nil {
			return
		}
	}
	t.Error(err)
}

func watchLongCommit(t *testing.T) error {
	t.Helper()
	const writers = 60
	each := 220
	if testsupport.UnderRace {
		each = 100 // the race detector slows down writing more than queueing
	}
	d := startDurable(t, server.Options{}.With(server.Limits{Outgoing: 1 << 20, AllOutgoing: 32 << 20}))
	watcher := testsupport.DialRaw(t, d.address, "watcher")
	watcher.MustDo(t, 0, "+OK\r\n", "KEYNOTIFY", "k")
	requests := make([]testsupport.Exchange, each)
	for i := range requests {
		requests[i] = testsupport.Exchange{Words: []string{"SET", "k", "v"}, Want: "+OK\r\n"}
	}
	release := d.journal.Hold()
	defer release()
	all := make([]*testsupport.RawClient, writers)
	for i := range all {
		all[i] = testsupport.DialRaw(t, d.address, fmt.Sprintf("c%d", i))
		if err := all[i].SendRequests(0, nil, requests...); err != nil {
			t.Fatal(err)
		}
	}
	testsupport.Eventually(t, "all requests wait", func() bool { return d.server.Usage().OutgoingBytes > int64(writers*each*512) })
	notified := make(chan error, 1)
	go func() {
		watcher.ExtendDeadline()
		for range writers * each {
			if _, err := watcher.Receive(); err != nil {
				notified <- err
				return
			}
		}
		notified <- nil
	}()
	release()
	if err := await.Receive(notified); err != nil {
		return fmt.Errorf("the watcher: %w; %+v", err, d.server.Stats())
	}
	for _, c := range all {
		c.ExtendDeadline()
		if err := c.ReadReplies(0, requests...); err != nil {
			t.Fatal(err)
		}
	}
	return nil
}

// A user with many connections fills what may wait for a commit. The change of another user goes in
// with the first space that a commit makes, and no more goes in than there is space for.
func TestOneUserDoesNotKeepTheChangesOfOthersFromASlowJournal(t *testing.T) {
	t.Parallel()
	const connections, value = 600, 120 << 10 // more than eight batches
	steps := &steppedJournal{Journal: new(transporttest.Journal).Open(), step: make(chan struct{}, 6)}
	address, s := testsupport.StartServer(t, server.Options{Authenticator: testsupport.Rules{}, Journal: steps})
	t.Cleanup(func() { close(steps.step) }) // before the server stops, which commits
	dial := func(client, user string) *testsupport.RawClient {
		t.Helper()
		c := testsupport.ConnectPacket{ID: client, User: user}.Connect(t, address)
		c.Subscribe(c.ReplyTo)
		return c
	}
	victim := dial("victim", "alice")
	replies := int64(0) // what the replies count for
	for i := range connections {
		c := dial(fmt.Sprint("flood-", i), "mallory")
		replies += int64(512 + len(c.ReplyTo) + len(c.ID) + len("/00000000"))
		if err := c.SendRequests(0, nil, testsupport.Exchange{Words: []string{"SET", c.ID, strings.Repeat("v", value)}}); err != nil {
			t.Fatal(err)
		}
	}
	testsupport.Eventually(t, "all requests of one user have come", func() bool { return s.Usage().OutgoingBytes == replies })
	before := s.WaitingForCapacity()
	change := testsupport.Exchange{Words: []string{"SET", "k", strings.Repeat("w", 4<<10)}, Want: "+OK\r\n"}
	if err := victim.SendRequests(0, nil, change); err != nil {
		t.Fatal(err)
	}
	testsupport.Eventually(t, "the request of another waits", func() bool { return s.WaitingForCapacity() > before })
	// The first commit has what came first, the second what filled the space meanwhile. Later ones may
	// begin as soon as one request of the first user goes in.
	for range cap(steps.step) {
		steps.step <- struct{}{}
	}
	if err := victim.ReadReplies(0, change); err != nil {
		t.Error(err)
	}
	if most := steps.most.Load(); most > 9<<20 {
		t.Errorf("a batch had %d bytes", most)
	}
}

// steppedJournal is a journal whose commits each wait for a step.
type steppedJournal struct {
	statestore.Journal
	step chan struct{}
	most atomic.Int64 // bytes of a batch
}

// Commit implements statestore.Journal.
func (j *steppedJournal) Commit(ctx context.Context, batch []statestore.Group) error {
	size := int64(0)
	changes := false
	for _, group := range batch {
		for _, record := range group {
			size += int64(len(record.Value))
			changes = changes || record.ID[0] == 'k'
		}
	}
	j.most.Store(max(j.most.Load(), size))
	if changes {
		select {
		case <-j.step:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return j.Journal.Commit(ctx, batch)
}

// Maps and pools keep their size after the first clients. Others, with new client ids, must not add to that.
func TestClientsThatComeAndGoLeaveNothingBehind(t *testing.T) {
	const clients, growth = 300, 2 << 20
	address, s := testsupport.StartServer(t, server.Options{MaxUnauthenticated: 4096})
	load := func(name string) {
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				c, err := testsupport.TryDialRaw(address, fmt.Sprint(name, i/2)) // half of them are taken over
				for n, words := range [][]string{{"KEYNOTIFY", "hot"}, {"SET", "hot", name}, {"GET", name}} {
					if err == nil {
						_ = c.Exchange(n, nil, testsupport.Exchange{Words: words})
					}
				}
				switch {
				case err != nil:
				case i%3 == 0:
					_ = c.TryDisconnect()
				default:
					c.Reset()
				}
			})
		}
		await.Done(group.Wait)
		mustBeEmpty(t, s)
	}
	load("first")
	before, heap := runtime.NumGoroutine(), testsupport.HeapInUse()
	load("second")
	testsupport.MustEndGoroutines(t, before)
	if grown := int64(testsupport.HeapInUse()) - int64(heap); grown > growth {
		t.Errorf("%d KiB are left", grown>>10)
	}
	if left := s.Usage().Store.Watches; left > 0 {
		t.Errorf("%d watches are left", left)
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

// Long values count while they wait for a commit: a client cannot make the server hold 256 of them.
func TestLongRepliesThatWaitAreBounded(t *testing.T) {
	const limit = 1 << 20
	d := startDurable(t, server.Options{}.With(server.Limits{Outgoing: limit}))
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
	if most > limit/2+int64(len(value)) {
		t.Errorf("%d bytes wait for a client, above half of the limit of %d and a value", most, limit)
	}
	release()
	if err := p.ReadReplies(0, requests...); err != nil {
		t.Fatal(err)
	}
}

func TestAReplyLargerThanTheLimitsLeavesAfterItsCommit(t *testing.T) {
	d := startDurable(t, server.Options{}.With(server.Limits{Outgoing: 16 << 10, AllOutgoing: 16 << 10}))
	p := testsupport.Connect(t, d.address, "p", nil)
	value := strings.Repeat("v", 100<<10)
	release := d.journal.Hold()
	defer release()
	set := p.SendRequest("SET", "k", value)
	testsupport.Eventually(t, "a commit begins", d.journal.Committing)
	get := p.Request("GET", "k")
	acknowledged := make(chan error, 1)
	go func() { _, err := p.Publish(get); acknowledged <- err }() // PUBACK waits for space
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
	testsupport.Eventually(t, "a commit begins", d.journal.Committing)
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
