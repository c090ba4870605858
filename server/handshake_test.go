package server_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// handshakes makes each TLS handshake of a server wait for the test while it is computed.
type handshakes struct {
	ca    *certificates.Authority
	began chan string // the name that the client asks for
	goOn  chan struct{}
	now   atomic.Int32
	most  atomic.Int32
}

func newHandshakes(t testing.TB) *handshakes {
	return &handshakes{ca: certificates.New(t, "authority"), began: make(chan string, 1000), goOn: make(chan struct{})}
}

func (h *handshakes) config() *tls.Config {
	return &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		now := h.now.Add(1)
		defer h.now.Add(-1)
		for most := h.most.Load(); now > most && !h.most.CompareAndSwap(most, now); most = h.most.Load() {
		}
		h.began <- hello.ServerName
		await.Receive(h.goOn)
		return &h.ca.Own, nil
	}}
}

// start begins a handshake, and returns what ends with it.
func (h *handshakes) start(t testing.TB, address, name string) (ended chan error) {
	conn := tls.Client(testsupport.DialTCP(t, address), &tls.Config{InsecureSkipVerify: true, ServerName: name})
	ended = make(chan error, 1)
	go func() { ended <- conn.Handshake() }()
	return ended
}

// turns is how many handshakes are computed at once.
var turns = max(1, runtime.GOMAXPROCS(0)/2)

// Invariant 58: handshakes keep no other client out.
func TestAFewHandshakesAreComputedAtATime(t *testing.T) {
	h := newHandshakes(t)
	address, s := testsupport.StartServer(t, server.Options{TLS: h.config()})
	var ended []chan error
	for i := range turns + 20 {
		ended = append(ended, h.start(t, address, fmt.Sprint("c", i)))
	}
	testsupport.Eventually(t, "all have come", func() bool { all, _ := s.Unauthenticated(); return all == turns+20 })
	for range turns {
		await.Receive(h.began)
	}
	testsupport.Eventually(t, "20 wait", func() bool { return s.Handshaking() == 20 })
	close(h.goOn)
	for _, end := range ended {
		if err := await.Receive(end); err != nil {
			t.Error(err)
		}
	}
	if most := int(h.most.Load()); most != turns {
		t.Errorf("%d were computed at once, want %d", most, turns)
	}
}

// Invariant 58: handshakes of one address keep no other address out.
func TestHandshakesTakeTurnsByRemoteAddress(t *testing.T) {
	h := newHandshakes(t)
	elsewhere := fromElsewhere(t)
	address, s := testsupport.StartServer(t, server.Options{Listener: elsewhere, TLS: h.config(), AllowInsecure: true})
	for range turns {
		elsewhere.from <- "192.0.2.1"
		h.start(t, address, "first")
		await.Receive(h.began)
	}
	for i, visit := range []struct{ source, name string }{
		{"192.0.2.1", "flood-1"}, {"192.0.2.1", "flood-2"}, {"192.0.2.1", "flood-3"}, {"192.0.2.2", "healthy"},
	} {
		elsewhere.from <- visit.source
		h.start(t, address, visit.name)
		testsupport.Eventually(t, visit.name+" waits", func() bool { return s.Handshaking() == i+1 })
	}
	var order []string
	for range 4 {
		h.goOn <- struct{}{}
		order = append(order, await.Receive(h.began))
	}
	close(h.goOn)
	if got := strings.Join(order, " "); turns == 1 && got != "flood-1 healthy flood-2 flood-3" || order[3] == "healthy" {
		t.Errorf("the order is %s", got)
	}
}

// Invariant 58: a client that is silent in its handshake keeps no other out.
func TestAHandshakeThatWaitsForItsClientHasNoTurn(t *testing.T) {
	h := newHandshakes(t)
	close(h.goOn)
	address := testsupport.Start(t, server.Options{TLS: h.config()})
	hello := clientHello(t)
	for _, sent := range []string{hello, hello[:len(hello)-1]} {
		for range turns {
			testsupport.Send(t, testsupport.DialTCP(t, address), sent)
		}
	}
	for range turns {
		await.Receive(h.began)
	}
	if err := await.Receive(h.start(t, address, "healthy")); err != nil {
		t.Error(err)
	}
}

// clientHello returns the first bytes of a client.
func clientHello(t testing.TB) string {
	near, far := net.Pipe()
	defer far.Close()
	go func() { _ = tls.Client(near, &tls.Config{InsecureSkipVerify: true}).Handshake() }() // ends with the pipe
	room := make([]byte, 8<<10)
	n, err := io.ReadAtLeast(far, room, 100)
	if err != nil {
		t.Fatal(err)
	}
	return string(room[:n])
}

