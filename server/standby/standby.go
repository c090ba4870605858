// Package standby answers the clients of a server that stands by, while another server is
// active on the same store.
//
//	listener, err := standby.Listen(":8883")
//	…
//	// until this process is active:
//	err = standby.Serve(ctx, listener.Lend(), standby.Options{TLS: config, Active: where})
//	// from then on, on the same socket:
//	active, err := server.New(server.Options{Listener: listener.Lend(), TLS: config, …})
//
// A standby accepts no client. It answers a CONNECT with reason code 0x9C (Use another server) and
// names the active server as Server Reference; a client of MQTT 3.1.1 or 3.1 gets 0x03 (server
// unavailable). Package transport then goes on to its next address at once. Before the answer a
// connection has the same bounds as an unauthenticated one of the server: in number, in time and in
// the size of its CONNECT.
//
// The answer comes before any authentication, because users and passwords are not checked: a
// client that passes TLS learns the address of the active server. Where that is a secret, leave it
// out, or require client certificates.
package standby

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenurelock/tenure/internal/descriptors"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// Options configures Serve. The zero value refers clients to no particular server.
type Options struct {
	// TLS encrypts connections, as it does in server.Options; nil does not. Serve uses a copy.
	TLS *tls.Config
	// Active returns the active server as clients should see it, host:port, or an empty string
	// if it is unknown. Serve calls it for each client, from several goroutines at once; it must
	// return at once. Nil: unknown. A name that is not fit for MQTT counts as unknown.
	Active func() string
	// MaxUnauthenticated and MaxUnauthenticatedPerAddress bound the open connections, as in
	// server.Options, with the same defaults.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int
	// Logger receives what happens; nil keeps silent.
	Logger *slog.Logger
}

const (
	// reason is the Reason String for clients.
	reason = "this server stands by, and another one is active"
	// maxReference bounds a Server Reference: a host name of 253 bytes with a port is shorter.
	maxReference = 300
	// lingerTime is how long a client has to read the answer and to close the connection, and
	// lingerBytes how much it may send meanwhile. Closing a socket with unread data would
	// discard the answer.
	lingerTime  = time.Second
	lingerBytes = 64 << 10
	// maxStack bounds how much of a stack is logged, in bytes.
	maxStack = 8 << 10
)

// responder is one call of Serve.
type responder struct {
	options Options
	bound   *unauthenticated.Limiter

	answered *loglimit.Lines // clients
	refused  *loglimit.Lines // connections that are closed without an answer
	failures *loglimit.Lines // of Accept
	panics   *loglimit.Lines

	tasks sync.WaitGroup // one for each connection
}

// Serve answers the clients that connect to socket until ctx ends. Then it closes socket and the
// connections that have had no answer yet, and returns nil when no goroutine of it is left. Another
// error means that the socket can no longer accept connections; it is closed then too. A loan of a
// Listener is a socket whose Close leaves the port open.
func Serve(ctx context.Context, socket net.Listener, options Options) error {
	if options.Active == nil {
		options.Active = func() string { return "" }
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	if options.TLS != nil {
		options.TLS = options.TLS.Clone()
		unauthenticated.RestrictTLS(options.TLS)
	}
	r := &responder{
		options:  options,
		bound:    unauthenticated.New(cmp.Or(options.MaxUnauthenticated, unauthenticated.DefaultMax), options.MaxUnauthenticatedPerAddress, descriptors.MaxSockets()),
		answered: loglimit.NewLines(options.Logger, slog.LevelInfo, "sent a client to the active server"),
		refused:  loglimit.NewLines(options.Logger, slog.LevelWarn, "closed a connection"),
		failures: loglimit.NewLines(options.Logger, slog.LevelError, "cannot accept a connection"),
		panics:   loglimit.NewLines(options.Logger, slog.LevelError, "the standby recovered from a panic"),
	}
	open, end := context.WithCancel(ctx)
	stop := context.AfterFunc(open, func() { _ = socket.Close() })
	err := r.bound.Accept(socket, ctx.Done(), r.failures, func(conn net.Conn) { r.handle(open, conn) })
	if stop() {
		_ = socket.Close()
	}
	end()
	r.tasks.Wait()
	for _, limiter := range []*loglimit.Lines{r.answered, r.refused, r.failures, r.panics} {
		limiter.Close()
	}
	if err != nil {
		return fmt.Errorf("standby: %w", err)
	}
	return nil
}

// handle answers one client in a goroutine of its own, within the bounds, until ctx ends.
func (r *responder) handle(ctx context.Context, socket net.Conn) {
	remote := unauthenticated.RemoteOf(socket)
	refuse := func(err error) {
		r.refused.Log("reason", logs.Error(err), "remote", remote.String(), "hint", unauthenticated.Hint)
		_ = socket.Close()
	}
	place, oldest, err := r.bound.Add(unauthenticated.SourceOf(remote), func() { refuse(unauthenticated.ErrTooMany) })
	if oldest != nil {
		oldest.Drop()
	}
	if err != nil {
		refuse(err)
		return
	}
	_ = socket.SetDeadline(place.Deadline())
	r.tasks.Go(func() {
		defer place.Done()
		defer socket.Close()
		defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
		defer func() {
			if value := recover(); value != nil { // what one client sent must not end the process
				stack := debug.Stack()
				r.panics.Log("remote", remote.String(), "panic", fmt.Sprint(value), "stack", string(stack[:min(len(stack), maxStack)]))
			}
		}()
		r.answer(socket, remote, place)
	})
}

// answer reads the CONNECT of a client and answers it.
func (r *responder) answer(socket net.Conn, remote net.Addr, place *unauthenticated.Connection) {
	conn := socket
	if r.options.TLS != nil {
		below := &unauthenticated.Socket{Conn: socket}
		encrypted := tls.Server(below, r.options.TLS)
		if below.Handshake(encrypted, place) != nil {
			return // no client, or one that left or could not agree about TLS
		}
		conn = encrypted
	}
	limits := wire.DefaultLimits()
	check := wire.NewGate(limits)
	input := mqtt.NewFilter(conn, mqtt.FilterOptions{Limit: limits.FirstPacket, First: limits.FirstPacket, Check: check.Check})
	var answer []byte
	if _, err := input.Next(); err != nil {
		var refused bool
		if answer, refused = check.AppendRefusal(nil, err); !refused {
			return // no client, or one that left
		}
		r.refused.Log("reason", logs.Error(err), "remote", remote.String())
	} else {
		active := reference(r.options.Active())
		answer = check.AppendRefused(nil, &mqtt.Refusal{Code: mqtt.UseAnotherServer, Reason: reason}, active)
		r.answered.Log("remote", remote.String(), "active", active)
	}
	// The client gets the rest of its time, and a little more if there is none left.
	end := time.Now().Add(lingerTime)
	if deadline := place.Deadline(); deadline.Before(end) {
		end = deadline
	}
	_ = socket.SetDeadline(end)
	if _, err := conn.Write(answer); err != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
		_, _ = io.CopyN(io.Discard, socket, lingerBytes)
	}
}

// reference returns what Options.Active returned, or an empty string if it cannot be a Server
// Reference.
func reference(active string) string {
	if len(active) > maxReference || !utf8.ValidString(active) || strings.ContainsFunc(active, unicode.IsControl) {
		return ""
	}
	return active
}
