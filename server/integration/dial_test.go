package integration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestOfSeveralAddressesOneThatWorksIsFoundAtFirstAndAfterALoss(t *testing.T) {
	target := testsupport.Start(t, server.Options{}) // one store, whichever way one comes
	first, second := newStreamProxy(t, target), newStreamProxy(t, target)
	addresses := "mqtt://" + mosquitto.FreeAddress(t) + ", mqtt://" + first.address() + ", mqtt://" + second.address()
	client := mustDial(t, addresses, transport.Options{})
	mustWork(t, client)
	if status := client.Connection(); status.Broker != "mqtt://"+first.address() {
		t.Errorf("%+v", status)
	}
	first.stop()
	status := mustReconnect(t, client, 1)
	if status.Broker != "mqtt://"+second.address() {
		t.Errorf("%+v", status)
	}
	mustWork(t, client)
}

func TestAPasswordMayComeFromAFileThatIsReplaced(t *testing.T) {
	admits := new(passwords)
	admits.present.Store("one")
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{Authenticator: admits}))
	address := "mqtt://" + through.Address()
	mustWork(t, mustDial(t, address, transport.Options{Username: "gateway", Password: []byte("one")}))
	files := newFolder(t)
	file := files.write("password", []byte("one\n"))
	client := mustDial(t, address, transport.Options{Username: "gateway", PasswordFile: file})
	mustWork(t, client)

	admits.present.Store("two")
	through.Cut()
	awaitStatus(t, client, "refused with the old password", func(status transport.ConnectionStatus) bool {
		var refused *transport.ConnectionError
		return status.State == transport.Connecting && errors.As(status.Err, &refused)
	})
	files.write("password", []byte("two\n"))
	mustReconnect(t, client, 1)
	mustWork(t, client)
}

func TestInvariant50WrongCredentialsEndDialAtOnceAndNoClientThatWasConnected(t *testing.T) {
	t.Parallel()
	admits := new(passwords)
	admits.present.Store("one")
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{Authenticator: admits}))
	address := "mqtt://" + through.Address()
	file := newFolder(t).write("password", []byte("wrong"))
	for name, options := range map[string]transport.Options{
		"a wrong password":         {Username: "gateway", Password: []byte("wrong")},
		"a wrong password in file": {Username: "gateway", PasswordFile: file},
		"none":                     {},
	} {
		before := through.Accepted.Load()
		_, err := transport.Dial(t.Context(), address, options) // no end but its own
		var refused *transport.ConnectionError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), "check the username") {
			t.Errorf("%s: %v, want a *ConnectionError", name, err)
		}
		if attempts := through.Accepted.Load() - before; attempts != 1 {
			t.Errorf("%s: %d attempts", name, attempts)
		}
	}

	client := mustDial(t, address, transport.Options{Username: "gateway", Password: []byte("one")})
	admits.present.Store("two")
	through.Cut()
	status := awaitStatus(t, client, "refused", func(status transport.ConnectionStatus) bool {
		var refused *transport.ConnectionError
		return errors.As(status.Err, &refused)
	})
	if status.State != transport.Connecting {
		t.Errorf("%+v, want to be connecting", status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := client.Get(ctx, "k")
	var refused *transport.ConnectionError
	if !errors.Is(err, transport.ErrNotSent) || !errors.As(err, &refused) || errors.Is(err, transport.ErrClosed) {
		t.Errorf("%v, want ErrNotSent and a *ConnectionError", err)
	}
	admits.present.Store("one") // an operator has noticed
	mustReconnect(t, client, 1)
	mustWork(t, client)
}

// tokens lets a server take tokens of service accounts, as brokers in Kubernetes do.
type tokens struct {
	testsupport.AllowAll
	broker *mochi.Server
	shown  chan string // what was shown, and how

	mu    sync.Mutex
	valid string
}

const methodServiceAccount = "K8S-SAT"

func (*tokens) ID() string { return "tokens" }

func (h *tokens) Provides(call byte) bool {
	return call == mochi.OnConnect || call == mochi.OnAuthPacket || call == mochi.OnPacketEncode || h.AllowAll.Provides(call)
}

func (h *tokens) take(how string, properties packets.Properties) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	token := string(properties.AuthenticationData)
	h.shown <- how + " " + token
	return properties.AuthenticationMethod == methodServiceAccount && token == h.valid
}