func TestAHandshakeThatGetsNoTurnInTimeIsCounted(t *testing.T) {
	t.Parallel()
	h := newHandshakes(t)
	address, s := testsupport.StartServer(t, server.Options{TLS: h.config()}, func(s *server.Server) { s.SetAuthenticationTimeout(500 * time.Millisecond) })
	defer close(h.goOn)
	for range turns {
		h.start(t, address, "first")
		await.Receive(h.began)
	}
	if err := await.Receive(h.start(t, address, "late")); err == nil {
		t.Error("its handshake succeeded")
	}
	testsupport.Eventually(t, "it is counted", func() bool { return s.Stats().Refused[server.RefusedSlow] == 1 })
}

// The size is bounded before anything is parsed, and the number before anything is verified.
func TestTheLogSaysThatAClientShowsTooManyCertificates(t *testing.T) {
	ca := certificates.New(t, "authority")
	for _, test := range []struct {
		certificates int
		want         string
	}{{7, "the client shows 7 certificates, and may show 5"}, {200, "the client sent more than 32 KiB in its TLS handshake"}} {
		t.Run(test.want, func(t *testing.T) {
			log := new(logbuffer.Buffer)
			address := testsupport.Start(t, server.Options{
				TLS:    &tls.Config{Certificates: []tls.Certificate{ca.Own}, ClientCAs: ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert},
				Logger: log.Logger(),
			})
			certificate := ca.Issue(pkix.Name{CommonName: "p"})
			for len(certificate.Certificate) < test.certificates {
				certificate.Certificate = append(certificate.Certificate, ca.Own.Certificate[0])
			}
			if _, err := connectTLS(t, address, "p", ca, certificate); err == nil {
				t.Error("it is admitted")
			}
			testsupport.Eventually(t, "the log has it", func() bool { return strings.Contains(log.String(), test.want) })
		})
	}
}

// inMemory is a listener whose connections are pipes.
type inMemory struct {
	come, over chan net.Conn
}

func (l *inMemory) Accept() (net.Conn, error) {
	select {
	case conn := <-l.come:
		return conn, nil
	case <-l.over:
		return nil, net.ErrClosed
	case <-time.After(time.Hour):
		return nil, os.ErrDeadlineExceeded
	}
}

func (l *inMemory) Close() error   { close(l.over); return nil }
func (l *inMemory) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// direction protects the records of one direction of TLS 1.3, since package tls sends no KeyUpdate.
type direction struct {
	secret []byte
	suite  uint16
	number uint64
}

func (d *direction) expand(label string, length int) []byte {
	info := binary.BigEndian.AppendUint16(nil, uint16(length))
	info = append(append(info, byte(6+len(label))), "tls13 "+label...)
	out, err := hkdf.Expand(sha256.New, d.secret, string(append(info, 0)), length)
	if err != nil {
		panic(err)
	}
	return out
}

// update changes the keys.
func (d *direction) update() {
	d.secret, d.number = d.expand("traffic upd", sha256.Size), 0
}

// next returns the cipher and the nonce of the next record.
func (d *direction) next() (aead cipher.AEAD, nonce []byte) {
	var err error
	switch d.suite {
	case tls.TLS_AES_128_GCM_SHA256:
		var block cipher.Block
		if block, err = aes.NewCipher(d.expand("key", 16)); err == nil {
			aead, err = cipher.NewGCM(block)
		}
	case tls.TLS_CHACHA20_POLY1305_SHA256:
		aead, err = chacha20poly1305.New(d.expand("key", chacha20poly1305.KeySize))
	default:
		panic("a suite that Go prefers on no machine: " + tls.CipherSuiteName(d.suite))
	}
	if err != nil {
		panic(err)
	}
	nonce = d.expand("iv", aead.NonceSize())
	for i, b := range binary.BigEndian.AppendUint64(nil, d.number) {
		nonce[len(nonce)-8+i] ^= b
	}
	d.number++
	return aead, nonce
}

// Types of records, and the messages of KeyUpdate.
const (
	handshakeRecord, dataRecord = 22, 23

	keyUpdateRequested, keyUpdateAnswer = "\x18\x00\x00\x01\x01", "\x18\x00\x00\x01\x00"
)

// recordPeer is a client of TLS 1.3 that writes and reads records by itself.
type recordPeer struct {
	t    *testing.T
	conn net.Conn
	out  direction
	in   direction
}

