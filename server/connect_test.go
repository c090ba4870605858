package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// keeping makes a client connect with a session that outlives its connection.
func keeping(seconds uint32) func(*paho.Connect) {
	return func(c *paho.Connect) { c.CleanStart, c.Properties.SessionExpiryInterval = false, &seconds }
}

func both(first, second func(*paho.Connect)) func(*paho.Connect) {
	return func(c *paho.Connect) {
		first(c)
		second(c)
	}
}

// mustCollide fails the test unless a client is refused because another owns its topics.
func mustCollide(t *testing.T, address, id string, change func(*paho.Connect)) {
	t.Helper()
	p, err := testsupport.TryConnect(t, address, id, change)
	if err == nil {
		t.Fatalf("client %.50q is admitted, and owns topics of another client", id)
	}
	if p.Connack == nil || p.Connack.ReasonCode != packets.ConnackInvalidClientID || p.Connack.Properties == nil ||
		!strings.Contains(p.Connack.Properties.ReasonString, "upper-case hex") ||
		!strings.Contains(p.Connack.Properties.ReasonString, "choose another client id") {
		t.Errorf("client %.50q is refused with %+v, %v", id, p.Connack, err)
	}
}

// Two client ids can name the same level below clients/. The server admits one of them at a time, so
// that neither reads the messages of the other.
func TestALevelBelongsToTheClientThatConnectedFirst(t *testing.T) {
	for _, names := range [][2]string{
		{"p", "70"},
		{"70", "p"},
	} {
		t.Run(strings.ReplaceAll(names[0]+" before "+names[1], "/", " "), func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{Authenticator: testsupport.Rules{}})
			first, err := testsupport.TryConnect(t, address, names[0], both(testsupport.As("alice"), keeping(600)))
			if err != nil {
				t.Fatal(err)
			}
			mustCollide(t, address, names[1], testsupport.As("bob"))
			mustCollide(t, address, names[1], testsupport.As("alice"))
			if !mayPublish(first, "factory/x") {
				t.Error("the first client is disturbed")
			}

			_ = first.Conn.Close()
			first.MustBeGone()
			testsupport.Eventually(t, "the first client is away", func() bool { return s.Stats().Connected == 0 })
			mustCollide(t, address, names[1], testsupport.As("bob")) // its session is kept

			again, err := testsupport.TryConnect(t, address, names[0], both(testsupport.As("alice"), keeping(600)))
			if err != nil {
				t.Fatal(err)
			}
			if !again.Connack.SessionPresent {
				t.Error("the first client lost its session")
			}
			end := uint32(0)
			_ = again.Paho.Disconnect(&paho.Disconnect{Properties: &paho.DisconnectProperties{SessionExpiryInterval: &end}})
			testsupport.Eventually(t, "the first client is forgotten", func() bool { return !s.HasSession(names[0]) })
			if _, err := testsupport.TryConnect(t, address, names[1], testsupport.As("bob")); err != nil {
				t.Errorf("client %q may not have the name that is free: %v", names[1], err)
			}
			mustCollide(t, address, names[0], testsupport.As("alice"))
		})
	}
}

// A client that gives up an attempt connects again. The CONNECT of the first attempt may be handled later.
func TestAConnectThatIsOlderThanThePresentConnectionDoesNotTakeItOver(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	first := testsupport.DialTCP(t, address)
	present := testsupport.DialRaw(t, address, "p")
	stale := testsupport.ConnectPacket{ID: "p"}.Start(t, first)
	if code := stale.ReasonCode(); code != packets.ConnackServerBusy {
		t.Errorf("the older CONNECT is answered with %#x", code)
	}
	if got := present.Do("GET", "k"); got != "$-1\r\n" {
		t.Errorf("the present connection: %q", got)
	}
	if code := testsupport.StartLogin(t, address, "p", "").ReasonCode(); code != packets.ConnackSuccess {
		t.Errorf("a newer CONNECT is answered with %#x", code)
	}
}

