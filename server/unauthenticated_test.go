package server_test

import (
	"bytes"
	"context"
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
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

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
	if c.User != "quick" {
		await.Receive(a.goOn)
	}
	if c.User == "mallory" {
		return errors.New("wrong password")
	}
	return nil
}

// elsewhere is a listener that gives its connections remote addresses from a channel.
type elsewhere struct {
	net.Listener
	from chan string
}

func (e elsewhere) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return distant{conn, &net.TCPAddr{IP: net.ParseIP(await.Receive(e.from)), Port: 1}}, nil
}

type distant struct {
	net.Conn
	remote net.Addr
}

func (d distant) RemoteAddr() net.Addr { return d.remote }

func fromElsewhere(t testing.TB) elsewhere {
	return elsewhere{testsupport.Listen(t), make(chan string, 1000)}
}

// Invariant 58: passwords keep no other client out.
func TestAFewPasswordsAreComparedAtATimeAndKnownOnesDoNotWait(t *testing.T) {
	authenticator := newUnhurried()
	address, s := testsupport.StartServer(t, server.Options{Authenticator: authenticator, PasswordChecks: 2})
	var callers []*testsupport.RawClient
	for i := range 20 {
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
	if most := authenticator.most.Load(); most != 2 {
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
	address := testsupport.Start(t, server.Options{Authenticator: authenticator, PasswordChecks: 2})
	testsupport.StartLogin(t, address, "victim", "mallory")
	if user := await.Receive(authenticator.began); user != "mallory" {
		t.Fatal(user)
	}
	p := testsupport.Connect(t, address, "victim", testsupport.As("quick"))
	p.MustGet("k", "")
}

func TestLoginsTakeTurnsByRemoteAddress(t *testing.T) {
	authenticator := newUnhurried()
	elsewhere := fromElsewhere(t)
	address, s := testsupport.StartServer(t, server.Options{Listener: elsewhere, Authenticator: authenticator, PasswordChecks: 1, AllowInsecure: true})
	waits := func(n int) {
		t.Helper()
		testsupport.Eventually(t, fmt.Sprint(n, " wait"), func() bool { _, waiting := s.Unauthenticated(); return waiting == n })
	}
	elsewhere.from <- "192.0.2.1"
	testsupport.StartLogin(t, address, "first", "first")
	if user := await.Receive(authenticator.began); user != "first" {
		t.Fatal(user)
	}
	for i, visit := range []struct{ source, user string }{
		{"192.0.2.1", "flood-1"}, {"192.0.2.1", "flood-2"}, {"192.0.2.1", "flood-3"},
		{"2001:db8:0:1::1", "six-1"}, {"2001:db8:0:1::2", "six-2"}, {"192.0.2.2", "healthy"},
	} {
		elsewhere.from <- visit.source
		testsupport.StartLogin(t, address, visit.user, visit.user)
		waits(i + 1)
	}
	close(authenticator.goOn)
	var order []string
	for range 6 {
		order = append(order, await.Receive(authenticator.began))
	}
	if got := strings.Join(order, " "); got != "flood-1 six-1 healthy flood-2 six-2 flood-3" {
		t.Errorf("the order is %s", got)
	}
}

func TestALoginWithoutAPlaceIsRefusedAsServerBusy(t *testing.T) {
	authenticator := newUnhurried()
	defer close(authenticator.goOn)
	elsewhere := fromElsewhere(t)
	address, s := testsupport.StartServer(t, server.Options{Listener: elsewhere, Authenticator: authenticator, PasswordChecks: 1, MaxUnauthenticated: 6, MaxUnauthenticatedPerAddress: 4})
	for i, source := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"} {
		elsewhere.from <- source
		testsupport.StartLogin(t, address, fmt.Sprint("p-", i), "p")
		if i == 0 {
			await.Receive(authenticator.began)
			continue
		}
		testsupport.Eventually(t, "it waits", func() bool { _, waiting := s.Unauthenticated(); return waiting == i })
	}
	for _, test := range []struct{ name, source string }{
		{"as many as may wait of one address", "192.0.2.1"},
		{"as many as may wait in all", "192.0.2.3"},
	} {
		elsewhere.from <- test.source
		if got := testsupport.StartLogin(t, address, "late", "p").ReasonCode(); got != 0x89 {
			t.Errorf("%s: %#x", test.name, got)
		}
	}
	elsewhere.from <- "192.0.2.4"
	old := testsupport.DialTCP(t, address)
	testsupport.Send(t, old, "\x10\x16\x00\x04MQTT\x04\xc2\x00\x3c\x00\x04late\x00\x01p\x00\x01x") // MQTT 3.1.1
	answer := make([]byte, 4)
	if _, err := io.ReadFull(old, answer); err != nil || answer[0] != 0x20 || answer[3] != 3 {
		t.Errorf("MQTT 3.1.1: % x, %v", answer, err)
	}
	if got := s.Stats(); got.Refused[server.RefusedBusy] != 3 || got.RefusedConnections != 3 {
		t.Errorf("stats %+v", got)
	}
}

func TestTheOldestConnectionWithoutCONNECTIsClosedForANewOne(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]func(int) string{
		"all from this machine":     func(int) string { return "127.0.0.1" },
		"each from another address": func(i int) string { return fmt.Sprint("192.0.2.", i) },
	} {
		t.Run(name, func(t *testing.T) {
			elsewhere := fromElsewhere(t)
			for i := range 100 { // more than connect
				elsewhere.from <- from(i)
			}
			mustCloseTheOldestForANewOne(t, elsewhere)
		})
	}
}

