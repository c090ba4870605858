package tenurews_test

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/await"
)

// right is an answer to the handshake. $ stands for the server's answer to the key [RFC 6455, 4.2.2].
var right = []string{"HTTP/1.1 101 Switching Protocols", "Upgrade: WebSocket", "Connection: keep-alive, upgrade", "Sec-WebSocket-Accept: $", "Sec-WebSocket-Protocol: mqtt"}

var broker = &url.URL{Scheme: "ws", Host: "broker:80", Path: "/mqtt", RawQuery: "a=b"}

// answerTo returns an answer to a handshake.
func answerTo(request *http.Request, answer []string) string {
	sum := sha1.Sum([]byte(request.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return strings.ReplaceAll(strings.Join(answer, "\r\n"), "$", base64.StdEncoding.EncodeToString(sum[:])) + "\r\n\r\n"
}

// server is the other end of a connection. It answers the handshake, writes a stream and closes
// the connection, or leaves it open.
type server struct {
	request *http.Request // the handshake
	done    chan struct{} // closed when both ends are closed; the fields are for afterwards
}

// serve begins a server, and returns the client's end of the connection.
func serve(answer []string, stream string, open bool) (*server, net.Conn) {
	near, far := net.Pipe()
	s := &server{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer far.Close()
		reader := bufio.NewReader(far)
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		s.request = request
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			_, _ = io.WriteString(far, answerTo(request, answer)+stream)
			if !open {
				_ = far.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // the client's answer is on its way
			}
		}()
		_, _ = io.Copy(io.Discard, reader)
		_ = far.Close()
		await.Receive(wrote)
	}()
	return s, near
}

// upgraded returns the client's end of a WebSocket whose server writes a stream.
func upgraded(t testing.TB, stream string, open bool) (*server, net.Conn) {
	t.Helper()
	s, near := serve(right, stream, open)
	conn, err := tenurews.Upgrade(t.Context(), near, broker)
	if err != nil {
		_ = near.Close()
		t.Fatal(err)
	}
	return s, conn
}

// frameOf returns a short frame as a server sends it.
func frameOf(first byte, payload string) string {
	return string([]byte{first, byte(len(payload))}) + payload
}

func TestAWebSocketReadsWhatBinaryMessagesHold(t *testing.T) {
	for _, test := range []struct {
		name, stream, want string
		err                string // "": none, the stream just ends with a close frame
	}{
		{"one message", frameOf(0x82, "abc") + frameOf(0x88, ""), "abc", ""},
		{"a message in pieces", frameOf(0x02, "a") + frameOf(0x00, "b") + frameOf(0x80, "c") + frameOf(0x82, "d") + frameOf(0x88, "\x03\xE8"), "abcd", ""},
		{"a bad close frame", frameOf(0x82, "a") + frameOf(0x88, "\x03\xF0why"), "a", `"why"`},
		{"the end without a close frame", frameOf(0x82, "a"), "a", "EOF"},
		{"the end within a frame", frameOf(0x82, "abc")[:4], "ab", "unexpected EOF"},
		{"text", frameOf(0x81, "abc"), "", "binary data is expected"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, conn := upgraded(t, test.stream, false)
				got, err := io.ReadAll(conn)
				if (err == nil) != (test.err == "") || string(got) != test.want || !strings.Contains(fmt.Sprint(err), test.err) {
					t.Errorf("%.20q (%d bytes), %v; want %.20q (%d bytes), %s", got, len(got), err, test.want, len(test.want), test.err)
				}
				if strings.HasSuffix(test.err, "EOF") && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%v, which the client does not take for the end of the connection", err)
				}
				if _, again := conn.Read(make([]byte, 1)); again == nil {
					t.Error("it reads on after the end")
				}
				_ = conn.Close()
				await.Receive(s.done)
			})
		})
	}
}

