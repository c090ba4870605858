package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
)

// describe makes a status easy to compare.
func describe(status ConnectionStatus) string {
	return fmt.Sprintf("%t %d %t", status.Connected, status.Connections, status.Err == nil)
}

// traced is a Trace that calls tell with each change of the connection.
func traced(tell func(ConnectionStatus)) *Trace {
	return &Trace{Connected: tell, ConnectFailed: tell, Lost: tell}
}

func TestATraceThatHangsDoesNotDelayTheConnectionAndCausesNoFlood(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		release := make(chan struct{})
		var told []string
		options.Trace = traced(func(status ConnectionStatus) {
			told = append(told, describe(status))
			await.Receive(release)
		})
		var log logbuffer.Buffer
		options.Logger = log.Logger()
		b := &pipeBroker{}
		client := mustDialTo(t, b, options)
		const losses = 10
		for range losses {
			synctest.Wait()
			b.cut()
			time.Sleep(10 * time.Second)
		}
		if got, want := describe(client.Connection()), fmt.Sprintf("true %d true", losses+1); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		others := 0
		for range maxCalls {
			client.Dispatch(func() { others++ })
		}
		close(release)
		synctest.Wait()
		if len(told) != 2*losses+1 || others != maxCalls-2*losses || told[0] != "true 1 true" || told[1] != "false 1 false" || told[2] != "true 2 true" {
			t.Errorf("told %d times and %d others, first %q", len(told), others, told[:3])
		}
		if want := fmt.Sprintf("dropped=%d", 2*losses); !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s: %s", want, log.String())
		}
	})
}

func TestDroppedCallsAreLoggedThoughOthersAlwaysWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d dispatcher
		var log logbuffer.Buffer
		d.logger(log.Logger())
		turn := make(chan struct{})
		for range maxCalls + 10 {
			d.call(func() { await.Receive(turn) })
		}
		turn <- struct{}{}
		synctest.Wait()
		if !strings.Contains(log.String(), "dropped=") {
			t.Errorf("the log says nothing: %s", log.String())
		}
		close(turn)
		d.close()
	})
}

func TestSilenceOfABrokerThatTookTheRequestSaysThatNoStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		answers := false
		b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
			if publish, ok := packet.Content.(*packets.Publish); ok && answers {
				reply(conn, publish)
			}
			return false
		}
		client := mustDialTo(t, b, Options{})
		_, err := client.Get(t.Context(), "k")
		if !errors.Is(err, ErrNoStore) || !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no answer: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := client.Get(ctx, "k"); errors.Is(err, ErrNoStore) || !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("the caller leaves: %v", err)
		}
		answers = true
		if _, err := client.Get(t.Context(), "k"); err != nil {
			t.Errorf("a store answers: %v", err)
		}
		answers = false
		if _, err := client.Get(t.Context(), "k"); errors.Is(err, ErrNoStore) || !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("a store has answered, and is silent now: %v", err)
		}
	})
}

func TestTheBrokersReasonsAreTyped(t *testing.T) {
	sentinels := []error{ErrNotAuthorized, ErrServerBusy, ErrPacketTooLarge, ErrQuotaExceeded, ErrUseAnotherServer}
	for _, test := range []struct {
		code byte
		want error // among the sentinels; nil: none
	}{
		{0x80, nil}, {0x87, ErrNotAuthorized}, {0x88, ErrServerBusy}, {0x89, ErrServerBusy}, {0x8B, nil},
		{0x95, ErrPacketTooLarge}, {0x97, ErrQuotaExceeded},
		{0x9C, ErrUseAnotherServer}, {0x9D, ErrUseAnotherServer}, {0x9F, ErrServerBusy},
	} {
		for _, err := range []error{&ConnectionError{Code: test.code}, &ConnectionError{Ended: true, Code: test.code, Reason: "why"}, &RejectedError{Code: int(test.code)}} {
			for _, sentinel := range sentinels {
				if errors.Is(err, sentinel) != (sentinel == test.want) {
					t.Errorf("%T: is %v %q? %t", err, err, sentinel, errors.Is(err, sentinel))
				}
			}
			if !strings.Contains(err.Error(), fmt.Sprintf("0x%02X", test.code)) {
				t.Errorf("%v does not name the code 0x%02X", err, test.code)
			}
		}
	}
}