func mustCloseTheOldestForANewOne(t *testing.T, listener net.Listener) {
	address, s := testsupport.StartServer(t, server.Options{Listener: listener, MaxUnauthenticated: 3})
	p := testsupport.Connect(t, address, "p", nil)
	var silent []net.Conn
	for i := range 3 {
		silent = append(silent, testsupport.DialTCP(t, address))
		testsupport.Eventually(t, "it is accepted", func() bool { all, _ := s.Unauthenticated(); return all == i+1 })
	}
	q := testsupport.Connect(t, address, "q", nil)
	testsupport.MustBeClosed(t, silent[0])
	testsupport.MustBeOpen(t, silent[1])
	testsupport.MustBeOpen(t, silent[2])
	p.MustGet("k", "")
	q.MustGet("k", "")
	if got := s.Stats(); got.Refused[server.RefusedUnauthenticated] != 1 || got.RefusedConnections != 1 {
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

// Invariant 58: connections of one address keep no other address out.
func TestAFullAddressReplacesItsOwnConnectionsOnly(t *testing.T) {
	elsewhere := fromElsewhere(t)
	address, s := testsupport.StartServer(t, server.Options{Listener: elsewhere, MaxUnauthenticated: 10, MaxUnauthenticatedPerAddress: 2})
	var silent []net.Conn
	for i, source := range []string{"192.0.2.2", "192.0.2.1", "192.0.2.1", "192.0.2.1"} {
		elsewhere.from <- source
		silent = append(silent, testsupport.DialTCP(t, address))
		testsupport.Eventually(t, "it is accepted", func() bool { return s.Sockets()+int(s.Stats().RefusedConnections) == i+1 })
	}
	testsupport.MustBeClosed(t, silent[1])
	for _, i := range []int{0, 2, 3} {
		testsupport.MustBeOpen(t, silent[i])
	}
}

// A new connection must not replace one that has sent its CONNECT.
func TestAConnectionWhosePasswordIsComparedIsNotClosedForANewOne(t *testing.T) {
	t.Parallel()
	authenticator := newUnhurried()
	address, s := testsupport.StartServer(t, server.Options{Authenticator: authenticator, PasswordChecks: 1, MaxUnauthenticated: 4})
	callers := []*testsupport.RawClient{testsupport.StartLogin(t, address, "a", "a"), testsupport.StartLogin(t, address, "b", "b")}
	testsupport.Eventually(t, "one waits", func() bool { _, waiting := s.Unauthenticated(); return waiting == 1 && authenticator.now.Load() == 1 })
	for i := range 5 {
		testsupport.DialTCP(t, address)
		testsupport.Eventually(t, "it is accepted", func() bool { all, _ := s.Unauthenticated(); return all+int(s.Stats().RefusedConnections) == i+3 })
	}
	close(authenticator.goOn)
	for _, c := range callers {
		if code := c.ReasonCode(); code != 0 {
			t.Errorf("refused with %#x", code)
		}
	}
}

func TestTheTimeToAuthenticateIsBounded(t *testing.T) {
	t.Parallel()
	t.Run("without CONNECT", func(t *testing.T) {
		address, s := testsupport.StartServer(t, server.Options{}, func(s *server.Server) { s.SetAuthenticationTimeout(100 * time.Millisecond) })
		conn := testsupport.DialTCP(t, address)
		testsupport.MustBeClosed(t, conn)
		testsupport.Eventually(t, "no connection is left", func() bool { all, _ := s.Unauthenticated(); return all == 0 })
	})
	t.Run("while the password waits", func(t *testing.T) {
		authenticator := newUnhurried()
		address, s := testsupport.StartServer(t, server.Options{Authenticator: authenticator, PasswordChecks: 1}, func(s *server.Server) { s.SetAuthenticationTimeout(time.Second) })
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

// A server that stops does not wait for passwords that have not been compared.
func TestShutdownSkipsPasswordsThatWait(t *testing.T) {
	authenticator := newUnhurried()
	s, err := server.New(server.Options{Addr: "127.0.0.1:0", Authenticator: authenticator, PasswordChecks: 1})
	if err != nil {
		t.Fatal(err)
	}
	s.SetAuthenticationTimeout(time.Hour)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	for i := range 10 {
		testsupport.StartLogin(t, s.Addr().String(), fmt.Sprint(i), "p")
	}
	testsupport.Eventually(t, "9 wait", func() bool { _, waiting := s.Unauthenticated(); return waiting == 9 })
	stop()
	testsupport.Eventually(t, "none waits", func() bool { _, waiting := s.Unauthenticated(); return waiting == 0 })
	close(authenticator.goOn)
	if err := await.Receive(served); err != nil {
		t.Error(err)
	}
	if n := len(authenticator.began); n != 1 {
		t.Errorf("%d were compared", n)
	}
}

// Invariant 58: log lines keep no other client out.
func TestRefusedLoginsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	log := new(logbuffer.Buffer)
	address, s := testsupport.StartServer(t, server.Options{
		Authenticator: testsupport.Credentials{Came: make(chan access.Credentials, 300), Refuse: errors.New("x" + strings.Repeat("\n\x00", 30_000))},
		Logger:        log.Logger(),
	})
	long := strings.Repeat("\"\u202e", 900) // twice, about as much as fits into a CONNECT
	for range 300 {
		_, _ = testsupport.TryConnect(t, address, long, testsupport.As(long))
	}
	if got := s.Stats().RefusedConnections; got != 300 {
		t.Errorf("%d are counted", got)
	}
	text := log.String()
	lines := strings.Count(text, "\n")
	if len(text) > 4000*lines || lines > 100 || !strings.Contains(text, "remote=127.0.0.1:") || strings.Contains(text, "\u202e") {
		t.Errorf("%d bytes in %d lines, which begin with %.1000s", len(text), lines, text)
	}
}

func TestAKeepAliveIsAtMostFiveMinutes(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, test := range []struct{ asked, told uint16 }{{0, 60}, {1, 0}, {300, 0}, {301, 300}, {65535, 300}} {
		p := testsupport.Connect(t, address, "p", func(c *paho.Connect) { c.KeepAlive = test.asked })
		var told uint16
		if got := p.Connack.Properties.ServerKeepAlive; got != nil {
			told = *got
		}
		if told != test.told {
			t.Errorf("keep-alive %d: the server says %d, want %d", test.asked, told, test.told)
		}
	}
}

// The CONNACK of MQTT 3 has no keep-alive.
func TestAClientOfMQTT3KeepsItsKeepAlive(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	for _, asked := range []uint16{0, 1, 600, 50_000, 65_535} {
		conn := testsupport.DialTCP(t, address)
		testsupport.Send(t, conn, "\x10\x0d\x00\x04MQTT\x04\x02"+string([]byte{byte(asked >> 8), byte(asked)})+"\x00\x01p")
		answer := make([]byte, 4)
		if _, err := io.ReadFull(conn, answer); err != nil || answer[3] != 0 {
			t.Fatalf("keep-alive %d: % x, %v", asked, answer, err)
		}
		want := time.Duration(asked) * time.Second * 3 / 2 // [MQTT-3.1.2-22]
		if asked == 0 {
			want = 90 * time.Second
		}
		if got := s.SilenceAllowed("p"); got != want {
			t.Errorf("with a keep-alive of %d s a client may be silent for %v, want %v", asked, got, want)
		}
	}
}

func TestAClientOfMQTT3IsRefusedWithACodeOfMQTT3(t *testing.T) {
	address := testsupport.Start(t, server.Options{MaxClients: 1})
	testsupport.Connect(t, address, "p", nil)
	conn := testsupport.DialTCP(t, address)
	testsupport.Send(t, conn, "\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01q")
	answer := make([]byte, 4)
	if _, err := io.ReadFull(conn, answer); err != nil || answer[3] != 3 {
		t.Errorf("% x, %v; want return code 3", answer, err)
	}
}

func TestRunningOutOfDescriptorsIsLoggedWithItsCureAtABoundedRate(t *testing.T) {
	t.Parallel()
	log := new(logbuffer.Buffer)
	var calls atomic.Int64
	failing := &testsupport.FailingListener{Listener: testsupport.Listen(t), Failure: func(call int64) error {
		calls.Store(call)
		return testsupport.AcceptError(syscall.EMFILE)
	}}
	testsupport.Start(t, server.Options{Listener: failing, Logger: log.Logger()})
	testsupport.Eventually(t, "it fails often", func() bool { return calls.Load() > 30 && strings.Contains(log.String(), "omitted=") })
	text := log.String()
	if lines := strings.Count(text, "cannot accept"); lines > 25 || runtime.GOOS != "windows" && !strings.Contains(text, "ulimit -n") {
		t.Errorf("%d lines of %d failures: %s", lines, calls.Load(), text)
	}
}

// timed reports a read of the connection without a deadline.
type timed struct {
	net.Conn
	limit   atomic.Pointer[time.Time]
	forever chan<- bool
	first   sync.Once
}

func (c *timed) SetDeadline(limit time.Time) error {
	c.limit.Store(&limit)
	return c.Conn.SetDeadline(limit)
}

func (c *timed) SetReadDeadline(limit time.Time) error {
	c.limit.Store(&limit)
	return c.Conn.SetReadDeadline(limit)
}

func (c *timed) Read(to []byte) (int, error) {
	c.first.Do(func() { limit := c.limit.Load(); c.forever <- limit == nil || limit.IsZero() })
	return c.Conn.Read(to)
}

type timing struct {
	net.Listener
	forever chan<- bool
}

func (l timing) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &timed{Conn: conn, forever: l.forever}, nil
}

func TestTheServerWaitsForACONNECTForALimitedTime(t *testing.T) {
	forever := make(chan bool, 1)
	s, err := server.New(server.Options{Listener: timing{testsupport.Listen(t), forever}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	testsupport.DialTCP(t, s.Addr().String())
	select {
	case is := <-forever:
		if is {
			t.Error("the first read has no deadline")
		}
	case <-time.After(testsupport.Patience):
		t.Error("nothing is read")
	}
	stop()
	testsupport.MustReturn(t, served, nil)
}

func TestAStormOfBrokenConnectionsHarmsNoClient(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	p := testsupport.Connect(t, address, "p", nil)
	before := runtime.NumGoroutine()
	hello := testsupport.ConnectPacket{ID: "storm"}.Packet()
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 100 {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Error(err)
					return
				}
				// Each sends less than a CONNECT, and "storm" is many of them.
				_, _ = conn.Write(hello[:(i*100+j)%(len(hello)+1)])
				_ = conn.(*net.TCPConn).SetLinger(0) // leaves no TIME_WAIT behind
				_ = conn.Close()
			}
		})
	}
	for i := range 50 {
		p.MustGet(fmt.Sprint(i), "")
	}
	await.Done(group.Wait)
	testsupport.Eventually(t, "the storm is over", func() bool { return s.Sockets() == 1 })
	testsupport.MustEndGoroutines(t, before)
	if got := s.Stats().Connected; got != 1 {
		t.Errorf("%d clients are connected", got)
	}
	p.MustGet("k", "")
}

func TestAnOversizeCONNECTIsNotAllocated(t *testing.T) {
	// A server that waits for more is not saved by the end of the time to log in.
	address, _ := testsupport.StartServer(t, server.Options{}, func(s *server.Server) { s.SetAuthenticationTimeout(10 * testsupport.Patience) })
	p := testsupport.Connect(t, address, "p", nil)
	allocated := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.TotalAlloc
	}
	for before, i := allocated(), 1; i <= 50; i++ {
		conn := testsupport.DialTCP(t, address)
		testsupport.Send(t, conn, "\x10\xff\xff\xff\x7f\x00\x04MQTT\x05") // 256 MB, it says
		if answer, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the server waits for all of it")
		} else if !bytes.HasPrefix(answer, []byte{0x20}) || !bytes.Contains(answer, []byte("at most 8192 are accepted")) {
			t.Errorf("it is answered by %q (%v)", answer, err)
		}
		// Half of one: far below the announced size, and far above the real cost.
		if got := allocated() - before; got > 128<<20 {
			t.Fatalf("%d connections that announced 256 MB made the process allocate %d MB", i, got>>20)
		}
	}
	p.MustGet("k", "")
}

