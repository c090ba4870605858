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
	address := url.URL{Scheme: "ws", Host: server.Host, Path: server.Path, RawPath: server.RawPath,
		RawQuery: server.RawQuery}
	socket, answer, err := websocket.Dial(ctx, address.String(),
		&websocket.DialOptions{HTTPClient: client, Subprotocols: []string{"mqtt"}})
	var request *url.Error // it would repeat the address; the cause of ctx's end is inside
	switch {
	case err == nil:
		socket.SetReadLimit(-1) // of a message, which is not kept
		return &stream{Conn: conn, socket: socket}, nil
	case errors.As(err, &request):
		return nil, request.Err
	case answer != nil && answer.StatusCode != http.StatusSwitchingProtocols:
		return nil, fmt.Errorf("the server answers %.100q; check the path of the address", answer.Proto+" "+answer.Status)
	}
	return nil, err
}

// stream reads and writes binary messages. Its Close and its deadlines are those of the connection below.
// So its contexts never end, for which websocket.NetConn would allocate with each message.
type stream struct {
	net.Conn
	socket  *websocket.Conn
	message io.Reader // the rest of the present message, which the reading goroutine uses; nil: none
}

// Read returns io.EOF after the server's close frame.
func (s *stream) Read(p []byte) (int, error) {
	for {
		if s.message == nil {
			kind, message, err := s.socket.Reader(context.Background())
			switch websocket.CloseStatus(err) {
			case websocket.StatusNormalClosure, websocket.StatusGoingAway, websocket.StatusNoStatusRcvd:
				return 0, io.EOF
			}
			if err != nil {
				return 0, err
			}
			if kind != websocket.MessageBinary { // [MQTT-6.0.0-1]
				return 0, fmt.Errorf("websocket: a message of kind %v, where binary data is expected", kind)
			}
			s.message = message
		}
		n, err := s.message.Read(p)
		if err == io.EOF {
			s.message, err = nil, nil
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// Write sends p in one message.
func (s *stream) Write(p []byte) (int, error) {
	if err := s.socket.Write(context.Background(), websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}