func (h *tokens) replace(valid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.valid = valid
}

func (h *tokens) OnConnect(cl *mochi.Client, pk packets.Packet) error {
	if pk.Properties.AuthenticationMethod == "" {
		return nil // the store
	}
	if h.take("CONNECT", pk.Properties) {
		return nil
	}
	_ = h.broker.SendConnack(cl, packets.ErrNotAuthorized, false, nil)
	return packets.ErrNotAuthorized
}

func (h *tokens) OnAuthPacket(cl *mochi.Client, pk packets.Packet) (packets.Packet, error) {
	if !h.take("AUTH", pk.Properties) {
		return pk, h.broker.DisconnectClient(cl, packets.ErrNotAuthorized)
	}
	return pk, cl.WritePacket(packets.Packet{
		ProtocolVersion: 5,
		FixedHeader:     packets.FixedHeader{Type: packets.Auth},
		Properties:      packets.Properties{AuthenticationMethod: methodServiceAccount},
	})
}

func (*tokens) OnPacketEncode(cl *mochi.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type == packets.Connack && cl.Properties.Props.AuthenticationMethod != "" {
		pk.Properties.AuthenticationMethod = methodServiceAccount // [MQTT-4.12.0-5]
	}
	return pk
}

func (h *tokens) mustHaveSeen(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-h.shown:
		if got != want {
			t.Errorf("the broker saw %q, want %q", got, want)
		}
	case <-time.After(testsupport.Patience):
		t.Fatalf("the broker did not see %q", want)
	}
}

func TestAServiceAccountTokenIsSentAgainWhenItChanges(t *testing.T) {
	t.Parallel() // the file is looked at every ten seconds
	// The server itself knows no tokens.
	broker := &tokens{broker: mochi.New(&mochi.Options{Logger: testsupport.Discard}), shown: make(chan string, 10), valid: "one"}
	target := testsupport.ServeBroker(t, broker.broker, broker)
	testsupport.Attach(t, target, attach.Options{})
	through := testsupport.NewProxy(t, target)
	address, files := "mqtt://"+through.Address(), newFolder(t)
	file := files.write("token", []byte("wrong"))
	_, err := transport.Dial(t.Context(), address, transport.Options{TokenFile: file})
	broker.mustHaveSeen(t, "CONNECT wrong")
	if !errors.Is(err, transport.ErrNotAuthorized) {
		t.Errorf("a wrong token: %v, want ErrNotAuthorized at once", err)
	}

	files.write("token", []byte("one"))
	client := mustDial(t, address, transport.Options{TokenFile: file})
	broker.mustHaveSeen(t, "CONNECT one")
	mustWork(t, client)
	broker.replace("two")
	files.write("token", []byte("two"))
	broker.mustHaveSeen(t, "AUTH two")
	mustWork(t, client)
	if status := client.Connection(); status.Connections != 1 {
		t.Errorf("it is another connection: %+v", status)
	}

	broker.replace("three")
	files.write("token", []byte("three"))
	through.Cut()
	mustReconnect(t, client, 1)
	broker.mustHaveSeen(t, "CONNECT three")
	mustWork(t, client)
}

// moody is a hook of mochi that refuses with reason codes.
type moody struct {
	testsupport.AllowAll
	broker     *mochi.Server
	connack    packets.Code // of CONNECTs; zero: as usual
	disconnect packets.Code // in answer to a request; zero: none
}

func (*moody) ID() string { return "moody" }

func (h *moody) Provides(call byte) bool {
	return call == mochi.OnConnect || call == mochi.OnPacketRead || h.AllowAll.Provides(call)
}

func (h *moody) OnConnect(cl *mochi.Client, _ packets.Packet) error {
	if h.connack.Code == 0 {
		return nil
	}
	_ = h.broker.SendConnack(cl, h.connack, false, nil)
	return h.connack
}

func (h *moody) OnPacketRead(cl *mochi.Client, pk packets.Packet) (packets.Packet, error) {
	if h.disconnect.Code != 0 && pk.FixedHeader.Type == packets.Publish {
		return pk, h.broker.DisconnectClient(cl, h.disconnect)
	}
	return pk, nil
}