func TestARequestUnderWayLearnsWhyTheBrokerEndedTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
			if _, ok := packet.Content.(*packets.Publish); !ok {
				return false
			}
			send(conn, packets.DISCONNECT, func(p *packets.Disconnect) {
				p.ReasonCode, p.Properties.ReasonString = packets.ConnackPacketTooLarge, "too large for me"
			})
			return true
		}}
		_, err := mustDialTo(t, b, Options{}).Get(t.Context(), "k")
		var ended *ConnectionError
		if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrPacketTooLarge) || !errors.As(err, &ended) || ended.Reason != "too large for me" {
			t.Errorf("%v", err)
		}
	})
}

func TestChangesOfTheConnectionAreTracedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{down: true}
		var mu sync.Mutex
		var got []string
		add := func(text string) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, text)
		}
		time.AfterFunc(time.Second, func() { b.mu.Lock(); b.down = false; b.mu.Unlock() })
		failures := 0
		client := mustDialTo(t, b, Options{ReconnectMin: 3 * time.Second, ReconnectMax: 3 * time.Second, ClientOptions: ClientOptions{Trace: &Trace{
			Connected: func(info ConnectionStatus) { add(fmt.Sprintf("connected %d to %s", info.Connections, info.Broker)) },
			ConnectFailed: func(info ConnectionStatus) {
				if failures++; failures == 1 {
					add(fmt.Sprintf("failed at %s: %v", info.Broker, info.Err))
				}
			},
			Lost: func(info ConnectionStatus) { add(fmt.Sprintf("lost %t: %v", !info.Ended, info.Err)) },
		}}})
		time.Sleep(time.Minute)
		b.cut()
		time.Sleep(time.Minute)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		want := []string{
			"failed at mqtt://broker:1883: broker is down", "connected 1 to mqtt://broker:1883", "lost true: the connection was lost",
			"connected 2 to mqtt://broker:1883", "lost false: the client is closed",
		}
		if !slices.Equal(got, want) {
			t.Errorf("traced\n%q, want\n%q", got, want)
		}
	})
}

func (b *pipeBroker) refuseToDial(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

// lineHandler is a handler of a program.
type lineHandler struct {
	slog.Handler
	handle func()
}

func (h lineHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h lineHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }

func (h lineHandler) Handle(context.Context, slog.Record) error {
	h.handle()
	return nil
}

// What a program learns of a client that it has closed, such as that a lease could not be released, is logged.
func TestALineThatComesAfterCloseIsWritten(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		client := mustDialTo(t, &pipeBroker{}, options)
		written := 0
		logger := client.Dispatched(slog.New(lineHandler{slog.DiscardHandler, func() { written++ }}))
		logger.Info("before")
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		logger.Info("after")
		if written != 2 {
			t.Errorf("%d lines were written, want 2", written)
		}
	})
}

// A client that gives up an attempt connects again. A server that was frozen handles the CONNECT of the
// first attempt later, and takes the second one over. Another program with the client id still ends it.
func TestAnOwnConnectThatIsHandledLateEndsNoClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		var connects atomic.Int64
		b.answer = func(_ net.Conn, packet *packets.ControlPacket) bool {
			return packet.Type == packets.CONNECT && connects.Add(1) <= 2 // the first two attempts get no answer
		}
		client := mustDialTo(t, b, Options{})
		takeOver := func() {
			send(b.present(), packets.DISCONNECT, func(p *packets.Disconnect) { p.ReasonCode = packets.DisconnectSessionTakenOver })
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		for range 2 {
			takeOver()
			if status := client.Connection(); !status.Connected {
				t.Fatalf("after its own CONNECT was handled: %v", status)
			}
		}
		takeOver()
		if status := client.Connection(); !errors.Is(status.Err, ErrSessionTakenOver) {
			t.Errorf("after another program has connected: %v", status)
		}
	})
}

// The client may be closed after the broker has granted its subscription and before requests can leave: Dial and Close
// would wait for ever for a connection that nothing ends.
func TestAConnectionThatIsMadeWhileTheClientClosesIsNotEstablished(t *testing.T) {
	life, end := context.WithCancelCause(t.Context())
	end(ErrClosed)
	c := &mqttConn{life: life}
	if err := c.established(&link{down: make(chan struct{})}); !errors.Is(err, ErrClosed) {
		t.Errorf("the connection is established, or the error is %v", err)
	}
}
