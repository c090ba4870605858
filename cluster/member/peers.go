package member

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"

	"github.com/tenurelock/tenure/internal/descriptors"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/unauthenticated"
)

const (
	// maxHandshakes and maxHandshakesPerAddress are how many connections there may be that have not
	// shown a certificate yet. A member has some ten connections to each other one.
	maxHandshakes, maxHandshakesPerAddress = 64, 16
	// peerReadTimeout bounds the time in which a request of another member arrives, as in etcd v3.6.14.
	peerReadTimeout = 5 * time.Minute
)

// peers is the address at which the other members reach this one. The listener of etcd v3.6.14 would
// let any number of connections be in their handshakes: programs without a certificate could take the
// processors from a member for so long that the store beside it is deposed.
type peers struct {
	socket  net.Listener
	tls     *tls.Config // nil: without TLS, on one machine
	limit   *unauthenticated.Limiter
	refused *loglimit.Lines // connections
	server  *http.Server
	handler atomic.Pointer[http.Handler]
	proved  chan net.Conn // connections of members

	life  context.Context
	stop  context.CancelFunc
	serve sync.Once
	tasks sync.WaitGroup // Accept, Serve, and one for each handshake
}

// listenPeers listens at own. Connections wait until answer is called.
func listenPeers(own url.URL, info transport.TLSInfo, logger *slog.Logger) (p *peers, err error) {
	p = &peers{
		limit:   unauthenticated.New(maxHandshakes, maxHandshakesPerAddress, descriptors.MaxSockets()),
		refused: loglimit.NewLines(logger, slog.LevelWarn, "closed a connection at the port of the members"),
		proved:  make(chan net.Conn),
	}
	p.server = &http.Server{
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*p.handler.Load()).ServeHTTP(w, r) }),
		ReadTimeout: peerReadTimeout,
		ErrorLog:    log.New(io.Discard, "", 0), // it is about what the other end did
	}
	if own.Scheme == "https" {
		if p.tls, err = info.ServerConfig(); err != nil {
			return nil, err
		}
		p.tls.NextProtos = nil // members use HTTP/1.1
		unauthenticated.RestrictTLS(p.tls)
	}
	p.socket, err = transport.NewListenerWithOpts(own.Host, "http",
		transport.WithTimeout(rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout))
	if err != nil {
		return nil, err
	}
	p.life, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// answer makes handler answer the other members from now on.
func (p *peers) answer(handler http.Handler) {
	p.handler.Store(&handler)
	p.serve.Do(func() {
		p.tasks.Go(func() { _ = p.limit.Accept(p.socket, p.life.Done(), p.refused, p.handshake) }) // until end
		p.tasks.Go(func() { _ = p.server.Serve(p) })
	})
}

// end ends all connections and frees the address. It may be called twice.
func (p *peers) end() {
	_ = p.Close()
	_ = p.server.Close()
	p.tasks.Wait()
	p.refused.Close()
}

// handshake begins the handshake of a connection that was accepted now, in a goroutine of its own.
func (p *peers) handshake(socket net.Conn) {
	pending, err := p.limit.Add(p.life, socket, func() { _ = socket.Close() })
	if err != nil { // none is protected from being dropped
		_ = socket.Close()
		return
	}
	p.tasks.Go(func() {
		conn, err := p.prove(socket, pending)
		if !pending.Done() {
			err = unauthenticated.ErrTooMany // it was dropped for a newer one
		}
		if err == nil {
			select {
			case p.proved <- conn:
				return
			case <-p.life.Done():
			}
		} else if p.life.Err() == nil {
			p.refused.Log("remote", socket.RemoteAddr().String(), "error", err.Error())
		}
		_ = socket.Close()
	})
}

// prove returns a connection whose other end has shown that it is a member, in the time of a pending one.
func (p *peers) prove(socket net.Conn, pending *unauthenticated.Connection) (net.Conn, error) {
	if p.tls == nil {
		return socket, nil
	}
	ctx := pending.Context()
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })() // ends the handshake
	below := &unauthenticated.Socket{Conn: socket}
	conn := tls.Server(below, p.tls)
	if err := below.Handshake(conn, pending); err != nil {
		return nil, err
	}
	return conn, comesFrom(ctx, socket.RemoteAddr(), conn.ConnectionState().PeerCertificates[0])
}

// comesFrom returns an error unless a connection comes from a host that its certificate names, as etcd
// demands it: a certificate that was stolen is of no use elsewhere.
func comesFrom(ctx context.Context, remote net.Addr, certificate *x509.Certificate) error {
	host, _, err := net.SplitHostPort(remote.String())
	if err != nil {
		return err
	}
	if len(certificate.IPAddresses)+len(certificate.DNSNames) == 0 || certificate.VerifyHostname(host) == nil {
		return nil
	}
	for _, name := range certificate.DNSNames {
		if addresses, err := net.DefaultResolver.LookupHost(ctx, name); err == nil && slices.Contains(addresses, host) {
			return nil
		}
	}
	names, _ := net.DefaultResolver.LookupAddr(ctx, host) // a certificate may have names like *.example.com
	for _, name := range names {
		if certificate.VerifyHostname(strings.TrimSuffix(name, ".")) == nil {
			return nil
		}
	}
	return fmt.Errorf("the certificate is for %q and %v, and none of these is the address from which the connection comes",
		certificate.DNSNames, certificate.IPAddresses)
}

// The rest implements net.Listener for the HTTP server.

// Accept returns the next connection of a member.
func (p *peers) Accept() (net.Conn, error) {
	select {
	case conn := <-p.proved:
		return conn, nil
	case <-p.life.Done():
		return nil, net.ErrClosed
	}
}

// Close ends Accept, and frees the address.
func (p *peers) Close() error {
	p.stop()
	return p.socket.Close()
}

func (p *peers) Addr() net.Addr { return p.socket.Addr() }