func TestReasonsOfTheBrokerCanBeDistinguished(t *testing.T) {
	connect := func(code packets.Code) moody { return moody{connack: code} }
	disconnect := func(code packets.Code) moody { return moody{disconnect: code} }
	for _, test := range []struct {
		name    string
		hook    moody
		want    error
		unknown bool // what became of the request
	}{
		{"CONNACK: busy", connect(packets.ErrServerBusy), transport.ErrServerBusy, false},
		{"CONNACK: unavailable", connect(packets.ErrServerUnavailable), transport.ErrServerBusy, false},
		{"CONNACK: rate", connect(packets.ErrConnectionRateExceeded), transport.ErrServerBusy, false},
		{"CONNACK: quota", connect(packets.ErrQuotaExceeded), transport.ErrQuotaExceeded, false},
		{"CONNACK: packet too large", connect(packets.ErrPacketTooLarge), transport.ErrPacketTooLarge, false},
		{"DISCONNECT: busy", disconnect(packets.ErrServerBusy), transport.ErrServerBusy, true},
		{"DISCONNECT: quota", disconnect(packets.ErrQuotaExceeded), transport.ErrQuotaExceeded, true},
		{"DISCONNECT: packet too large", disconnect(packets.ErrPacketTooLarge), transport.ErrPacketTooLarge, true},
		{"DISCONNECT: not authorized", disconnect(packets.ErrNotAuthorized), transport.ErrNotAuthorized, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.hook.broker = mochi.New(&mochi.Options{Logger: testsupport.Discard})
			address := testsupport.ServeBroker(t, test.hook.broker, &test.hook) // without a store: no request gets so far
			var err error
			if test.hook.connack.Code != 0 {
				err = whyNot(t, "mqtt://"+address, transport.Options{})
			} else {
				_, err = mustDial(t, "mqtt://"+address, transport.Options{}).Get(t.Context(), "k")
			}
			if !errors.Is(err, test.want) || errors.Is(err, transport.ErrOutcomeUnknown) != test.unknown {
				t.Errorf("%v; want %v, outcome unknown: %t", err, test.want, test.unknown)
			}
		})
	}
}

func TestReasonsOfAcknowledgementsCanBeDistinguished(t *testing.T) {
	for code, want := range map[byte]error{
		0x10: transport.ErrNoStore, 0x87: transport.ErrNotAuthorized, 0x95: transport.ErrPacketTooLarge, 0x97: transport.ErrQuotaExceeded,
	} {
		address := testsupport.StartBroker(t, &testsupport.PasswordBroker{Puback: code}) // without a store, whose answer could overtake it
		client := testsupport.Dial(t, address, transport.Options{Username: "u", Password: []byte("right")})
		if _, err := client.Get(t.Context(), "k"); !errors.Is(err, want) || errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("0x%02X: %v, want %v", code, err, want)
		}
	}
}

func TestARequestThatIsTooLargeForTheServerIsRefusedBeforeItIsSent(t *testing.T) {
	client := testsupport.Dial(t, testsupport.Start(t, server.Options{MaxPacketSize: 2000}), transport.Options{})
	_, err := client.Set(t.Context(), "k", make([]byte, 2000), transport.SetOptions{})
	var rejected *transport.RejectedError
	if !errors.Is(err, transport.ErrPacketTooLarge) || !errors.As(err, &rejected) || errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("%v, want ErrPacketTooLarge", err)
	}
	if _, err := client.Set(t.Context(), "k", make([]byte, 1000), transport.SetOptions{}); err != nil {
		t.Errorf("a smaller one: %v", err)
	}
	if status := client.Connection(); status.Connections != 1 {
		t.Errorf("the connection was lost: %+v", status)
	}
}

func TestRequestsUnderWayFailAsUnknownWhenTheConnectionDrops(t *testing.T) {
	target, s := testsupport.StartServer(t, server.Options{})
	through := testsupport.NewProxy(t, target)
	// Their own timeout is far away, so that only the loss can end them.
	client := testsupport.Dial(t, through.Address(), transport.Options{ClientOptions: transport.ClientOptions{RequestTimeout: time.Hour}})
	through.Hold(testsupport.ToClient)
	const requests = 20
	failed := make(chan error, requests)
	for range requests {
		go func() {
			_, err := client.Get(t.Context(), "k")
			failed <- err
		}()
	}
	testsupport.Eventually(t, "the store has answered all", func() bool {
		return s.Stats().Requests >= requests
	})
	through.Cut()
	ended := 0
	for range requests {
		select {
		case err := <-failed:
			if !errors.Is(err, transport.ErrOutcomeUnknown) {
				t.Errorf("%v, want ErrOutcomeUnknown", err)
			}
			ended++
		case <-time.After(testsupport.Patience):
			t.Fatalf("%d of %d requests ended", ended, requests)
		}
	}
}

