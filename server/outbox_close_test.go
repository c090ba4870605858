package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/quota"
	"github.com/tenurelock/tenure/server/internal/turns"
	"github.com/tenurelock/tenure/statestore"
)

// The engine delivers with its lock held: who waits for one client, holds up all. TLS
// would say farewell to that client first, and wait five seconds for it to read that.
func TestInvariant38AClientThatIsSentAwayForReadingTooLittleHoldsUpNobody(t *testing.T) {
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
		conn := newConnection(socket, &Options{MaxPacketSize: 1 << 20, Limits: Limits{OutgoingBytes: 1 << 20}}, turns.New(1), quota.New(1<<30), newWriteLimiter())
		s := &Server{connections: map[string]*connection{"slow": conn}}
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
