package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// A target is the server under attack, as the attacker sees it.
type target struct {
	address  string
	users    bool // it checks passwords
	short    bool
	duration time.Duration

	// open has the peers that were not hung up: the garbage collector would end the
	// connection of one that its attack no longer uses.
	open sync.Map
}

const (
	// writeWithin bounds each write: a server may stop reading.
	writeWithin = 10 * time.Second
	// readWithin bounds each read that waits for an answer.
	readWithin = 20 * time.Second
	// maxRead bounds a packet that an attacker reads.
	maxRead = 2 << 20
)

// An attack that has passed a limit of the server panics with a breach, and one that cannot go on with a
// stopped. Either ends the attack, as t.FailNow ends a test.
type (
	breach  string
	stopped struct{ reason error }
)

// breach ends the attack: it has passed a limit.
func (t *target) breach(format string, args ...any) { panic(breach(fmt.Sprintf(format, args...))) }

// need ends the attack if there is an error: it cannot go on.
func (t *target) need(err error) {
	if err != nil {
		panic(stopped{err})
	}
}

// must is login for an attack that cannot go on without it.
func (t *target) must(ctx context.Context, login rawmqtt.Login) *peer {
	p, err := t.login(ctx, login)
	t.need(err)
	return p
}

// as is must with nothing but a client id.
func (t *target) as(ctx context.Context, id string) *peer {
	return t.must(ctx, rawmqtt.Login{ClientID: id})
}

// accepted ends the attack if the server refuses what it needs.
func (t *target) accepted(code byte, err error) {
	if err == nil && refused(code) {
		err = fmt.Errorf("%w: %#x", errRefused, code)
	}
	t.need(err)
}

// n returns full, or short in a short run.
func (t *target) n(full, short int) int {
	if t.short {
		return short
	}
	return full
}

// within returns a time limit. Short attacks run in tests, where even a busy machine must keep to it.
func (t *target) within(limit time.Duration) time.Duration {
	if t.short {
		return 4 * limit
	}
	return limit
}

// lasting returns a context that ends after the duration of the attack.
func (t *target) lasting(ctx context.Context) context.Context {
	lasting, cancel := context.WithTimeout(ctx, t.duration)
	context.AfterFunc(lasting, cancel)
	return lasting
}

// dial opens a connection. Closing it discards unsent data and leaves no port in TIME_WAIT.
func (t *target) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: readWithin}
	conn, err := dialer.DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, err
	}
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// A peer is a connection that has logged in. One goroutine may write while another reads.
type peer struct {
	net.Conn
	target  *target
	in      *bufio.Reader
	id      string
	present bool   // the server had a session
	connack []byte // the body
	counter uint64

	timestamp func() string // of SETs; nil: a right one
	token     string        // of requests; empty: none
}

// errRefused is the error of what the server refuses.
var errRefused = errors.New("refused")

// connect sends a CONNECT, as mallory if the server has users and the login names none.
func (t *target) connect(ctx context.Context, login rawmqtt.Login) (*peer, error) {
	if t.users && login.User == "" {
		login.User, login.Password = malloryUser, malloryPassword
	}
	login.KeepAlive = cmp.Or(login.KeepAlive, 60)
	conn, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	p := &peer{Conn: conn, target: t, in: bufio.NewReader(conn), id: login.ClientID}
	t.open.Store(p, nil)
	if err := p.send(login.Packet()); err != nil {
		hangUp(p)
		return nil, err
	}
	return p, nil
}

// login logs in with connect.
func (t *target) login(ctx context.Context, login rawmqtt.Login) (*peer, error) {
	p, err := t.connect(ctx, login)
	if err != nil {
		return nil, err
	}
	first, body, err := p.read()
	if err == nil && (first != packets.CONNACK<<4 || len(body) < 3 || body[1] != 0) {
		err = fmt.Errorf("%w: %x %x", errRefused, first, body[:min(len(body), 8)])
	}
	if err != nil {
		hangUp(p)
		return nil, err
	}
	p.present, p.connack = body[0]&1 != 0, body
	return p, nil
}