// Its replies would go to topics of another client, or of the store.
func TestAClientIDThatNoReplyCouldReachIsRefusedWithTheReason(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, id := range []string{"statestore", "a/b", "/", "a+b", "#"} {
		p, err := testsupport.TryConnect(t, address, id, nil)
		if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackInvalidClientID || p.Connack.Properties == nil ||
			!strings.Contains(p.Connack.Properties.ReasonString, "choose one that is not") {
			t.Errorf("client %q: %+v, %v", id, p, err)
		}
	}
	// Nor do these collide; "": the server chooses.
	for _, id := range []string{"statestores", "a.b", "a b", "p", "3730", "71", "7", "0", "6a", "j", "FF", "7070", "", ""} {
		if _, err := testsupport.TryConnect(t, address, id, nil); err != nil {
			t.Errorf("client %q: %v", id, err)
		}
	}
}

// An expired session ends unless its client is taking it over. Neither waits for the other.
func TestASessionDoesNotEndWhileItsClientComesBack(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	p := testsupport.Connect(t, address, "p", keeping(60))
	p.Do("GET", "k")
	_ = p.Conn.Close()
	p.MustBeGone()
	known := func() bool { return s.HasSession("p") }
	testsupport.Eventually(t, "p is away", func() bool { return s.Stats().Connected == 0 })
	release := s.LockClientID("p")
	await.Done(func() { s.Sweep(time.Now().Add(time.Hour)) })
	if !known() || s.ResponseTopics() != 1 {
		t.Error("the session ended under a client that takes it over")
	}
	release()
	s.Sweep(time.Now().Add(50 * time.Second))
	if !known() {
		t.Error("the session ended too soon")
	}
	testsupport.Eventually(t, "the session ends", func() bool { s.Sweep(time.Now().Add(time.Hour)); return !known() })
	if s.ResponseTopics() != 0 {
		t.Error("response topics of the session are left")
	}
}

// A session lasts an hour at most, also if the DISCONNECT asks for more.
func TestADisconnectMakesNoSessionLongerThanAnHour(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	forever := uint32(1<<32 - 1)
	p := testsupport.Connect(t, address, "p", keeping(forever))
	if got := p.Connack.Properties.SessionExpiryInterval; got == nil || *got != 3600 {
		t.Errorf("CONNACK says %v", got)
	}
	if err := p.Paho.Disconnect(&paho.Disconnect{Properties: &paho.DisconnectProperties{SessionExpiryInterval: &forever}}); err != nil {
		t.Fatal(err)
	}
	known := func() bool { return s.HasSession("p") }
	testsupport.Eventually(t, "p is away", func() bool { return s.Stats().Connected == 0 })
	s.Sweep(time.Now().Add(55 * time.Minute))
	if !known() {
		t.Error("the session ended before its time")
	}
	testsupport.Eventually(t, "the session ends", func() bool { s.Sweep(time.Now().Add(time.Hour + 2*time.Second)); return !known() })
}

func TestAClientIDThatAnotherUserGotDuringALoginIsNotTakenOver(t *testing.T) {
	reached, open := make(chan struct{}), make(chan struct{})
	var once sync.Once
	address := testsupport.Start(t, server.Options{Authenticator: testsupport.Rules{}, Authorizer: testsupport.Rules{Topic: func(identity access.Identity, _ string, _ bool) bool {
		if identity.User == "slow" { // it is being admitted; its client id is still free
			once.Do(func() { close(reached); await.Receive(open) })
		}
		return true
	}}})
	admitted := make(chan *testsupport.PahoClient, 2)
	try := func(user string) {
		p, err := testsupport.TryConnect(t, address, "p", func(c *paho.Connect) {
			testsupport.As(user)(c)
			c.WillMessage = &paho.WillMessage{Topic: "factory/p/gone", Payload: []byte("gone"), QoS: 1}
		})
		if err != nil {
			p = nil
		}
		admitted <- p
	}
	go try("slow")
	await.Receive(reached)
	go try("quick")
	var early *testsupport.PahoClient
	answered := false
	select {
	case early = <-admitted: // while the other is still being looked at
		answered = true
	case <-time.After(100 * time.Millisecond): // or after it
	}
	close(open)
	late := await.Receive(admitted)
	if !answered {
		early = await.Receive(admitted)
	}
	if (early == nil) == (late == nil) {
		t.Errorf("of two users that want one client id one must get it: got %v and %v", early != nil, late != nil)
	}
}