func TestTheMaximumPacketSizeHoldsForCONNECT(t *testing.T) {
	const limit = 4096
	address := testsupport.Start(t, server.Options{MaxPacketSize: limit})
	of := func(size int) []byte {
		padded := func(by int) []byte {
			return testsupport.ConnectPacket{ID: "p", Properties: rawmqtt.Body(nil).User("padding", strings.Repeat("x", by))}.Packet()
		}
		packet := padded(size - len(padded(0)) - 2) // two bytes more, in the lengths of the packet and of its properties
		if len(packet) != size {
			t.Fatalf("made a CONNECT of %d bytes instead of %d", len(packet), size)
		}
		return packet
	}
	for _, test := range []struct {
		size     int
		accepted bool
	}{{limit, true}, {limit + 8, false}, {2 * limit, false}} {
		conn := testsupport.DialTCP(t, address)
		testsupport.Send(t, conn, string(of(test.size)))
		got, err := packets.ReadPacket(conn)
		if err != nil {
			t.Errorf("a CONNECT of %d bytes: %v", test.size, err)
			continue
		}
		want := byte(packets.ConnackSuccess)
		if !test.accepted {
			want = packets.ConnackPacketTooLarge
		}
		if connack, ok := got.Content.(*packets.Connack); !ok || connack.ReasonCode != want {
			t.Errorf("a CONNECT of %d bytes: %v", test.size, got)
		}
	}
}
