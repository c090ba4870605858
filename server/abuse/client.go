package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
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
)

// An attack that has passed a limit of the server panics with a breach, and one that cannot go on with an
// error. Either ends the attack, as t.FailNow ends a test.
type breach string

// breach ends the attack: it has passed a limit.
func (t *target) breach(format string, args ...any) { panic(breach(fmt.Sprintf(format, args...))) }

// need ends the attack if there is an error: it cannot go on.
func (t *target) need(err error) {
	if err != nil {
		panic(err)
	}
}

// n returns full, or a quarter in a short run.
func (t *target) n(full int) int {
	if t.short {
		return full / 4
	}
	return full
}

// lasting returns a context that ends after the duration of the attack.
func (t *target) lasting() context.Context {
	lasting, cancel := context.WithTimeout(context.Background(), t.duration)
	context.AfterFunc(lasting, cancel)
	return lasting
}

// dial opens a connection. Closing it discards unsent data and leaves no port in TIME_WAIT.
func (t *target) dial() (*net.TCPConn, error) {
	conn, err := net.DialTimeout("tcp", t.address, readWithin)
	if err != nil {
		return nil, err
	}
	tcp := conn.(*net.TCPConn)
	return tcp, tcp.SetLinger(0)
}

// keepConnecting opens connections until ctx ends, some at a time, and calls use with each.
func (t *target) keepConnecting(ctx context.Context, together int, use func(*net.TCPConn)) {
	concurrently(together, together, func(int) {
		for ctx.Err() == nil {
			conn, err := t.dial()
			if err != nil {
				sleep.For(ctx, 5*time.Millisecond)
				continue
			}
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(readWithin))
			use(conn)
			stop()
			_ = conn.Close()
		}
	})
}

// A peer is a connection that has sent its CONNECT. One goroutine may write while another reads.
type peer struct {
	*testsupport.RawClient
	target *target
	change func(*mqtt.Message) // of each request; may be nil
}

// errRefused is the error of what the server refuses.
var errRefused = errors.New("refused")

// connect sends a CONNECT, as mallory if the server has users and the login names none.
func (t *target) connect(login rawmqtt.Login) (*peer, error) {
	if t.users && login.User == "" {
		login.User, login.Password = malloryUser, password
	}
	login.KeepAlive = cmp.Or(login.KeepAlive, 60)
	conn, err := t.dial()
	if err != nil {
		return nil, err
	}
	p := &peer{RawClient: testsupport.NewRaw(nil, conn, login.ID), target: t}
	t.open.Store(p, nil)
	if err := p.send(login.Packet()); err != nil {
		hangUp(p)
		return nil, err
	}
	return p, nil
}

// login logs in with connect.
func (t *target) login(login rawmqtt.Login) (*peer, error) {
	p, err := t.connect(login)
	if err != nil {
		return nil, err
	}
	connack, err := p.await(packets.CONNACK)
	if err == nil && body(connack)[1] != 0 {
		err = fmt.Errorf("%w: %q", errRefused, connack)
	}
	if err != nil {
		hangUp(p)
		return nil, err
	}
	return p, nil
}

// as logs in a client for an attack that cannot go on without it, as the healthy user if the server has
// users.
func (t *target) as(id string) *peer {
	login := rawmqtt.Login{ID: id}
	if t.users {
		login.User, login.Password = healthyUser, password
	}
	p, err := t.login(login)
	t.need(err)
	return p
}

// each logs in n clients with ids that begin with a prefix, and then calls do with each that succeeds,
// together at a time.
func (t *target) each(n, together int, prefix string, do func(p *peer)) []*peer {
	return t.eachOf(n, together, rawmqtt.Login{ID: prefix}, do)
}

func (t *target) eachOf(n, together int, login rawmqtt.Login, do func(p *peer)) (peers []*peer) {
	var mu sync.Mutex
	concurrently(n, 32, func(i int) {
		numbered := login
		numbered.ID += strconv.Itoa(i)
		if p, err := t.login(numbered); err == nil {
			mu.Lock()
			defer mu.Unlock()
			peers = append(peers, p)
		}
	})
	concurrently(len(peers), together, func(i int) { do(peers[i]) })
	return peers
}