// The client may be refused after the claim, or its connection may panic.
func TestAClientThatIsNotEstablishedLeavesItsIDToOthers(t *testing.T) {
	authorizer := testsupport.Rules{Topic: func(_ access.Identity, topic string, _ bool) bool {
		if topic == "panic" {
			panic("the rules fail")
		}
		return topic != "forbidden"
	}}
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, Authenticator: testsupport.Rules{}, Authorizer: authorizer})
	for _, topic := range []string{"forbidden", "panic"} {
		_, err := testsupport.TryConnect(t, address, "70", both(testsupport.As("bob"), func(c *paho.Connect) {
			c.WillMessage = &paho.WillMessage{Topic: topic, Payload: []byte("x")}
			c.WillProperties = &paho.WillProperties{}
		}))
		if err == nil {
			t.Fatalf("a Will on %q is admitted", topic)
		}
		testsupport.Eventually(t, "no client id is taken", func() bool { return s.LockedClientIDs() == 0 })
		p, err := testsupport.TryConnect(t, address, "p", testsupport.As("alice"))
		if err != nil {
			t.Fatalf("after a Will on %q: %v", topic, err)
		}
		_ = p.Paho.Disconnect(&paho.Disconnect{})
		testsupport.Eventually(t, "it is gone", func() bool { return s.Clients() == 0 && s.Sockets() == 0 })
	}
	if panics := s.Stats().Panics; panics != 1 {
		t.Errorf("%d panics", panics)
	}
}

// After a link has failed and come back, only the latest connection has a client at its other end.
func TestOfConnectionsOfOneClientTheLatestWaits(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, MaxUnauthenticated: 1000})
	release := s.LockClientID("p")
	latest := testsupport.StartLogin(t, address, "p", "")
	testsupport.Eventually(t, "a connection waits", func() bool { return s.Waits("p") })
	for range 10 {
		newer := testsupport.StartLogin(t, address, "p", "")
		if code := latest.ReasonCode(); code != packets.ConnackServerBusy {
			t.Errorf("an older one gets %#x", code)
		}
		testsupport.MustBeClosed(t, latest.Conn)
		latest = newer
	}
	release()
	if code := latest.ReasonCode(); code != packets.ConnackSuccess {
		t.Errorf("the latest gets %#x", code)
	}
	testsupport.Eventually(t, "no client id is taken", func() bool { return s.LockedClientIDs() == 0 })
	if got := s.Stats().Refused[server.RefusedTurn]; got != 10 {
		t.Errorf("%d refusals are counted", got)
	}
}

func TestAConnectionDoesNotWaitForItsClientIdWithoutEnd(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard}, func(s *server.Server) { s.SetClientIDTimeout(50 * time.Millisecond) })
	release := s.LockClientID("p")
	if code := testsupport.StartLogin(t, address, "p", "").ReasonCode(); code != packets.ConnackServerBusy {
		t.Errorf("MQTT 5: %#x", code)
	}
	if s.Waits("p") {
		t.Error("a connection that was refused still waits")
	}
	release()
	if code := testsupport.StartLogin(t, address, "p", "").ReasonCode(); code != packets.ConnackSuccess {
		t.Errorf("afterwards: %#x", code)
	}
}

// The journal has the client id once for each of up to 256 replies.
func TestAClientWithALongIDDoesNotFillTheDisk(t *testing.T) {
	d := startDurable(t, server.Options{})
	testsupport.Connect(t, d.address, strings.Repeat("i", 256), nil)
	if c, err := testsupport.TryDialRaw(d.address, strings.Repeat("i", 257)); err == nil {
		_ = c.TryDisconnect()
		t.Error("a client with an id of 257 bytes is connected")
	} else if !strings.Contains(err.Error(), "257 bytes; a server that keeps its data takes at most 256") {
		t.Errorf("%v; want the reason", err)
	}
}