// connectRecords connects to a listener, whose server resumes no sessions.
func connectRecords(t *testing.T, listener *inMemory, ca *certificates.Authority) *recordPeer {
	t.Helper()
	near, far := net.Pipe()
	listener.come <- far
	var keys bytes.Buffer
	conn := tls.Client(near, &tls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13, KeyLogWriter: &keys,
		Time: func() time.Time { return ca.Own.Leaf.NotBefore }})
	if err := conn.Handshake(); err != nil {
		t.Fatal(err)
	}
	secret := func(name string) direction {
		found := regexp.MustCompile(name + ` \w+ (\w+)`).FindSubmatch(keys.Bytes())
		if found == nil {
			t.Fatalf("no %s in %q", name, keys.String())
		}
		bytes, _ := hex.DecodeString(string(found[1]))
		return direction{secret: bytes, suite: conn.ConnectionState().CipherSuite}
	}
	return &recordPeer{t: t, conn: near, out: secret("CLIENT_TRAFFIC_SECRET_0"), in: secret("SERVER_TRAFFIC_SECRET_0")}
}

func (p *recordPeer) send(kind byte, content string) {
	p.t.Helper()
	aead, nonce := p.out.next()
	header := binary.BigEndian.AppendUint16([]byte{dataRecord, 3, 3}, uint16(len(content)+1+aead.Overhead()))
	if _, err := p.conn.Write(aead.Seal(header, nonce, append([]byte(content), kind), header)); err != nil {
		p.t.Fatal(err)
	}
}

// receive returns the next record, or the error of the connection.
func (p *recordPeer) receive() (kind byte, content string, err error) {
	header := make([]byte, 5)
	if _, err := io.ReadFull(p.conn, header); err != nil {
		return 0, "", err
	}
	sealed := make([]byte, binary.BigEndian.Uint16(header[3:]))
	if _, err := io.ReadFull(p.conn, sealed); err != nil {
		return 0, "", err
	}
	aead, nonce := p.in.next()
	opened, err := aead.Open(nil, nonce, sealed, header)
	if err != nil {
		return 0, "", err
	}
	return opened[len(opened)-1], string(opened[:len(opened)-1]), nil
}

func (p *recordPeer) mustReceive(kind byte, prefix string) {
	p.t.Helper()
	got, content, err := p.receive()
	if err != nil || got != kind || !bytes.HasPrefix([]byte(content), []byte(prefix)) {
		p.t.Fatalf("record %d: % x, %v; want %d: % x", got, content, err, kind, prefix)
	}
}

// withRecordPeer calls test in virtual time with a client that has logged in.
func withRecordPeer(t *testing.T, test func(t *testing.T, p *recordPeer)) {
	ca := certificates.New(t, "authority")
	synctest.Test(t, func(t *testing.T) {
		listener := &inMemory{make(chan net.Conn), make(chan net.Conn)}
		s, err := server.New(server.Options{Listener: listener, TLS: &tls.Config{
			Certificates: []tls.Certificate{ca.Own}, SessionTicketsDisabled: true,
		}})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(t.Context()) }()
		defer func() { // after the context of the test has ended
			t.Cleanup(func() {
				if err := await.Receive(served); err != nil {
					t.Error(err)
				}
			})
		}()
		p := connectRecords(t, listener, ca)
		defer p.conn.Close()
		p.send(dataRecord, string(rawmqtt.Login{ID: "p", KeepAlive: 60}.Packet()))
		p.mustReceive(dataRecord, "\x20")
		test(t, p)
	})
}

const pingreq = "\xc0\x00"

func TestAClientMayChangeItsKeysAfterSilence(t *testing.T) {
	withRecordPeer(t, func(_ *testing.T, p *recordPeer) {
		for range 3 {
			time.Sleep(20 * time.Second)
			p.send(handshakeRecord, keyUpdateRequested)
			p.out.update()
			p.mustReceive(handshakeRecord, keyUpdateAnswer)
			p.in.update()
			p.send(dataRecord, pingreq)
			p.mustReceive(dataRecord, "\xd0\x00")
		}
	})
}

// Else such clients could keep the server from noticing that they are silent.
func TestAnAnswerToNewKeysThatIsNotReadDoesNotBlockTheServer(t *testing.T) {
	withRecordPeer(t, func(t *testing.T, p *recordPeer) {
		time.Sleep(20 * time.Second)
		p.send(handshakeRecord, keyUpdateRequested)
		p.out.update()
		time.Sleep(10 * time.Second)
		_ = p.conn.SetDeadline(time.Now().Add(time.Second))
		p.send(dataRecord, pingreq)
		if _, _, err := p.receive(); err == nil {
			t.Error("the connection goes on")
		}
	})
}
