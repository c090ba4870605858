package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// scripted is a Conn with a reply that the test chooses, such as one that our store never
// sends.
type scripted struct {
	storeconn.Conn // what no test uses

	reply    transporttest.Reply
	sent     transporttest.Request
	requests int
}

func (*scripted) ClientID() string       { return "urn:node:a" } // colons are allowed
func (*scripted) Start(storeconn.Events) {}
func (*scripted) Close() error           { return nil }

func (s *scripted) RoundTrip(_ context.Context, request transporttest.Request) (transporttest.Reply, error) {
	s.sent = request
	s.requests++
	return s.reply, nil
}

func newScripted(t *testing.T) (*transport.Client, *scripted) {
	t.Helper()
	conn := &scripted{}
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client, conn
}

func TestEachVariantOfAReplyIsUnderstood(t *testing.T) {
	set := func(c *transport.Client) error {
		_, err := c.Set(context.Background(), "k", nil, transport.SetOptions{})
		return err
	}
	get := func(c *transport.Client) error { _, err := c.Get(context.Background(), "k"); return err }
	del := func(c *transport.Client) error {
		_, err := c.Del(context.Background(), "k", transport.DelOptions{})
		return err
	}
	vdel := func(c *transport.Client) error {
		_, err := c.VDel(context.Background(), "k", nil, transport.DelOptions{})
		return err
	}
	for _, test := range []struct {
		name, reply string
		do          func(*transport.Client) error
		want        error // nil: success
	}{
		{"SET applied", "+OK\r\n", set, nil},
		{"SET refused, as deployed", ":-1\r\n", set, transport.ErrConditionFailed},
		{"SET refused, as documented", "-1\r\n", set, transport.ErrConditionFailed},
		{"VDEL refused, as deployed", ":-1\r\n", vdel, transport.ErrConditionFailed},
		{"VDEL refused, as documented", "-1\r\n", vdel, transport.ErrConditionFailed},
		{"GET missing", "$-1\r\n", get, nil},
		{"GET found", "$1\r\nv\r\n", get, nil},
		{"DEL", ":1\r\n", del, nil},
		{"DEL of a missing key", ":0\r\n", del, nil},
		{"an error", "-ERR not authorized\r\n", set, transport.ErrNotAuthorized},
		{"an error without its line end", "-ERR not authorized", set, transport.ErrNotAuthorized},
		{"an error with a colon", "-ERR: not authorized\r\n", get, transport.ErrNotAuthorized},
		{"the lower token, as published", "-ERR the request fencing token is a lower version that the fencing token protecting the resource\r\n", set, transport.ErrFencingTokenLower},
		{"an error whose text is not known", "-ERR the flux is too dense\r\n", get, &transport.RefusedError{}},
		{"DEL answered like a GET", "$1\r\nv\r\n", del, transport.ErrBadReply},
		{"DEL answered like a VDEL", ":-1\r\n", del, transport.ErrBadReply},
		{"GET answered like a SET", "+OK\r\n", get, transport.ErrBadReply},
		{"SET answered like a DEL", ":1\r\n", set, transport.ErrBadReply},
		{"SET answered with another word", "+QUEUED\r\n", set, transport.ErrBadReply},
		{"nonsense", "nonsense", get, transport.ErrBadReply},
		{"nothing", "", get, transport.ErrBadReply},
	} {
		t.Run(test.name, func(t *testing.T) {
			client, conn := newScripted(t)
			conn.reply.Payload = []byte(test.reply)
			err := test.do(client)
			refused, isRefused := test.want.(*transport.RefusedError)
			if isRefused && errors.As(err, &refused) && "ERR "+refused.Text == strings.TrimSpace(test.reply[1:]) {
				return
			}
			if !errors.Is(err, test.want) {
				t.Fatalf("%v, want %v", err, test.want)
			}
			// What cannot be read may have been applied.
			if got := errors.Is(err, transport.ErrOutcomeUnknown); got != errors.Is(test.want, transport.ErrBadReply) {
				t.Errorf("outcome unknown: %v (%v)", got, err)
			}
		})
	}
}

func TestAReplyWithoutAVersionIsAccepted(t *testing.T) {
	client, conn := newScripted(t)
	conn.reply.Payload = []byte("+OK\r\n")
	if version, err := client.Set(t.Context(), "k", nil, transport.SetOptions{}); err != nil || !version.IsZero() {
		t.Errorf("%v, %v", version, err)
	}
	conn.reply.Timestamp = "not a timestamp"
	if _, err := client.Set(t.Context(), "k", nil, transport.SetOptions{}); !errors.Is(err, transport.ErrBadReply) {
		t.Errorf("a malformed version: %v, want ErrBadReply", err)
	}
}

