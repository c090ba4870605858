package mqttnet

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"time"
)

// webSocket is a net.Conn over the binary messages of a WebSocket (RFC 6455), as MQTT
// requires [MQTT-6.0.0-1]. It is the client's end, without extensions.
//
// One goroutine at a time may read. Close ends the connection without the closing handshake
// of a WebSocket: MQTT has DISCONNECT.
type webSocket struct {
	net.Conn
	limited      *io.LimitedReader // of Conn
	reader       *bufio.Reader     // of limited
	writeTimeout time.Duration

	// Used by the reading goroutine only.
	left       uint64 // unread bytes of the present frame's payload
	fragmented bool   // the present message continues in the next frame
	failure    error  // why the reading ended

	mu    sync.Mutex // held while a frame is written; guards frame
	frame []byte
}

const (
	frameContinuation = 0x0
	frameBinary       = 0x2
	frameClose        = 0x8
	framePing         = 0x9
	framePong         = 0xA

	frameFinal  = 0x80
	frameMasked = 0x80

	maxControlPayload = 125     // [RFC 6455, 5.5]
	maxHandshake      = 1 << 14 // bytes of the server's answer to the handshake
)

// openWebSocket performs the handshake of a WebSocket over conn. After an error, the caller
// closes conn.
func openWebSocket(ctx context.Context, conn net.Conn, server *url.URL, writeTimeout time.Duration) (*webSocket, error) {
	limited := &io.LimitedReader{R: conn, N: maxHandshake}
	w := &webSocket{Conn: conn, limited: limited, reader: bufio.NewReader(limited), writeTimeout: writeTimeout}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := w.handshake(server)
	if !stop() {
		return nil, context.Cause(ctx) // the deadline is set or will be
	}
	if err != nil {
		return nil, fmt.Errorf("websocket handshake: %w", err)
	}
	limited.N = math.MaxInt64
	return w, nil
}

func (w *webSocket) handshake(server *url.URL) error {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails, says its documentation
	key := base64.StdEncoding.EncodeToString(nonce)
	_, err := fmt.Fprintf(w.Conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n",
		server.RequestURI(), server.Host, key)
	if err != nil {
		return err
	}
	answer := textproto.NewReader(w.reader)
	status, err := answer.ReadLine()
	if err != nil {
		return err
	}
	if protocol, code, _ := strings.Cut(status, " "); protocol != "HTTP/1.1" || !strings.HasPrefix(code, "101") {
		return fmt.Errorf("the server answers %.100q; check the path of the address", status)
	}
	header, err := answer.ReadMIMEHeader()
	if err != nil {
		return err
	}
	accepted := header.Get("Sec-WebSocket-Accept")
	protocol := header.Get("Sec-WebSocket-Protocol")
	switch {
	case !strings.EqualFold(header.Get("Upgrade"), "websocket") || !holdsToken(header.Values("Connection"), "upgrade"):
		return errors.New("the server does not upgrade the connection")
	case subtle.ConstantTimeCompare([]byte(accepted), []byte(acceptKey(key))) == 0:
		return errors.New("the server's answer is for another request")
	case protocol != "mqtt" && protocol != "":
		return fmt.Errorf("the server speaks %.100q, not mqtt", protocol)
	case header.Get("Sec-WebSocket-Extensions") != "":
		return errors.New("the server uses an extension that was not asked for")
	}
	return nil
}

// acceptKey returns the server's answer to a key [RFC 6455, 4.2.2].
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func holdsToken(values []string, token string) bool {
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(item), token) {
				return true
			}
		}
	}
	return false
}

// Read returns the content of binary messages, and io.EOF after the server's close frame.
func (w *webSocket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for w.failure == nil && w.left == 0 {
		w.failure = w.nextFrame()
	}
	if w.failure != nil {
		return 0, w.failure
	}
	n, err := w.reader.Read(p[:min(uint64(len(p)), w.left)])
	w.left -= uint64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	w.failure = err
	return n, err
}

// nextFrame reads the header of the next frame, or all of a control frame.
func (w *webSocket) nextFrame() error {
	w.limited.N = math.MaxInt64
	var header [2]byte
	if _, err := io.ReadFull(w.reader, header[:]); err != nil {
		return err
	}
	final, opcode, length := header[0]&frameFinal != 0, header[0]&^frameFinal, uint64(header[1])
	if length&frameMasked != 0 {
		return errors.New("websocket: the server masks its frames")
	}
	if length >= 126 { // it is in the next two bytes, or eight
		var extended [8]byte
		if _, err := io.ReadFull(w.reader, extended[6*(127-length):]); err != nil {
			return err
		}
		length = binary.BigEndian.Uint64(extended[:])
	}
	switch {
	case opcode == frameClose, opcode == framePing, opcode == framePong:
		if !final || length > maxControlPayload {
			return errors.New("websocket: a control frame that is too long or in pieces")
		}
		return w.control(opcode, int(length))
	case opcode == frameBinary && !w.fragmented, opcode == frameContinuation && w.fragmented:
		w.fragmented, w.left = !final, length
		return nil
	}
	// A frame with an extension or reserved bits ends here too. Text is not MQTT
	// [MQTT-6.0.0-1].
	return fmt.Errorf("websocket: a frame of kind 0x%X, where binary data is expected", opcode)
}

// control handles a control frame, which may come between the frames of a message.
func (w *webSocket) control(opcode byte, length int) error {
	payload := make([]byte, length)
	if _, err := io.ReadFull(w.reader, payload); err != nil {
		return err
	}
	switch opcode {
	case framePing:
		return w.reply(framePong, payload)
	case frameClose:
		_ = w.reply(frameClose, payload[:min(length, 2)]) // the connection ends either way
		const normal, goingAway = 1000, 1001
		if length >= 2 {
			if code := binary.BigEndian.Uint16(payload); code != normal && code != goingAway {
				return fmt.Errorf("websocket: the server ended it with code %d: %.125q", code, payload[2:])
			}
		}
		return io.EOF
	}
	return nil
}

// reply writes a control frame from the reading goroutine. It sets a deadline, because the
// latest one is for another packet.
func (w *webSocket) reply(opcode byte, payload []byte) error {
	_ = w.SetWriteDeadline(time.Now().Add(w.writeTimeout)) // on a closed connection, the write fails
	_, err := w.write(opcode, payload)
	return err
}

// Write sends p in one message.
func (w *webSocket) Write(p []byte) (int, error) { return w.write(frameBinary, p) }

func (w *webSocket) write(opcode byte, p []byte) (int, error) {
	var mask [4]byte
	_, _ = rand.Read(mask[:]) // never fails, says its documentation
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frame = appendFrame(w.frame[:0], opcode, mask, p)
	if _, err := w.Conn.Write(w.frame); err != nil {
		return 0, err
	}
	return len(p), nil
}

// appendFrame appends a final, masked frame, as clients send them [RFC 6455, 5.1].
func appendFrame(frame []byte, opcode byte, mask [4]byte, payload []byte) []byte {
	frame = append(frame, frameFinal|opcode)
	switch length := len(payload); {
	case length < 126:
		frame = append(frame, frameMasked|byte(length))
	case length <= math.MaxUint16:
		frame = append(frame, frameMasked|126)
		frame = binary.BigEndian.AppendUint16(frame, uint16(length))
	default:
		frame = append(frame, frameMasked|127)
		frame = binary.BigEndian.AppendUint64(frame, uint64(length))
	}
	frame = append(frame, mask[:]...)
	start := len(frame)
	frame = append(frame, payload...)
	for i := range payload {
		frame[start+i] ^= mask[i%len(mask)]
	}
	return frame
}
