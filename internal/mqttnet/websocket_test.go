package mqttnet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// frameOf returns a frame as a server sends it.
func frameOf(first byte, payload string) string {
	header := []byte{first}
	switch length := len(payload); {
	case length < 126:
		header = append(header, byte(length))
	case length <= math.MaxUint16:
		header = binary.BigEndian.AppendUint16(append(header, 126), uint16(length))
	default:
		header = binary.BigEndian.AppendUint64(append(header, 127), uint64(length))
	}
	return string(header) + payload
}

// endOf returns a WebSocket that reads from stream, and the buffer that it writes to.
func endOf(stream io.Reader) (*webSocket, *bytes.Buffer) {
	written := new(bytes.Buffer)
	limited := &io.LimitedReader{R: stream, N: math.MaxInt64}
	return &webSocket{Conn: recorded{Buffer: written}, limited: limited, reader: bufio.NewReader(limited)}, written
}

// recorded is a connection that writes to a buffer.
type recorded struct {
	net.Conn
	*bytes.Buffer
}

func (r recorded) Read(p []byte) (int, error)       { return r.Buffer.Read(p) }
func (r recorded) Write(p []byte) (int, error)      { return r.Buffer.Write(p) }
func (r recorded) SetWriteDeadline(time.Time) error { return nil }

func TestAWebSocketReadsWhatBinaryMessagesHold(t *testing.T) {
	long, longer := strings.Repeat("l", 126), strings.Repeat("m", 1<<16)
	for _, test := range []struct {
		name, stream, want string
		err                string // "": none, the stream just ends with a farewell
	}{
		{"one message", frameOf(0x82, "abc") + frameOf(0x88, ""), "abc", ""},
		{"each length", frameOf(0x82, "") + frameOf(0x82, long) + frameOf(0x82, longer) + frameOf(0x88, ""), long + longer, ""},
		{"a message in pieces", frameOf(0x02, "a") + frameOf(0x00, "b") + frameOf(0x80, "c") + frameOf(0x82, "d") + frameOf(0x88, ""), "abcd", ""},
		{"a ping and a pong between the pieces", frameOf(0x02, "a") + frameOf(0x89, "ping") + frameOf(0x8A, "") + frameOf(0x80, "b") + frameOf(0x88, ""), "ab", ""},
		{"a farewell with a reason", frameOf(0x88, "\x03\xE8bye"), "", ""},
		{"a bad farewell", frameOf(0x82, "a") + frameOf(0x88, "\x03\xF0why"), "a", `code 1008: "why"`},
		{"the end without a farewell", frameOf(0x82, "a"), "a", "EOF"},
		{"the end within a frame", frameOf(0x82, "abc")[:4], "ab", "unexpected EOF"},
		{"the end within a header", "\x82", "", "unexpected EOF"},
		{"text", frameOf(0x81, "abc"), "", "binary data is expected"},
		{"a reserved bit", frameOf(0xC2, "abc"), "", "binary data is expected"},
		{"a continuation of nothing", frameOf(0x80, "abc"), "", "binary data is expected"},
		{"a message within a message", frameOf(0x02, "a") + frameOf(0x82, "b"), "a", "binary data is expected"},
		{"a ping in pieces", frameOf(0x09, "a"), "", "control frame"},
		{"a ping that is too long", frameOf(0x89, long), "", "control frame"},
		{"a masked frame", "\x82\x81masked", "", "masks"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, _ := endOf(strings.NewReader(test.stream))
			got, err := io.ReadAll(w)
			if test.err == "EOF" || test.err == "" {
				test.err = "<nil>" // of io.ReadAll
			}
			if string(got) != test.want || !strings.Contains(fmt.Sprint(err), test.err) {
				t.Errorf("%.20q (%d bytes), %v; want %.20q (%d bytes), %s", got, len(got), err, test.want, len(test.want), test.err)
			}
			if _, again := w.Read(make([]byte, 1)); again == nil {
				t.Error("it reads on after the end")
			}
		})
	}
}

// unmasked reads a client's frame.
func unmasked(t testing.TB, stream *bytes.Buffer) (first byte, payload string) {
	t.Helper()
	header := stream.Next(2)
	if len(header) < 2 || header[1]&0x80 == 0 {
		t.Fatalf("% x is not the header of a masked frame", header)
	}
	length := uint64(header[1] & 0x7F)
	switch length {
	case 126:
		length = uint64(binary.BigEndian.Uint16(stream.Next(2)))
	case 127:
		length = binary.BigEndian.Uint64(stream.Next(8))
	}
	mask := bytes.Clone(stream.Next(4))
	masked := bytes.Clone(stream.Next(int(length)))
	for i := range masked {
		masked[i] ^= mask[i%4]
	}
	return header[0], string(masked)
}

func TestAWebSocketWritesMaskedBinaryMessages(t *testing.T) {
	for _, length := range []int{0, 1, 125, 126, 1<<16 - 1, 1 << 16} {
		w, written := endOf(strings.NewReader(""))
		payload := bytes.Repeat([]byte{'p'}, length)
		if n, err := w.Write(payload); n != length || err != nil {
			t.Fatalf("%d bytes: %d, %v", length, n, err)
		}
		if strings.Trim(string(payload), "p") != "" {
			t.Errorf("%d bytes: what was to be written is changed", length)
		}
		first, got := unmasked(t, written)
		if first != 0x82 || got != string(payload) || written.Len() > 0 {
			t.Errorf("%d bytes: frame 0x%X with %d bytes", length, first, len(got))
		}
	}
}

