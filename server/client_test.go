package server_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// dial returns our client, connected, until the test ends.
func dial(t *testing.T, address string, options transport.Options) *transport.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := transport.Dial(ctx, "mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return client
}

func TestTheClientGetsEachOutcomeOfTheStore(t *testing.T) {
	ctx := t.Context()
	client := dial(t, start(t, server.Options{Store: statestore.Options{MaxKeys: 2}}), transport.Options{})
	key := "any \x00 bytes +/#"
	first, err := client.Set(ctx, key, []byte("v"), transport.SetOptions{TTL: time.Minute})
	if err != nil || first.IsZero() {
		t.Fatalf("Set: %v, %v", first, err)
	}
	if entry, err := client.Get(ctx, key); err != nil || string(entry.Value) != "v" || entry.Version != first {
		t.Errorf("Get: %+v, %v", entry, err)
	}
	if version, err := client.Set(ctx, key, []byte("w"), transport.SetOptions{Condition: transport.IfMissing}); version != first || !errors.Is(err, transport.ErrConditionFailed) {
		t.Errorf("Set NX of a key that exists: %v, %v; want %v and ErrConditionFailed", version, err, first)
	}
	renewed, err := client.Set(ctx, key, []byte("v"), transport.SetOptions{Condition: transport.IfMissingOrEqual})
	if err != nil || renewed.Compare(first) <= 0 {
		t.Errorf("Set NEX of the same value: %v, %v", renewed, err)
	}
	if _, err := client.VDel(ctx, key, []byte("w"), transport.DelOptions{}); !errors.Is(err, transport.ErrConditionFailed) {
		t.Errorf("VDel of another value: %v", err)
	}
	if deleted, err := client.VDel(ctx, key, []byte("v"), transport.DelOptions{}); !deleted || err != nil {
		t.Errorf("VDel: %v, %v", deleted, err)
	}
	if deleted, err := client.Del(ctx, key, transport.DelOptions{}); deleted || err != nil {
		t.Errorf("Del of a missing key: %v, %v", deleted, err)
	}
	if entry, err := client.Get(ctx, key); err != nil || entry.Exists {
		t.Errorf("Get of a missing key: %+v, %v", entry, err)
	}
	token := hlc.Token(renewed)
	if _, err := client.Set(ctx, "fenced", nil, transport.SetOptions{FencingToken: token}); err != nil {
		t.Errorf("Set with a token: %v", err)
	}
	if _, err := client.Del(ctx, "fenced", transport.DelOptions{}); !errors.Is(err, transport.ErrFencingTokenRequired) {
		t.Errorf("Del without a token: %v", err)
	}
	if _, err := client.Set(ctx, "fenced", nil, transport.SetOptions{FencingToken: hlc.Token(first)}); !errors.Is(err, transport.ErrFencingTokenLower) {
		t.Errorf("Set with an older token: %v", err)
	}
	if _, err := client.Get(ctx, ""); !errors.Is(err, transport.ErrKeyLengthZero) {
		t.Errorf("an empty key: %v", err)
	}
	_, _ = client.Set(ctx, "second", nil, transport.SetOptions{})
	_, err = client.Set(ctx, "third", nil, transport.SetOptions{})
	var refused *transport.RefusedError
	if !errors.As(err, &refused) || !errors.Is(err, transport.ErrQuotaExceeded) || !strings.Contains(err.Error(), `SET "third"`) {
		t.Errorf("over the quota: %v", err)
	}
}

// A store of ours keeps all keys alike, and takes a SET that asks for more.
func TestASetThatAsksForPersistenceIsTakenByEveryStoreOfOurs(t *testing.T) {
	for _, test := range []struct {
		name  string
		start func(t *testing.T) (address string)
	}{
		{"our server", func(t *testing.T) string { return start(t, server.Options{}) }},
		{"attached", func(t *testing.T) string {
			address := mosquitto.Start(t, "").Address
			attach(t, address, server.AttachOptions{})
			return address
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := dial(t, test.start(t), transport.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{Persist: true}); err != nil {
				t.Fatal(err)
			}
			if entry, err := client.Get(ctx, "k"); err != nil || string(entry.Value) != "v" {
				t.Errorf("%+v, %v", entry, err)
			}
		})
	}
}

