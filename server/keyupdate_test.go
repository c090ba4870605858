package server_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

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
		p.send(dataRecord, string(rawmqtt.Login{ClientID: "p", KeepAlive: 60}.Packet()))
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