// unhurried is an Authenticator that waits for the test with each user except "known". It refuses the
// user "mallory".
type unhurried struct {
	began chan string // users
	goOn  chan struct{}
	now   atomic.Int32
	most  atomic.Int32
}

func newUnhurried() *unhurried {
	return &unhurried{began: make(chan string, 1000), goOn: make(chan struct{})}
}

func (a *unhurried) AuthenticateQuickly(c access.Credentials) (bool, error) {
	return c.User == "known", nil
}

func (a *unhurried) Authenticate(c access.Credentials) error {
	now := a.now.Add(1)
	defer a.now.Add(-1)
	for most := a.most.Load(); now > most && !a.most.CompareAndSwap(most, now); most = a.most.Load() {
	}
	a.began <- c.User
	await.Receive(a.goOn)
	if c.User == "mallory" {
		return errors.New("wrong password")
	}
	return nil
}

// Invariant 58: passwords keep no other client out.
func TestAFewPasswordsAreComparedAtATimeAndKnownOnesDoNotWait(t *testing.T) {
	authenticator := newUnhurried()
	address, s := testsupport.StartServer(t, server.Options{Authenticator: authenticator})
	var callers []*testsupport.RawClient
	for i := range turns + 18 {
		callers = append(callers, testsupport.StartLogin(t, address, fmt.Sprint("p-", i), "p"))
	}
	testsupport.Eventually(t, "18 wait", func() bool { _, waiting := s.Unauthenticated(); return waiting == 18 })
	p := testsupport.Connect(t, address, "known", func(c *paho.Connect) { c.Username, c.UsernameFlag = "known", true })
	p.MustGet("k", "")
	close(authenticator.goOn)
	for _, c := range callers {
		if code := c.ReasonCode(); code != 0 {
			t.Errorf("refused with %#x", code)
		}
	}
	if most := int(authenticator.most.Load()); most != turns {
		t.Errorf("%d were compared at once", most)
	}
	if all, waiting := s.Unauthenticated(); all != 0 || waiting != 0 {
		t.Errorf("%d are at the door, %d wait", all, waiting)
	}
}

// Invariant 58: a client id without authentication keeps no other client out.
func TestALoginThatIsUnderWayDoesNotKeepItsClientIDFromOthers(t *testing.T) {
	authenticator := newUnhurried()
	defer close(authenticator.goOn)
	address := testsupport.Start(t, server.Options{Authenticator: authenticator})
	testsupport.StartLogin(t, address, "victim", "mallory")
	if user := await.Receive(authenticator.began); user != "mallory" {
		t.Fatal(user)
	}
	p := testsupport.Connect(t, address, "victim", testsupport.As("known"))
	p.MustGet("k", "")
}

// mustBeOpen fails unless the connection stays open for 20 ms without data.
func mustBeOpen(t testing.TB, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is not open any more: %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(testsupport.Patience))
}