// logins logs in n clients at once and returns those that succeed.
func (t *target) logins(ctx context.Context, n int, login func(i int) rawmqtt.Login) []*peer {
	var mu sync.Mutex
	var peers []*peer
	concurrently(n, 32, func(i int) {
		p, err := t.login(ctx, login(i))
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		peers = append(peers, p)
	})
	return peers
}

// named returns logins whose client ids begin with a prefix.
func named(prefix string) func(int) rawmqtt.Login {
	return func(i int) rawmqtt.Login { return rawmqtt.Login{ClientID: prefix + strconv.Itoa(i)} }
}

// each logs in n clients with ids that begin with a prefix, and then calls do with each of them,
// together at a time.
func (t *target) each(ctx context.Context, n, together int, prefix string, do func(p *peer)) []*peer {
	peers := t.logins(ctx, n, named(prefix))
	concurrently(len(peers), together, func(i int) { do(peers[i]) })
	return peers
}

// again logs in, calls do and hangs up, again and again until ctx ends, which ends the
// connection.
func (t *target) again(ctx context.Context, login rawmqtt.Login, do func(p *peer)) {
	for ctx.Err() == nil {
		p, err := t.login(ctx, login)
		if err != nil {
			sleep.For(ctx, 50*time.Millisecond)
			continue
		}
		stop := context.AfterFunc(ctx, func() { hangUp(p) })
		do(p)
		stop()
		hangUp(p)
	}
}

func hangUp(peers ...*peer) {
	for _, p := range peers {
		p.target.open.Delete(p)
		_ = p.Close()
	}
}

// send writes data within a bound.
func (p *peer) send(data []byte) error {
	_ = p.SetWriteDeadline(time.Now().Add(writeWithin))
	_, err := p.Write(data)
	return err
}

// read reads one packet within a bound.
func (p *peer) read() (first byte, body []byte, err error) {
	_ = p.SetReadDeadline(time.Now().Add(readWithin))
	return rawmqtt.Read(p.in, maxRead)
}

// await reads until a packet of a type comes, and returns its body.
func (p *peer) await(kind byte) ([]byte, error) {
	for {
		first, body, err := p.read()
		if err != nil || first>>4 == kind {
			return body, err
		}
	}
}

// subscribe subscribes and returns the last reason code of the answer.
func (p *peer) subscribe(options byte, filters ...string) (code byte, err error) {
	if err := p.send(rawmqtt.SubscribeTo(1, options, filters...)); err != nil {
		return 0, err
	}
	body, err := p.await(packets.SUBACK)
	if err != nil || len(body) == 0 {
		return 0, err
	}
	return body[len(body)-1], nil
}

// publish publishes with QoS 1 and returns the reason code of the answer.
func (p *peer) publish(m rawmqtt.Message) (code byte, err error) {
	m.QoS, m.ID = 1, 1
	if err := p.send(m.Packet()); err != nil {
		return 0, err
	}
	return p.acknowledged()
}

func (p *peer) acknowledged() (code byte, err error) {
	body, err := p.await(packets.PUBACK)
	if err != nil || len(body) < 3 {
		return 0, err
	}
	return body[2], nil
}

// ask sends a request, and returns the reason code of its acknowledgement.
func (p *peer) ask(command ...string) (code byte, err error) {
	if err := p.send(p.request(1, command...)); err != nil {
		return 0, err
	}
	return p.acknowledged()
}

// answer sends a request, and returns its reply.
func (p *peer) answer(command ...string) []byte {
	p.target.accepted(p.subscribe(0, protocol.ResponseTopic(p.id)))
	p.target.need(p.send(p.request(1, command...)))
	body, err := p.await(packets.PUBLISH)
	p.target.need(err)
	return body
}