func TestARequestUnderWayFailsAtOnceAsUnknownWhenTheConnectionDrops(t *testing.T) {
	through := newProxy(t, start(t, server.Options{}))
	client := dial(t, through.address(), transport.Options{})
	through.hold(answers)
	failed := make(chan error, 1)
	go func() {
		_, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{})
		failed <- err
	}()
	other := dial(t, *through.target.Load(), transport.Options{})
	for { // it was applied, and the answer is held
		if entry, err := other.Get(t.Context(), "k"); err != nil || entry.Exists {
			break
		}
	}
	began := time.Now()
	through.release(answers)
	through.cut()
	select {
	case err := <-failed:
		// The answer may have slipped through as the hold ended.
		if err != nil && !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("after %v: %v, want ErrOutcomeUnknown", time.Since(began), err)
		}
	case <-time.After(patience):
		t.Error("it hangs")
	}
}

func TestInvariant21ARequestThatWaitsForAConnectionIsSentInTimeOrNever(t *testing.T) {
	address := start(t, server.Options{})
	through := newProxy(t, address)
	client, other := dial(t, through.address(), transport.Options{}), dial(t, address, transport.Options{})
	through.refuses(true)
	through.cut()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for { // until the loss was noticed
		_, err := client.Set(ctx, "never", nil, transport.SetOptions{})
		if errors.Is(err, transport.ErrNotSent) && errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if !errors.Is(err, transport.ErrOutcomeUnknown) && !errors.Is(err, transport.ErrNotSent) {
			t.Fatalf("Set without a connection: %v, want ErrNotSent", err)
		}
	}
	_, _ = other.Del(t.Context(), "never", transport.DelOptions{}) // in case the first try got through
	waiting := make(chan error, 1)
	go func() {
		_, err := client.Set(t.Context(), "later", nil, transport.SetOptions{})
		waiting <- err
	}()
	through.refuses(false)
	if err := await.Receive(waiting); err != nil {
		t.Errorf("a Set that could wait: %v", err)
	}
	if entry, err := other.Get(t.Context(), "never"); err != nil || entry.Exists {
		t.Errorf("the request that was given up was sent later: %+v, %v", entry, err)
	}
}

func TestInvariant27AfterAReconnectWatchesAreRegisteredAndReadAgain(t *testing.T) {
	address := start(t, server.Options{})
	through := newProxy(t, address)
	client, other := dial(t, through.address(), transport.Options{}), dial(t, address, transport.Options{})
	watch, err := client.Watch("k")
	if err != nil {
		t.Fatal(err)
	}
	next := func() transport.Change {
		t.Helper()
		select {
		case change := <-watch.Changes():
			return change
		case <-time.After(patience):
			t.Fatal("no change arrives")
			return transport.Change{}
		}
	}
	set := func(value string) {
		t.Helper()
		if _, err := other.Set(t.Context(), "k", []byte(value), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if change := next(); change.Exists || change.Missed {
		t.Errorf("at first: %+v", change)
	}
	set("1")
	if change := next(); string(change.Value) != "1" || change.Missed || change.Version.IsZero() {
		t.Errorf("after the first Set: %+v", change)
	}
	through.refuses(true)
	through.cut()
	set("2") // nobody is told
	through.refuses(false)
	if change := next(); string(change.Value) != "2" || !change.Missed {
		t.Errorf("after the reconnect: %+v, want the value 2 and Missed", change)
	}
	set("3")
	if change := next(); string(change.Value) != "3" || change.Missed {
		t.Errorf("then: %+v", change)
	}
	if _, err := other.Del(t.Context(), "k", transport.DelOptions{}); err != nil {
		t.Fatal(err)
	}
	if change := next(); change.Exists {
		t.Errorf("after Del: %+v", change)
	}
	watch.Close()
	if _, open := await.Next(watch.Changes()); open || watch.Err() != nil {
		t.Errorf("after Close: open %v, %v", open, watch.Err())
	}
}

func TestInvariant46ATakenOverClientGivesUp(t *testing.T) {
	through := newProxy(t, start(t, server.Options{}))
	first := dial(t, through.address(), transport.Options{ClientID: "twin"})
	second := dial(t, through.address(), transport.Options{ClientID: "twin"})
	deadline := time.Now().Add(patience)
	for {
		_, err := first.Get(t.Context(), "k")
		if errors.Is(err, transport.ErrSessionTakenOver) && errors.Is(err, transport.ErrNotSent) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the first client: %v, want ErrSessionTakenOver", err)
		}
	}
	for range 20 {
		if _, err := second.Get(t.Context(), "k"); err != nil {
			t.Errorf("the second client: %v", err)
		}
	}
	if got := through.accepted.Load(); got != 2 {
		t.Errorf("%d connections, want 2: the first client must not come back", got)
	}
}

func TestTheClientOutlivesAServerThatStopsAndStarts(t *testing.T) {
	through := newProxy(t, start(t, server.Options{}))
	client := dial(t, through.address(), transport.Options{})
	for range 3 {
		target := start(t, server.Options{})
		through.target.Store(&target)
		through.cut()
		if _, err := client.Get(t.Context(), "k"); errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent) {
			_, err = client.Get(t.Context(), "k") // the loss had not been noticed
			if err != nil {
				t.Error(err)
			}
		} else if err != nil {
			t.Error(err)
		}
	}
}