// oneAtATime makes a server check one password at a time.
func oneAtATime(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func TestTheOldestConnectionWithoutCONNECTIsClosedForANewOne(t *testing.T) {
	t.Parallel()
	address, s := testsupport.StartServer(t, server.Options{MaxUnauthenticated: 3})
	p := testsupport.Connect(t, address, "p", nil)
	var silent []net.Conn
	for i := range 3 {
		silent = append(silent, testsupport.DialTCP(t, address))
		testsupport.Eventually(t, "it is accepted", func() bool { all, _ := s.Unauthenticated(); return all == i+1 })
	}
	q := testsupport.Connect(t, address, "q", nil)
	testsupport.MustBeClosed(t, silent[0])
	mustBeOpen(t, silent[1])
	mustBeOpen(t, silent[2])
	p.MustGet("k", "")
	q.MustGet("k", "")
	if got := s.Stats(); got.Refused[server.RefusedUnauthenticated] != 1 {
		t.Errorf("stats %+v", got)
	}
	for range 6 { // whatever number of them comes
		testsupport.DialTCP(t, address)
	}
	testsupport.Connect(t, address, "r", nil).MustGet("k", "")
	if all, _ := s.Unauthenticated(); all > 3 {
		t.Errorf("%d are at the door", all)
	}
}

func TestTheTimeToAuthenticateIsBounded(t *testing.T) {
	oneAtATime(t)
	t.Run("without CONNECT", func(t *testing.T) {
		address, s := testsupport.StartServer(t, server.Options{}, func(s *server.Server) { s.SetAuthenticationTimeout(100 * time.Millisecond) })
		conn := testsupport.DialTCP(t, address)
		testsupport.MustBeClosed(t, conn)
		testsupport.Eventually(t, "no connection is left", func() bool { all, _ := s.Unauthenticated(); return all == 0 })
	})
	t.Run("while the password waits", func(t *testing.T) {
		authenticator := newUnhurried()
		address, s := testsupport.StartServer(t, server.Options{Authenticator: authenticator}, func(s *server.Server) { s.SetAuthenticationTimeout(time.Second) })
		first := testsupport.StartLogin(t, address, "a", "a")
		await.Receive(authenticator.began)
		waits := testsupport.StartLogin(t, address, "b", "b")
		if code := waits.ReasonCode(); code != 0x89 {
			t.Errorf("the one that waits is told %#x", code)
		}
		close(authenticator.goOn)
		if code := first.ReasonCode(); code != 0x89 {
			t.Errorf("the one that came to be compared, too slowly, is told %#x", code)
		}
		if got := s.Stats(); got.Refused[server.RefusedSlow] != 2 || got.Connected != 0 || len(authenticator.began) != 0 {
			t.Errorf("stats %+v; %d more were compared", got, len(authenticator.began))
		}
	})
}

func TestRunningOutOfDescriptorsIsLoggedWithItsCureAtABoundedRate(t *testing.T) {
	t.Parallel()
	log := new(logbuffer.Buffer)
	var calls atomic.Int64
	failing := &failingListener{Listener: testsupport.Listen(t), Failure: func(call int64) error {
		calls.Store(call)
		return acceptError(syscall.EMFILE)
	}}
	testsupport.Start(t, server.Options{Listener: failing, Logger: log.Logger()})
	testsupport.Eventually(t, "it fails often", func() bool { return calls.Load() > 30 && strings.Contains(log.String(), "omitted=") })
	text := log.String()
	if lines := strings.Count(text, "cannot accept"); lines > 25 || runtime.GOOS != "windows" && !strings.Contains(text, "ulimit -n") {
		t.Errorf("%d lines of %d failures: %s", lines, calls.Load(), text)
	}
}

// handshakes makes each TLS handshake of a server wait for the test while it is computed.
type handshakes struct {
	ca    *certificates.Authority
	began chan string // the name that the client asks for
	goOn  chan struct{}
	now   atomic.Int32
	most  atomic.Int32
}

func newHandshakes(t testing.TB) *handshakes {
	return &handshakes{ca: certificates.New(t, "authority"), began: make(chan string, 1000), goOn: make(chan struct{})}
}

func (h *handshakes) config() *tls.Config {
	return &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		now := h.now.Add(1)
		defer h.now.Add(-1)
		for most := h.most.Load(); now > most && !h.most.CompareAndSwap(most, now); most = h.most.Load() {
		}
		h.began <- hello.ServerName
		await.Receive(h.goOn)
		return &h.ca.Own, nil
	}}
}

// start begins a handshake, and returns what ends with it.
func (h *handshakes) start(t testing.TB, address, name string) (ended chan error) {
	conn := tls.Client(testsupport.DialTCP(t, address), &tls.Config{InsecureSkipVerify: true, ServerName: name})
	ended = make(chan error, 1)
	go func() { ended <- conn.Handshake() }()
	return ended
}