func TestAWebSocketHandshakeThatIsNotAnsweredRightFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		line   int // of right that is replaced; len(right): added
		answer string
		want   string // "": it succeeds
	}{
		{"right", 4, "Sec-WebSocket-Protocol: mqtt", ""},
		{"a server that does not say what it speaks", 4, "X: y", ""},
		{"no such path", 0, "HTTP/1.1 404 Not Found", `"HTTP/1.1 404 Not Found"; check the path`},
		{"another protocol", 4, "Sec-WebSocket-Protocol: amqp", `"amqp"`},
		{"an extension", 5, "Sec-WebSocket-Extensions: permessage-deflate", "extension"},
		{"an answer without an end", 5, "X: " + strings.Repeat("x", 1<<14), "exceeded 16384 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := append(append([]string(nil), right[:test.line]...), test.answer)
				answer = append(answer, right[min(test.line+1, len(right)):]...)
				s, near := serve(answer, frameOf(0x82, "first"), true)
				conn, err := tenurews.Upgrade(t.Context(), near, broker)
				switch {
				case test.want != "":
					if err == nil || !strings.Contains(err.Error(), test.want) {
						t.Errorf("%v, want an error that says %q", err, test.want)
					}
				case err != nil:
					t.Error(err)
				default:
					first := make([]byte, 5)
					if _, err := io.ReadFull(conn, first); err != nil || string(first) != "first" {
						t.Errorf("%q, %v", first, err)
					}
				}
				_ = near.Close()
				await.Receive(s.done)
				if r := s.request; r.RequestURI != "/mqtt?a=b" || r.Host != "broker:80" || r.Header.Get("Sec-WebSocket-Protocol") != "mqtt" {
					t.Errorf("it asks %+v", r)
				}
			})
		})
	}
}

// The client closes the connection after an error, which ends what the handshake has begun:
// synctest fails if a goroutine is left.
func TestTheContextOfAWebSocketIsOfItsHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		why := errors.New("no more patience")
		short, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		if _, err := tenurews.Upgrade(short, near, broker); !errors.Is(err, why) {
			t.Errorf("%v, want %v", err, why)
		}
		_ = errors.Join(near.Close(), far.Close())

		s, near := serve(right, frameOf(0x82, "late"), true)
		ctx, end := context.WithCancel(t.Context())
		conn, err := tenurews.Upgrade(ctx, near, broker)
		if err != nil {
			t.Fatal(err)
		}
		end()
		synctest.Wait()
		late := make([]byte, 4)
		if _, err := io.ReadFull(conn, late); err != nil || string(late) != "late" {
			t.Errorf("%q, %v", late, err)
		}
		if _, err := conn.Write([]byte("too")); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		await.Receive(s.done)
	})
}

// Reading any stream ends, and yields no more bytes than the stream has.
func FuzzWebSocketRead(f *testing.F) {
	f.Add([]byte(frameOf(0x02, "a") + frameOf(0x89, "ping") + frameOf(0x80, "b") + frameOf(0x88, "\x03\xE8bye")))
	f.Add([]byte(frameOf(0x82, strings.Repeat("l", 125))))
	f.Add([]byte("\x82\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFx"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		synctest.Test(t, func(t *testing.T) {
			s, conn := upgraded(t, string(stream), false)
			if got, _ := io.ReadAll(conn); len(got) > len(stream) {
				t.Errorf("%d bytes of %d", len(got), len(stream))
			}
			_ = conn.Close()
			await.Receive(s.done)
		})
	})
}

// A frame of a WebSocket may be longer than any memory. Read returns its bytes as they
// arrive.
func TestInvariant44TheLengthOfAWebSocketFrameAllocatesNothing(t *testing.T) {
	for name, header := range map[string]string{
		"a message":         "\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
		"a ping":            "\x89\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",
		"a message of MQTT": "\x82\x7f\x00\x00\x00\x00\x10\x00\x00\x00" + "\x30\xff\xff\xff\x7f",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, conn := upgraded(t, header, false)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for {
					if _, err := conn.Read(make([]byte, 10)); err != nil {
						break
					}
				}
				runtime.ReadMemStats(&after)
				if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
					t.Errorf("it allocates %d bytes", used)
				}
				_ = conn.Close()
				await.Receive(s.done)
			})
		})
	}
}