func TestAWebSocketAnswersPingsAndTheFarewell(t *testing.T) {
	w, written := endOf(strings.NewReader(frameOf(0x89, "now?") + frameOf(0x88, "\x03\xE8bye")))
	if got, err := io.ReadAll(w); len(got) > 0 || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	if first, payload := unmasked(t, written); first != 0x8A || payload != "now?" {
		t.Errorf("to the ping: 0x%X %q", first, payload)
	}
	if first, payload := unmasked(t, written); first != 0x88 || payload != "\x03\xE8" {
		t.Errorf("to the farewell: 0x%X %q", first, payload)
	}
}

func TestAWebSocketHandshakeThatIsNotAnsweredRightFails(t *testing.T) {
	right := []string{"HTTP/1.1 101 Switching Protocols", "Upgrade: WebSocket", "Connection: keep-alive, upgrade", "Sec-WebSocket-Accept: $", "Sec-WebSocket-Protocol: mqtt"}
	for _, test := range []struct {
		name   string
		line   int // that is replaced; len(right): added
		answer string
		want   string // "": it succeeds
	}{
		{"right", 4, "Sec-WebSocket-Protocol: mqtt", ""},
		{"a server that does not say what it speaks", 4, "X: y", ""},
		{"no such path", 0, "HTTP/1.1 404 Not Found", `"HTTP/1.1 404 Not Found"; check the path`},
		{"not HTTP", 0, "220 mail", `"220 mail"`},
		{"no upgrade", 1, "Upgrade: h2c", "does not upgrade"},
		{"no connection to upgrade", 2, "Connection: close", "does not upgrade"},
		{"the key of another", 3, "Sec-WebSocket-Accept: x", "for another request"},
		{"another protocol", 4, "Sec-WebSocket-Protocol: amqp", `speaks "amqp"`},
		{"an extension", 5, "Sec-WebSocket-Extensions: permessage-deflate", "extension"},
		{"an answer without an end", 5, "X: " + strings.Repeat("x", maxHandshake), "EOF"},
	} {
		t.Run(test.name, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			served := make(chan string, 1)
			go func() {
				defer far.Close()
				reader := bufio.NewReader(far)
				request, key := "", ""
				for !strings.HasSuffix(request, "\r\n\r\n") {
					line, err := reader.ReadString('\n')
					if err != nil {
						break
					}
					request += line
					if name, value, _ := strings.Cut(line, ": "); name == "Sec-WebSocket-Key" {
						key = strings.TrimSpace(value)
					}
				}
				served <- request
				answer := append([]string(nil), right...)
				answer = append(answer[:test.line], append([]string{test.answer}, answer[min(test.line+1, len(answer)):]...)...)
				text := strings.ReplaceAll(strings.Join(answer, "\r\n"), "$", acceptKey(key)) + "\r\n\r\n"
				_, _ = io.WriteString(far, text+frameOf(0x82, "first"))
			}()
			w, err := openWebSocket(t.Context(), near, &url.URL{Scheme: "ws", Host: "broker:80", Path: "/mqtt", RawQuery: "a=b"}, time.Minute)
			if request := await.Receive(served); !strings.HasPrefix(request, "GET /mqtt?a=b HTTP/1.1\r\nHost: broker:80\r\n") || !strings.Contains(request, "Sec-WebSocket-Protocol: mqtt\r\n") {
				t.Errorf("it asks %q", request)
			}
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want an error that says %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			first := make([]byte, 5)
			if _, err := io.ReadFull(w, first); err != nil || string(first) != "first" {
				t.Errorf("%q, %v", first, err)
			}
		})
	}
}

// [RFC 6455, 1.3] has this pair.
func TestTheAcceptKeyIsThatOfTheStandard(t *testing.T) {
	if got := acceptKey("dGhlIHNhbXBsZSBub25jZQ=="); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Error(got)
	}
}

func TestAWebSocketHandshakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := openWebSocket(ctx, near, &url.URL{Scheme: "ws", Host: "broker:80"}, time.Minute)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want DeadlineExceeded", err)
		}
	})
}

// Reading any stream ends, and yields no more bytes than the stream has.
func FuzzWebSocketRead(f *testing.F) {
	f.Add([]byte(frameOf(0x02, "a") + frameOf(0x89, "ping") + frameOf(0x80, "b") + frameOf(0x88, "\x03\xE8bye")))
	f.Add([]byte(frameOf(0x82, strings.Repeat("l", 126))))
	f.Add([]byte("\x82\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFx"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		w, _ := endOf(bytes.NewReader(stream))
		if got, _ := io.ReadAll(w); len(got) > len(stream) {
			t.Errorf("%d bytes of %d", len(got), len(stream))
		}
	})
}

// A frame of a WebSocket may be longer than any memory. Read returns its bytes as they
// arrive.
func TestInvariant44TheLengthOfAWebSocketFrameAllocatesNothing(t *testing.T) {
	for name, header := range map[string]string{
		"a message":         "\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
		"a part of one":     "\x02\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",
		"a ping":            "\x89\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",
		"a farewell":        "\x88\x7e\xff\xff",
		"a message of MQTT": "\x82\x7f\x00\x00\x00\x00\x10\x00\x00\x00" + "\x30\xff\xff\xff\x7f",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _ := endOf(strings.NewReader(header))
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for {
					if _, err := w.Read(make([]byte, 10)); err != nil {
						break
					}
				}
				runtime.ReadMemStats(&after)
				if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
					t.Errorf("it allocates %d bytes", used)
				}
			})
		})
	}
}
