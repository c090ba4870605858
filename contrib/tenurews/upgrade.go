package tenurews

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/coder/websocket"
)

// maxAnswer bounds the server's answer to the handshake, in bytes.
const maxAnswer = 1 << 14

// Upgrade performs the handshake of a WebSocket for MQTT over conn, a connection to server, and returns
// the stream of MQTT inside its binary messages. ctx bounds the handshake only. After an error, the
// caller closes conn. Upgrade follows no redirection.
//
// One goroutine at a time may read from the stream, and one may write. Its deadlines are those of conn.
// Close closes conn, without the closing handshake of a WebSocket: MQTT has DISCONNECT. A message may
// have any length, because none is kept whole.
func Upgrade(ctx context.Context, conn net.Conn, server *url.URL) (net.Conn, error) {
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
			MaxResponseHeaderBytes: maxAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	// With wss, conn is encrypted already.
	address := url.URL{Scheme: "ws", Host: server.Host, Path: server.Path, RawPath: server.RawPath, RawQuery: server.RawQuery}
	socket, answer, err := websocket.Dial(ctx, address.String(), &websocket.DialOptions{HTTPClient: client, Subprotocols: []string{"mqtt"}})
	var request *url.Error // it would repeat the address
	switch {
	case err == nil:
		return stream{conn, websocket.NetConn(context.Background(), socket, websocket.MessageBinary)}, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.As(err, &request):
		return nil, request.Err
	case answer != nil && answer.StatusCode != http.StatusSwitchingProtocols:
		return nil, fmt.Errorf("the server answers %.100q; check the path of the address", answer.Proto+" "+answer.Status)
	}
	return nil, err
}

// stream reads and writes binary messages. All else is done by the connection below: its deadlines need
// no timers, and its Close does not wait for the other end.
type stream struct {
	net.Conn
	messages net.Conn
}

// Read returns io.EOF after the server's farewell.
func (s stream) Read(p []byte) (int, error) {
	n, err := s.messages.Read(p)
	if websocket.CloseStatus(err) == websocket.StatusNoStatusRcvd {
		err = io.EOF // a farewell without a reason, which the library takes for an error
	}
	return n, err
}

// Write sends p in one message.
func (s stream) Write(p []byte) (int, error) { return s.messages.Write(p) }
