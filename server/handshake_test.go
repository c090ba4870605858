package server_test

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server"
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
