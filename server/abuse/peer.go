package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// A target is the server under attack, as the attacker sees it.
type target struct {
	address  string
	users    bool // it checks passwords
	short    bool
	duration time.Duration
}

const (
	// writeWithin bounds each write: a server may stop to read.
	writeWithin = 10 * time.Second
	// readWithin bounds each read that waits for an answer.
	readWithin = 20 * time.Second
	// maxRead bounds a packet that an attacker reads.
	maxRead = 2 << 20
)

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
func (t *target) lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.duration)
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
	in      *bufio.Reader
	id      string
	present bool   // the server had a session
	connack []byte // the body
	counter uint64
}

// errRefused is the error of a login that the server refuses.
var errRefused = errors.New("the login is refused")

// login logs in as mallory, if the server has users and the login names none.
func (t *target) login(ctx context.Context, login rawmqtt.Login) (*peer, error) {
	if t.users && login.User == "" {
		login.User, login.Password = malloryUser, malloryPassword
	}
	if login.KeepAlive == 0 {
		login.KeepAlive = 60
	}
	conn, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	p := &peer{Conn: conn, in: bufio.NewReader(conn), id: login.ClientID}
	if err := p.send(login.Packet()); err != nil {
		_ = conn.Close()
		return nil, err
	}
	first, body, err := p.read()
	if err == nil && (first != wire.Connack<<4 || len(body) < 3 || body[1] != 0) {
		err = fmt.Errorf("%w: %x %x", errRefused, first, body[:min(len(body), 8)])
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	p.present, p.connack = body[0]&1 != 0, body
	return p, nil
}

// logins logs in n clients at once and returns those that succeed.
func (t *target) logins(ctx context.Context, n int, login func(i int) rawmqtt.Login) []*peer {
	var mu sync.Mutex
	var peers []*peer
	crowd(n, 32, func(i int) {
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

func hangUp(peers ...*peer) {
	for _, p := range peers {
		_ = p.Close()
	}
}

// send writes data within a bound.
func (p *peer) send(packets ...[]byte) error {
	_ = p.SetWriteDeadline(time.Now().Add(writeWithin))
	for _, packet := range packets {
		if _, err := p.Write(packet); err != nil {
			return err
		}
	}
	return nil
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
	body, err := p.await(wire.Suback)
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
	body, err := p.await(wire.Puback)
	if err != nil || len(body) < 3 {
		return 0, err
	}
	return body[2], nil
}

// drain reads and discards, in a goroutine, until the connection ends. The returned function waits
// for that.
func (p *peer) drain() (wait func()) {
	_ = p.SetReadDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, p.in)
	}()
	return func() { <-done }
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
	properties := rawmqtt.Body(nil).Byte(wire.ResponseTopic).Text(protocol.ResponseTopic(p.id)).
		Byte(wire.CorrelationData).Text(correlation)
	if command[0] == protocol.VerbSet {
		properties = properties.User(protocol.PropertyTimestamp, strconv.FormatInt(time.Now().UnixMilli(), 10)+":0:"+p.id)
	}
	return rawmqtt.Message{
		Topic: protocol.InvokeTopic, QoS: 1, ID: id,
		Properties: properties,
		Payload:    resp3.AppendCommand(nil, command...),
	}.Packet()
}

// pipeline sends n requests, or until ctx ends if n is 0, with window of them unanswered at
// most. The server announces how many it takes, which is more than the windows here.
func (p *peer) pipeline(ctx context.Context, n, window int, next func(i int) []byte) error {
	slots := make(chan struct{}, window)
	failed := make(chan error, 1)
	go func() { // ends with the connection, at the latest
		for {
			first, _, err := p.read()
			if err != nil {
				failed <- err
				return
			}
			if first>>4 == wire.Puback {
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
		if _, err := out.Write(next(i)); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	// All are answered when every slot is free.
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

// crowd calls do for 0 to n-1, several at once, and waits for all.
func crowd(n, together int, do func(i int)) {
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