// subscribeAll subscribes to any number of filters, and stops at the first error.
func (p *peer) subscribeAll(options byte, filters []string) {
	for some := range slices.Chunk(filters, 90) {
		if _, err := p.subscribe(options, some...); err != nil {
			return
		}
	}
}

// drain reads and discards, in a goroutine that ends with the connection.
func (p *peer) drain() {
	_ = p.SetReadDeadline(time.Time{})
	go func() { _, _ = io.Copy(io.Discard, p.in) }()
}

// request returns the packet of a request to the store, with correlation data of its own.
func (p *peer) request(id uint16, command ...string) []byte {
	p.counter++
	var correlation [16]byte
	binary.BigEndian.PutUint64(correlation[:], p.counter)
	return p.requestWith(id, string(correlation[:]), command...)
}

// requestWith returns the packet of a request to the store.
func (p *peer) requestWith(id uint16, correlation string, command ...string) []byte {
	properties := rawmqtt.Body(nil).Byte(packets.PropResponseTopic).Text(protocol.ResponseTopic(p.id)).
		Byte(packets.PropCorrelationData).Text(correlation)
	if command[0] == protocol.VerbSet {
		timestamp := strconv.FormatInt(time.Now().UnixMilli(), 10) + ":0:" + p.id
		if p.timestamp != nil {
			timestamp = p.timestamp()
		}
		properties = properties.User(protocol.PropertyTimestamp, timestamp)
	}
	if p.token != "" {
		properties = properties.User(protocol.PropertyFencingToken, p.token)
	}
	return rawmqtt.Message{
		Topic: protocol.InvokeTopic, QoS: 1, ID: id,
		Properties: properties,
		Payload:    resp3.AppendCommand(nil, command...),
	}.Packet()
}

// requests sends requests to the store with pipeline.
func (p *peer) requests(ctx context.Context, n, window int, command func(i int) []string) error {
	return p.pipeline(ctx, n, window, func(i int, id uint16) []byte { return p.request(id, command(i)...) })
}

// messages publishes messages with QoS 1 with pipeline.
func (p *peer) messages(ctx context.Context, n, window int, message func(i int) rawmqtt.Message) error {
	return p.pipeline(ctx, n, window, func(i int, id uint16) []byte {
		m := message(i)
		m.QoS, m.ID = 1, id
		return m.Packet()
	})
}

// pipeline sends n packets that a PUBACK answers, or until ctx ends if n is 0, with window of
// them unanswered at most. The server announces how many it takes, which is more than the
// windows here. next returns the packet i with a packet identifier.
func (p *peer) pipeline(ctx context.Context, n, window int, next func(i int, id uint16) []byte) error {
	slots := make(chan struct{}, window)
	failed := make(chan error, 1)
	go func() { // ends with the connection, at the latest
		for {
			first, _, err := p.read()
			if err != nil {
				failed <- err
				return
			}
			if first>>4 == packets.PUBACK {
				select {
				case <-slots:
				default:
				}
			}
		}
	}()
	out := bufio.NewWriterSize(p.Conn, 32<<10)
	for i := 0; (n == 0 || i < n) && ctx.Err() == nil; i++ {
		select {
		case slots <- struct{}{}:
		default:
			_ = p.SetWriteDeadline(time.Now().Add(writeWithin))
			if err := out.Flush(); err != nil {
				return err
			}
			select {
			case slots <- struct{}{}:
			case err := <-failed:
				return err
			case <-ctx.Done():
				return nil
			}
		}
		_ = p.SetWriteDeadline(time.Now().Add(writeWithin))
		if _, err := out.Write(next(i, uint16(i%(2*window)+1))); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	// Every packet is answered when every slot is free.
	for range window {
		select {
		case slots <- struct{}{}:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// concurrently calls do for 0 to n-1, several at once, and waits for all.
func concurrently(n, together int, do func(i int)) {
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(n, together) {
		workers.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
}

// refused reports whether a reason code is an error [MQTT-2.4].
func refused(code byte) bool { return code >= 0x80 }