func TestDialSaysWhyItFailed(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := nobody.Addr().String()
	_ = nobody.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = transport.Dial(ctx, "mqtt://"+address, transport.Options{})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("nobody listens: %v", err)
	}

	broker := startBroker(t, &picky{})
	_, err = transport.Dial(t.Context(), "mqtt://"+broker, transport.Options{Username: "u", Password: []byte("wrong")})
	var refused *transport.ConnectError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "check user name and password") {
		t.Errorf("bad credentials: %v, want a ConnectError at once", err)
	}
}

func TestABrokerWithoutAStoreIsToldByName(t *testing.T) {
	client := dial(t, startBroker(t, &picky{puback: 0x10}), transport.Options{Username: "u", Password: []byte("right")})
	if _, err := client.Get(t.Context(), "k"); !errors.Is(err, transport.ErrNoStore) || errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("Get: %v, want ErrNoStore", err)
	}
	client = dial(t, startBroker(t, &picky{puback: 0x87}), transport.Options{Username: "u", Password: []byte("right")})
	var rejected *transport.RejectedError
	if _, err := client.Get(t.Context(), "k"); !errors.Is(err, transport.ErrNotAuthorized) || !errors.As(err, &rejected) {
		t.Errorf("Get: %v, want ErrNotAuthorized", err)
	}
}

// picky is a broker's hook that wants a password and acknowledges requests with a
// reason code.
type picky struct {
	mqtt.HookBase
	puback byte
}

func (*picky) ID() string { return "picky" }

func (*picky) Provides(call byte) bool {
	return call == mqtt.OnConnectAuthenticate || call == mqtt.OnACLCheck || call == mqtt.OnPacketEncode
}

func (*picky) OnConnectAuthenticate(_ *mqtt.Client, pk packets.Packet) bool {
	return string(pk.Connect.Password) == "right"
}

func (*picky) OnACLCheck(*mqtt.Client, string, bool) bool { return true }

func (h *picky) OnPacketEncode(_ *mqtt.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type == packets.Puback {
		pk.ReasonCode = h.puback
	}
	return pk
}

// startBroker runs a broker without a store until the test ends.
func startBroker(t *testing.T, hook mqtt.Hook) (address string) {
	t.Helper()
	return serveBroker(t, mqtt.New(&mqtt.Options{Logger: discard}), hook)
}

// serveBroker is startBroker for a hook that needs to know its broker.
func serveBroker(t *testing.T, broker *mqtt.Server, hook mqtt.Hook) (address string) {
	t.Helper()
	if err := broker.AddHook(hook, nil); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.AddListener(listeners.NewNet("tcp", socket)); err != nil {
		t.Fatal(err)
	}
	if err := broker.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = broker.Close() })
	return socket.Addr().String()
}

func TestInvariant42ClosingAClientAtAnyMomentLeavesNothing(t *testing.T) {
	through := newProxy(t, start(t, server.Options{}))
	for name, disturb := range map[string]func(){
		"connected":    func() {},
		"disconnected": through.cut,
		"connecting":   func() { through.refuses(true); through.cut() },
		"deaf":         func() { through.hold(answers) },
	} {
		t.Run(name, func(t *testing.T) {
			settle(t)
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			client, err := transport.Dial(ctx, "mqtt://"+through.address(), transport.Options{})
			if err != nil {
				t.Fatal(err)
			}
			watch, err := client.Watch("k")
			if err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			disturb()
			go func() {
				var err error
				for err == nil || !errors.Is(err, transport.ErrClosed) {
					_, err = client.Get(t.Context(), "k")
				}
				failed <- err
			}()
			if err := client.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if err := await.Receive(failed); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("a request: %v, want ErrClosed", err)
			}
			for range watch.Changes() {
			}
			if err := watch.Err(); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("the watch: %v, want ErrClosed", err)
			}
			if _, err := client.Watch("k"); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("Watch after Close: %v", err)
			}
			through.release(answers)
			through.refuses(false)
			through.cut()
			mustSettle(t, before)
		})
	}
}

// settle waits until goroutines of earlier connections have ended.
func settle(t *testing.T) {
	t.Helper()
	for last, same := 0, 0; same < 20; time.Sleep(5 * time.Millisecond) {
		if now := runtime.NumGoroutine(); now == last {
			same++
		} else {
			last, same = now, 0
		}
	}
}