func TestTheErrorNamesMosquittoWithoutAStore(t *testing.T) {
	client := testsupport.Dial(t, mosquitto.Start(t, "").Address, transport.Options{})
	_, err := client.Get(t.Context(), "k")
	if !errors.Is(err, transport.ErrNoStore) || errors.Is(err, transport.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "no state store answers on this broker") {
		t.Errorf("%v, want ErrNoStore", err)
	}
}

func TestTheErrorNamesASilentBrokerWithoutAStore(t *testing.T) {
	t.Parallel()
	// It acknowledges a message without subscribers with success.
	address := testsupport.StartBroker(t, &testsupport.PasswordBroker{})
	client := testsupport.Dial(t, address, transport.Options{
		Username: "u", Password: []byte("right"),
		ClientOptions: transport.ClientOptions{RequestTimeout: time.Second},
	})
	_, err := client.Get(t.Context(), "k")
	if !errors.Is(err, transport.ErrNoStore) || !errors.Is(err, transport.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "no state store answers on this broker") {
		t.Errorf("%v, want ErrNoStore and ErrOutcomeUnknown", err)
	}
}

func TestTheStateOfAConnectionIsReportedAndCanBeRead(t *testing.T) {
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{}))
	told := make(chan transport.ConnectionStatus, 1000)
	tell := func(status transport.ConnectionStatus) { told <- status }
	ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, "mqtt://"+through.Address(), transport.Options{
		ClientOptions: transport.ClientOptions{Trace: &transport.Trace{Connected: tell, ConnectFailed: tell, Lost: tell}},
	})
	if err != nil {
		t.Fatal(err)
	}
	next := func(state transport.ConnectionState, connections int) {
		t.Helper()
		for {
			select {
			case status := <-told:
				if status.State != state { // further attempts may have failed
					continue
				}
				if status.Connections != connections || (status.Err == nil) != (state == transport.Connected) {
					t.Errorf("told %+v, want %v and %d connections", status, state, connections)
				}
			case <-time.After(testsupport.Patience):
				t.Errorf("never told of %v", state)
			}
			return
		}
	}
	next(transport.Connected, 1)
	if status := client.Connection(); status.State != transport.Connected || status.Err != nil || status.Broker != "mqtt://"+through.Address() {
		t.Errorf("%+v", status)
	}
	through.Cut()
	next(transport.Connecting, 1)
	next(transport.Connected, 2)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	next(transport.Ended, 2)
	if status := client.Connection(); status.State != transport.Ended || !errors.Is(status.Err, transport.ErrClosed) {
		t.Errorf("%+v", status)
	}
}

// startHung runs a listener that accepts connections and sends nothing.
func startHung(t *testing.T) (address string, taken <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	signal := make(chan struct{}, 100)
	tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			signal <- struct{}{}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		await.Done(tasks.Wait)
	})
	return listener.Addr().String(), signal
}

func TestInvariant42DialThatIsCancelledWhileSomethingHangsLeavesNothing(t *testing.T) {
	for _, scheme := range []string{"mqtt", "mqtts", "ws", "wss"} {
		t.Run(scheme, func(t *testing.T) {
			address, taken := startHung(t)
			testsupport.SettleGoroutines(t)
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("no more patience")
			go func() {
				await.Receive(taken)
				cancel(why)
			}()
			began := time.Now()
			_, err := transport.Dial(ctx, scheme+"://"+address, transport.Options{WebSocket: tenurews.Upgrade})
			if !errors.Is(err, why) {
				t.Errorf("%v, want %v", err, why)
			}
			if took := time.Since(began); took > testsupport.Patience {
				t.Errorf("it took %v", took)
			}
			testsupport.MustEndGoroutines(t, before)
		})
	}
}