// turns is how many handshakes are computed, and passwords checked, at once.
var turns = max(1, runtime.GOMAXPROCS(0)/2)

// Invariant 58: handshakes keep no other client out.
func TestAFewHandshakesAreComputedAtATime(t *testing.T) {
	h := newHandshakes(t)
	address, s := testsupport.StartServer(t, server.Options{TLS: h.config()})
	var ended []chan error
	for i := range turns + 20 {
		ended = append(ended, h.start(t, address, fmt.Sprint("c", i)))
	}
	testsupport.Eventually(t, "all have come", func() bool { all, _ := s.Unauthenticated(); return all == turns+20 })
	for range turns {
		await.Receive(h.began)
	}
	testsupport.Eventually(t, "20 wait", func() bool { return s.Handshaking() == 20 })
	close(h.goOn)
	for _, end := range ended {
		if err := await.Receive(end); err != nil {
			t.Error(err)
		}
	}
	if most := int(h.most.Load()); most != turns {
		t.Errorf("%d were computed at once, want %d", most, turns)
	}
}

// Invariant 58: a client that is silent in its handshake keeps no other out.
func TestAHandshakeThatWaitsForItsClientHasNoTurn(t *testing.T) {
	h := newHandshakes(t)
	close(h.goOn)
	address := testsupport.Start(t, server.Options{TLS: h.config()})
	hello := clientHello(t)
	for _, sent := range []string{hello, hello[:len(hello)-1]} {
		for range turns {
			testsupport.Send(t, testsupport.DialTCP(t, address), sent)
		}
	}
	for range turns {
		await.Receive(h.began)
	}
	if err := await.Receive(h.start(t, address, "healthy")); err != nil {
		t.Error(err)
	}
}

// clientHello returns the first bytes of a client.
func clientHello(t testing.TB) string {
	near, far := net.Pipe()
	defer far.Close()
	go func() { _ = tls.Client(near, &tls.Config{InsecureSkipVerify: true}).Handshake() }() // ends with the pipe
	buffer := make([]byte, 8<<10)
	n, err := io.ReadAtLeast(far, buffer, 100)
	if err != nil {
		t.Fatal(err)
	}
	return string(buffer[:n])
}

func TestAHandshakeThatGetsNoTurnInTimeIsCounted(t *testing.T) {
	t.Parallel()
	h := newHandshakes(t)
	address, s := testsupport.StartServer(t, server.Options{TLS: h.config()}, func(s *server.Server) { s.SetAuthenticationTimeout(500 * time.Millisecond) })
	defer close(h.goOn)
	for range turns {
		h.start(t, address, "first")
		await.Receive(h.began)
	}
	if err := await.Receive(h.start(t, address, "late")); err == nil {
		t.Error("its handshake succeeded")
	}
	testsupport.Eventually(t, "it is counted", func() bool { return s.Stats().Refused[server.RefusedSlow] == 1 })
}

// startStandby answers clients on a free port of this machine, as a server that stands by.
func startStandby(t *testing.T, options server.Options, active func() string) (address string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	options.Listener = testsupport.Listen(t)
	ended := make(chan error, 1)
	go func() { ended <- server.StandBy(ctx, options, active) }()
	var once atomic.Bool
	stop = func() {
		if once.Swap(true) {
			return
		}
		cancel()
		if err := await.Receive(ended); err != nil {
			t.Errorf("StandBy: %v", err)
		}
	}
	t.Cleanup(stop)
	return options.Listener.Addr().String(), stop
}

func at(address string) func() string { return func() string { return address } }