// The error names the wrong clock, by how much it is wrong, and what to do.
func TestARefusalForAClockSaysWhichClockAndByHowMuch(t *testing.T) {
	client, conn := newScripted(t)
	conn.reply.Payload = []byte("-ERR the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n")
	token := hlc.Token{Wall: 1795262700000, Counter: 3, Node: "StateStore"}
	_, err := client.Set(t.Context(), "k", nil, transport.SetOptions{FencingToken: token})
	var refused *transport.RefusedError
	if !errors.Is(err, transport.ErrFencingTokenTooFarAhead) || !errors.As(err, &refused) || errors.Is(err, transport.ErrOutcomeUnknown) ||
		!strings.Contains(err.Error(), "the fencing token is 1795262700000:3:StateStore: synchronize") ||
		!strings.Contains(err.Error(), "clocks of the store and of the node where") {
		t.Errorf("%v", err)
	}
	// A refusal about a token that was not sent is only quoted.
	_, err = client.Del(t.Context(), "k", transport.DelOptions{})
	if !errors.Is(err, transport.ErrFencingTokenTooFarAhead) || strings.Contains(err.Error(), "synchronize the clocks of the store") {
		t.Errorf("without a token: %v", err)
	}
}

func TestInvariant40AStoreWhoseClockIsAheadIsReported(t *testing.T) {
	var log strings.Builder
	conn := &scripted{}
	client, err := transport.NewClient(conn, transport.ClientOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	for _, ahead := range []time.Duration{0, time.Hour, time.Hour, time.Hour, 30 * time.Second} {
		version := hlc.Timestamp{Wall: time.Now().Add(ahead).UnixMilli(), Node: "StateStore"}
		conn.reply = transporttest.Reply{Payload: []byte("$1\r\nv\r\n"), Timestamp: version.String()}
		if entry, err := client.Get(t.Context(), "k"); err != nil || entry.Version != version {
			t.Fatalf("%+v, %v", entry, err)
		}
	}
	if err := client.Close(); err != nil { // what waits is written
		t.Error(err)
	}
	if got := strings.Count(log.String(), "level=WARN"); got != 1 {
		t.Errorf("%d warnings, want one in a second:\n%s", got, log.String())
	}
}

func TestWhatIsSentIsWhatTheProtocolWants(t *testing.T) {
	client, conn := newScripted(t)
	token := hlc.Token{Wall: 1, Counter: 2, Node: "n"}
	for _, test := range []struct {
		name string
		do   func() error
		want string
		ts   bool
		ft   string
	}{
		{"set", func() error { _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); return err },
			"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n", true, ""},
		{"set with everything", func() error {
			_, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{
				Condition: transport.IfMissingOrEqual, TTL: 1500 * time.Millisecond, FencingToken: token,
			})
			return err
		}, "*6\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n$3\r\nNEX\r\n$2\r\nPX\r\n$4\r\n1500\r\n", true, "1:2:n"},
		{"set if missing", func() error {
			_, err := client.Set(t.Context(), "k", nil, transport.SetOptions{Condition: transport.IfMissing})
			return err
		}, "*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n$2\r\nNX\r\n", true, ""},
		{"get", func() error { _, err := client.Get(t.Context(), "k"); return err },
			"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", false, ""},
		{"del", func() error {
			_, err := client.Del(t.Context(), "k", transport.DelOptions{FencingToken: token})
			return err
		}, "*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n", false, "1:2:n"},
		{"vdel", func() error {
			_, err := client.VDel(t.Context(), "k", []byte("v"), transport.DelOptions{})
			return err
		}, "*3\r\n$4\r\nVDEL\r\n$1\r\nk\r\n$1\r\nv\r\n", false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn.reply.Payload = []byte("+OK\r\n")
			_ = test.do() // some find the reply odd
			if got := string(conn.sent.Payload); got != test.want {
				t.Errorf("payload %q, want %q", got, test.want)
			}
			if (conn.sent.Timestamp != "") != test.ts || conn.sent.FencingToken != test.ft {
				t.Errorf("__ts %q, __ft %q", conn.sent.Timestamp, conn.sent.FencingToken)
			}
		})
	}
}

func TestEachRequestIsTracedOnceWithItsOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type caller struct{}
		var got []string
		store := transporttest.Start(t)
		client, conn := store.Client(t, "a", transport.ClientOptions{Trace: &transport.Trace{
			Request: func(ctx context.Context, info transport.RequestInfo) {
				if strings.Contains(fmt.Sprint(info.Err), "transport:") || !info.Began.Add(info.Duration).Equal(time.Now()) {
					t.Errorf("%+v", info)
				}
				got = append(got, fmt.Sprint(ctx.Value(caller{}), " ", info.Verb, " ", info.Key, " ", transport.OutcomeText(info.Err), " ", info.Duration))
			},
		}})
		ctx := context.WithValue(t.Context(), caller{}, "caller")
		bounded := func() context.Context {
			bounded, cancel := context.WithTimeout(ctx, 3*time.Second)
			t.Cleanup(cancel)
			return bounded
		}
		_, _ = client.Set(ctx, "k", []byte("v"), transport.SetOptions{})
		_, _ = client.Set(ctx, "k", nil, transport.SetOptions{Condition: transport.IfMissing})
		_, _ = client.Set(ctx, "k", nil, transport.SetOptions{TTL: 1}) // an option that makes no sense
		_, _ = client.Get(ctx, "k")
		_, _ = client.VDel(ctx, "k", []byte("other"), transport.DelOptions{})
		_, _ = client.VDel(ctx, "k", nil, transport.DelOptions{Forced: "\n"}) // likewise
		_, _ = client.Del(ctx, "", transport.DelOptions{})                    // the store refuses it
		conn.SetFault(func(transporttest.Request) transporttest.Fault { return transporttest.Fault{LoseReply: true} })
		_, _ = client.Del(bounded(), "k", transport.DelOptions{})
		conn.SetFault(nil)
		conn.Cut()
		_, _ = client.Get(bounded(), "k")
		synctest.Wait()
		want := []string{
			"caller SET k ok 0s", "caller SET k condition_failed 0s", "caller SET k not_sent 0s", "caller GET k ok 0s",
			"caller VDEL k condition_failed 0s", "caller VDEL k not_sent 0s", "caller DEL  refused 0s", "caller DEL k unknown 3s", "caller GET k not_sent 3s",
		}
		if !slices.Equal(got, want) {
			t.Errorf("traced\n%q, want\n%q", got, want)
		}
	})
}

// notified is a Conn with notifications that the test makes.
type notified struct {
	scripted
	events storeconn.Events
}

func (n *notified) Start(events storeconn.Events) { n.events = events }

// flood delivers notifications whose versions are in turns an hour ahead and right, as a peer can send
// them. Each makes a line for the log.
func (n *notified) flood(count int) {
	for i := range count {
		wall := time.Now().Add(time.Duration(i%2) * time.Hour).UnixMilli()
		n.events.Notify(transporttest.Notification{
			Key:       "k",
			Payload:   resp3.AppendCommand(nil, "NOTIFY", "DELETE"),
			Timestamp: hlc.Timestamp{Wall: wall, Node: "StateStore"}.String(),
		})
	}
}

// A peer chooses how often the clocks disagree, and which store says that it answers.
func TestAPeerDoesNotFillTheLogWithWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbuffer.Buffer
		conn := &notified{scripted: scripted{reply: transporttest.Reply{Payload: []byte("$1\r\nv\r\n")}}}
		client, err := transport.NewClient(conn, transport.ClientOptions{Logger: log.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		const seconds, often = 10, 100
		for i := range seconds * often {
			conn.flood(2)
			conn.reply.Store = strconv.Itoa(i % 2)
			if _, err := client.Get(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second / often)
		}
		for _, text := range []string{"disagree", "another store answers"} {
			if lines := strings.Count(log.String(), text); lines == 0 || lines > seconds/2 {
				t.Errorf("%q: %d lines in %d seconds, want the first and a few of the others", text, lines, seconds)
			}
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Errors go into logs, and a request that is refused may be repeated for ever.
func TestAnErrorShowsTheBeginningOfATextThatAPeerHasChosen(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	for _, err := range []error{
		&transport.RefusedError{Text: long},
		&transport.RejectedError{Code: 503, Reason: long},
		&transport.ConnectionError{Code: 0x9C, Reason: long, ServerReference: long},
		&transport.ConnectionError{Ended: true, Code: 0x9C, Reason: long, ServerReference: long},
	} {
		if text := err.Error(); len(text) > 4096 || !strings.Contains(text, "é") {
			t.Errorf("%T has a text of %d bytes, want a short one with the beginning: %.100q", err, len(text), text)
		}
	}
}