func TestInvariant42CloseWhileSomethingHangsLeavesNothing(t *testing.T) {
	ca := certificates.New(t, "authority")
	config := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	plain, encrypted := testsupport.Start(t, server.Options{}), testsupport.Start(t, server.Options{TLS: config})
	caFile := newFolder(t).write("ca.pem", certificates.PEM(ca.Own))
	for _, test := range []struct{ name, scheme, target string }{
		{"TCP", "mqtt", plain},
		{"TLS", "mqtts", encrypted},
		{"WebSocket", "ws", startWebSocket(t, plain, nil)},
		{"WebSocket over TLS", "wss", startWebSocket(t, plain, config)},
	} {
		t.Run(test.name, func(t *testing.T) {
			through := newStreamProxy(t, test.target)
			hung, taken := startHung(t)
			options := transport.Options{WebSocket: tenurews.Upgrade, ClientOptions: transport.ClientOptions{RequestTimeout: time.Hour}}
			if test.scheme == "mqtts" || test.scheme == "wss" {
				options.TLS.CAFile = caFile
			}
			testsupport.SettleGoroutines(t)
			before := runtime.NumGoroutine() - 1 // the proxy ends before the client
			client := mustDial(t, test.scheme+"://"+through.address()+","+test.scheme+"://"+hung, options)
			mustWork(t, client)
			through.stop() // the next broker takes the connection, and hangs
			await.Receive(taken)
			failed := make(chan error, 1)
			go func() {
				_, err := client.Get(t.Context(), "k")
				failed <- err
			}()
			closed := make(chan error, 1)
			go func() { closed <- client.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(testsupport.Patience):
				t.Fatal("Close hangs, too")
			}
			if err := await.Receive(failed); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("a request: %v, want ErrClosed", err)
			}
			testsupport.MustEndGoroutines(t, before)
		})
	}
}

func TestInvariant42CloseWhileTheBrokerNoLongerReadsLeavesNothing(t *testing.T) {
	ca := certificates.New(t, "authority")
	config := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	caFile := newFolder(t).write("ca.pem", certificates.PEM(ca.Own))
	for _, test := range []struct {
		name, scheme string
		server, tls  *tls.Config
	}{
		{"TCP", "mqtt", nil, nil},
		{"TLS", "mqtts", config, nil},
		{"WebSocket", "ws", nil, nil},
		{"WebSocket over TLS", "wss", nil, config},
	} {
		t.Run(test.name, func(t *testing.T) {
			target := testsupport.Start(t, server.Options{TLS: test.server})
			if strings.HasPrefix(test.scheme, "ws") {
				target = startWebSocket(t, target, test.tls)
			}
			through := newStreamProxy(t, target)
			// A write must not time out before Close.
			options := transport.Options{KeepAlive: time.Hour, WebSocket: tenurews.Upgrade, ClientOptions: transport.ClientOptions{RequestTimeout: time.Hour}}
			if test.server != nil || test.tls != nil {
				options.TLS.CAFile = caFile
			}
			testsupport.SettleGoroutines(t)
			before := runtime.NumGoroutine()
			client := mustDial(t, test.scheme+"://"+through.address(), options)
			mustWork(t, client)
			through.gate.Lock()
			const requests = 30 // with more bytes than sockets hold
			failed := make(chan error, requests)
			for range requests {
				go func() {
					_, err := client.Set(t.Context(), "k", make([]byte, 1_000_000), transport.SetOptions{})
					failed <- err
				}()
			}
			time.Sleep(100 * time.Millisecond) // no state shows that a write is stuck
			closed := make(chan error, 1)
			go func() { closed <- client.Close() }()
			select {
			case err := <-closed:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(testsupport.Patience):
				t.Error("Close hangs, too")
			}
			for range requests {
				if err := await.Receive(failed); !errors.Is(err, transport.ErrClosed) {
					t.Errorf("a request: %v, want ErrClosed", err)
				}
			}
			through.gate.Unlock()
			through.cut()
			testsupport.MustEndGoroutines(t, before)
		})
	}
}

func TestADialerConnectsThroughAUnixSocket(t *testing.T) {
	directory, err := os.MkdirTemp("", "tenure") // t.TempDir may be longer than the name of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	listener, err := net.Listen("unix", filepath.Join(directory, "mqtt.sock"))
	if err != nil {
		t.Fatal(err)
	}
	socket := testsupport.Start(t, server.Options{Listener: listener})
	client := testsupport.Dial(t, "broker.invalid:1883", transport.Options{
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	})
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	testsupport.MustHold(t, client, "k", "v")
}