func TestOurClientGoesFromAStandbyToTheActiveServer(t *testing.T) {
	active := testsupport.Start(t, server.Options{})
	far, _ := startStandby(t, server.Options{}, nil)
	near, _ := startStandby(t, server.Options{}, at(active))
	client := testsupport.Dial(t, strings.Join([]string{near, "mqtt://" + far, "mqtt://" + active}, ","), transport.Options{})
	if got := client.Connection(); got.Broker != "mqtt://"+active {
		t.Errorf("%+v", got)
	}
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestAPlainClientIsSentToTheActiveServer(t *testing.T) {
	for _, test := range []struct{ name, active, want string }{
		{"known", "b.example:8883", "b.example:8883"},
		{"unknown", "", ""},
		{"no text", "b\xff", ""},
		{"a control character", "b\n", ""},
		{"too long", strings.Repeat("b", 301), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, _ := startStandby(t, server.Options{}, at(test.active))
			p, err := testsupport.TryConnect(t, address, "a", nil)
			if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackUseAnotherServer || p.Connack.Properties.ServerReference != test.want {
				t.Fatalf("%v, %+v", err, p.Connack)
			}
			if !strings.Contains(p.Connack.Properties.ReasonString, "stands by") {
				t.Errorf("reason %q", p.Connack.Properties.ReasonString)
			}
		})
	}
	// What comes after the CONNECT does not cost the client the answer.
	address, _ := startStandby(t, server.Options{}, nil)
	c := testsupport.ConnectPacket{ID: "a"}.Start(t, testsupport.DialTCP(t, address))
	c.Write(bytes.Repeat([]byte{0xc0, 0}, 10_000))
	if connack, err := c.TryRead(); err != nil || connack[3] != packets.ConnackUseAnotherServer {
		t.Errorf("a client that does not wait: %x, %v", connack, err)
	}
}

func TestAStandbyHasTheTLSOfItsServer(t *testing.T) {
	t.Parallel()
	authority := certificates.New(t, "authority")
	certificate := authority.Issue(pkix.Name{CommonName: "standby"})
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: authority.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	address, _ := startStandby(t, server.Options{TLS: config}, at("b.example:8883"))
	client := authority.Issue(pkix.Name{CommonName: "client"})
	for _, test := range []struct {
		name         string
		certificates []tls.Certificate
		sent         bool // to the active server
	}{
		{"with a certificate", []tls.Certificate{client}, true},
		{"without one", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := transport.Options{TLS: transport.TLSOptions{Config: &tls.Config{RootCAs: authority.Pool, Certificates: test.certificates}}}
			// A client tries until its time is over. A second is enough for a handshake, but not on a busy machine.
			for within := time.Second; ; within *= 4 {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				_, err := transport.Dial(ctx, "mqtts://"+address, options)
				cancel()
				if err != nil && errors.Is(err, transport.ErrUseAnotherServer) == test.sent && strings.Contains(err.Error(), "b.example") == test.sent {
					return
				}
				if within > testsupport.Patience {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestInvariant56TheNumberOfConnectionsAtAStandbyIsBounded(t *testing.T) {
	var log logbuffer.Buffer
	address, stop := startStandby(t, server.Options{MaxUnauthenticated: 10, MaxUnauthenticatedPerAddress: 2, Logger: log.Logger()}, nil)
	silent := []*testsupport.RawClient{}
	for range 3 {
		silent = append(silent, testsupport.NewRaw(t, testsupport.DialTCP(t, address), "a"))
	}
	testsupport.MustBeClosed(t, silent[0].Conn)
	stop()
	for _, c := range silent {
		testsupport.MustBeClosed(t, c.Conn)
	}
	if !strings.Contains(log.String(), "--max-unauthenticated") {
		t.Errorf("the log: %s", &log)
	}
}

func TestInvariant55AnActiveThatPanicsEndsOneConnectionOnly(t *testing.T) {
	var calls atomic.Int32
	address, _ := startStandby(t, server.Options{}, func() string {
		if calls.Add(1) == 1 {
			panic("at first")
		}
		return "b:1"
	})
	if _, connack := (testsupport.ConnectPacket{ID: "a"}).TryConnect(t, address); connack != nil {
		t.Errorf("CONNACK %x", connack)
	}
	if _, connack := (testsupport.ConnectPacket{ID: "a"}).TryConnect(t, address); len(connack) < 4 || connack[3] != packets.ConnackUseAnotherServer {
		t.Errorf("the next one: %x", connack)
	}
}