// again logs in, calls do and hangs up, on n connections, again and again until ctx ends, which ends
// the connections.
func (t *target) again(ctx context.Context, n int, prefix string, do func(p *peer)) {
	concurrently(n, n, func(i int) {
		for ctx.Err() == nil {
			p, err := t.login(rawmqtt.Login{ID: prefix + strconv.Itoa(i)})
			if err != nil {
				sleep.For(ctx, 50*time.Millisecond)
				continue
			}
			stop := context.AfterFunc(ctx, func() { hangUp(p) })
			do(p)
			stop()
			hangUp(p)
		}
	})
}

func hangUp(peers ...*peer) {
	for _, p := range peers {
		p.target.open.Delete(p)
		_ = p.Conn.Close()
	}
}

// send writes data within a bound.
func (p *peer) send(data []byte) error {
	_ = p.Conn.SetWriteDeadline(time.Now().Add(writeWithin))
	_, err := p.Conn.Write(data)
	return err
}

// await reads until a packet of a type comes, each within a bound, and returns it.
func (p *peer) await(kind byte) ([]byte, error) {
	for {
		_ = p.Conn.SetReadDeadline(time.Now().Add(readWithin))
		packet, err := p.TryRead()
		if err != nil || packet[0]>>4 == kind {
			return packet, err
		}
	}
}

// exchange sends a packet, and returns an error unless an acknowledgement of this type comes, and its last
// byte is no error [MQTT-2.4].
func (p *peer) exchange(packet []byte, kind byte) error {
	if err := p.send(packet); err != nil {
		return err
	}
	ack, err := p.await(kind)
	if err != nil {
		return err
	}
	code := byte(0)
	if body := body(ack); kind == packets.SUBACK {
		code = body[len(body)-1]
	} else if len(body) > 2 {
		code = body[2]
	}
	if code >= 0x80 {
		return fmt.Errorf("%w: %q", errRefused, ack)
	}
	return nil
}

// body returns what follows the fixed header of a packet.
func body(packet []byte) []byte {
	_, header, _ := mqtt.Size(packet)
	return packet[header:]
}

// subscribe subscribes to any number of filters, and stops at the first error.
func (p *peer) subscribe(options byte, filters ...string) error {
	for some := range slices.Chunk(filters, 90) {
		if err := p.exchange(rawmqtt.SubscribeTo(1, options, some...), packets.SUBACK); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a request, and waits for its acknowledgement.
func (p *peer) ask(command ...string) error {
	return p.exchange(p.request(1, command...), packets.PUBACK)
}

// drain reads and discards, in a goroutine that ends with the connection.
func (p *peer) drain() {
	_ = p.Conn.SetReadDeadline(time.Time{})
	go func() { _, _ = io.Copy(io.Discard, p.Input) }()
}

// request returns the packet of a request to the store.
func (p *peer) request(id uint16, command ...string) []byte {
	m := p.Request(command...)
	m.PacketID = id
	if p.change != nil {
		p.change(&m)
	}
	packet, err := m.Append(nil)
	p.target.need(err)
	return packet
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
			_, err := p.await(packets.PUBACK)
			if err != nil {
				failed <- err
				return
			}
			select {
			case <-slots:
			default:
			}
		}
	}()
	out := bufio.NewWriterSize(p.Conn, 32<<10)
	take := func() error { // a slot; what waits is sent before that waits
		_ = p.Conn.SetWriteDeadline(time.Now().Add(writeWithin))
		if len(slots) == window {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		select {
		case slots <- struct{}{}:
			return nil
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for i := 0; (n == 0 || i < n) && ctx.Err() == nil; i++ {
		if err := take(); err != nil {
			return err
		}
		if _, err := out.Write(next(i, uint16(i%(2*window)+1))); err != nil {
			return err
		}
	}
	for range window { // every packet is answered when every slot is free
		if err := take(); err != nil {
			return err
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
