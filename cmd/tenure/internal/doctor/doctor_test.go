package doctor_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/doctor"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// serve is start, and returns host and port.
func serve(t *testing.T, options server.Options) (address string) {
	t.Helper()
	return start(t, options).Addr().String()
}

// start runs a server until the test ends.
func start(t *testing.T, options server.Options) *server.Server {
	t.Helper()
	options.Addr = "127.0.0.1:0"
	s, err := server.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := await.Receive(served); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// listen calls handle with each connection to a port, until the test ends.
func listen(t *testing.T, handle func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(await.Patience))
			handle(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		await.Receive(ended)
	})
	return listener.Addr().String()
}

// authority is a certificate authority with its certificate in a file.
type authority struct {
	*certificates.Authority
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{certificates.New(t, name), filepath.Join(t.TempDir(), name+".pem")}
	certificates.Write(t, a.Own, a.file, "")
	return a
}

// issue returns a certificate for names and addresses.
func (a *authority) issue(from, until time.Time, names ...string) tls.Certificate {
	return a.Issue(pkix.Name{CommonName: names[0]}, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter, c.IPAddresses = from, until, nil
		for _, name := range names {
			if ip := net.ParseIP(name); ip != nil {
				c.IPAddresses = append(c.IPAddresses, ip)
			} else {
				c.DNSNames = append(c.DNSNames, name)
			}
		}
	})
}

// users admits the client with this name and password.
type users struct{ name, password string }

func (u users) Authenticate(c access.Credentials) error {
	if c.User != u.name || string(c.Password) != u.password {
		return errors.New("wrong")
	}
	return nil
}

// readers may read all keys and write none.
type readers struct{}

func (readers) Authorize(_ access.Identity, verb statestore.Verb, _ string) bool {
	return verb == statestore.VerbGet || verb == statestore.VerbKeyNotify
}

// nothing allows nothing.
type nothing struct{}

func (nothing) Authorize(access.Identity, statestore.Verb, string) bool { return false }

// examine runs an examination with a key of its own.
func examine(ctx context.Context, options doctor.Options) doctor.Report {
	options.Prefix = "tenure-doctor"
	return doctor.Run(ctx, options)
}

func text(report doctor.Report) string {
	var b strings.Builder
	for _, step := range report.Steps {
		b.WriteString(string(step.Status) + " " + step.Name + ": " + step.Found)
		if step.Cure != "" {
			b.WriteString(" -> " + step.Cure)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestEachFaultIsFoundAtItsStepWithItsCure(t *testing.T) {
	hour := time.Hour
	now := time.Now()
	ca := newAuthority(t, "plant-ca")
	closed := listen(t, func(net.Conn) {})
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := free.Addr().String()
	_ = free.Close()

	encrypted := func(certificate tls.Certificate) string {
		return serve(t, server.Options{TLS: &tls.Config{Certificates: []tls.Certificate{certificate}}})
	}
	plain := serve(t, server.Options{})
	good := encrypted(ca.issue(now.Add(-hour), now.Add(1000*hour), "127.0.0.1", "broker.plant"))
	trusting := transport.Options{TLS: transport.TLSOptions{CAFile: ca.file}}

	older := listen(t, func(conn net.Conn) {
		var head [2]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil || head[0] != 0x10 {
			return
		}
		body := make([]byte, head[1])
		if _, err := io.ReadFull(conn, body); err != nil {
			return
		}
		code := byte(1) // unacceptable protocol version [MQTT-3.1.2-2] of MQTT 3.1.1
		if body[6] == 4 {
			code = 0
		}
		_, _ = conn.Write([]byte{0x20, 2, 0, code})
	})

	for _, test := range []struct {
		name    string
		options doctor.Options
		kind    doctor.Kind
		step    string // the first that failed
		found   string
		cure    string
	}{
		{"an address that is none", doctor.Options{Address: "http://localhost:1883"}, doctor.Usage, "address", "write it like", "--broker"},
		{"a name that does not exist", doctor.Options{Address: "mqtt://no-such-broker.invalid"}, doctor.Unreachable, "connection", "no-such-broker.invalid", "check the address"},
		{"a closed port", doctor.Options{Address: "mqtt://" + unused}, doctor.Unreachable, "connection", "refused", "tenure serve"},
		{"TLS spoken to a plain port", doctor.Options{Address: "mqtts://" + plain}, doctor.Unreachable, "connection", "write mqtt://" + plain, "usual ports"},
		{"MQTT spoken to a port for TLS", doctor.Options{Address: "mqtt://" + good}, doctor.Unreachable, "connection", "then write mqtts://" + good, "usual ports"},
		{"a port that hangs up", doctor.Options{Address: "mqtt://" + closed}, doctor.Unreachable, "connection", "no MQTT answer", "a broker runs there"},
		{"an older MQTT", doctor.Options{Address: "mqtt://" + older}, doctor.Unreachable, "connection", "answers with MQTT 3", "a broker runs there"},
		{"an expired certificate", doctor.Options{Address: "mqtts://" + encrypted(ca.issue(now.Add(-200*hour), now.Add(-100*hour), "127.0.0.1")), Client: trusting},
			doctor.Unreachable, "connection", "replace it", "a time that has not passed"},
		{"a wrong name", doctor.Options{Address: "mqtts://" + encrypted(ca.issue(now.Add(-hour), now.Add(hour), "broker.plant")), Client: trusting},
			doctor.Unreachable, "connection", "valid for broker.plant, not for 127.0.0.1", "a name of the address"},
		{"an authority that the system does not know", doctor.Options{Address: "mqtts://" + good}, doctor.Unreachable, "connection", "unknown authority", "--tls-ca"},
		{"a file that is not there", doctor.Options{Address: "mqtts://" + good, Client: transport.Options{TLS: transport.TLSOptions{CAFile: "no.pem"}}},
			doctor.Usage, "connection", "no.pem", "file"},
		{"TLS for an address without", doctor.Options{Address: "mqtt://" + plain, Client: trusting}, doctor.Usage, "connection", "does not encrypt", "correct the flag"},
		{"a missing certificate of the client", doctor.Options{Client: trusting, Address: "mqtts://" + serve(t, server.Options{TLS: &tls.Config{
			Certificates: []tls.Certificate{ca.issue(now.Add(-hour), now.Add(1000*hour), "127.0.0.1")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}})},
			doctor.Refused, "connection", "certificate", "--tls-cert"},
		{"a wrong password", doctor.Options{Address: "mqtt://" + serve(t, server.Options{Authenticator: users{"press-7", "right"}}),
			Client: transport.Options{Username: "press-7", Password: []byte("wrong")}}, doctor.Refused, "credentials", "refused the connection", "--password-file"},
		{"no password", doctor.Options{Address: "mqtt://" + serve(t, server.Options{Authenticator: users{"press-7", "right"}})},
			doctor.Refused, "credentials", "refused the connection", "does not accept anonymous clients"},
		{"a file with a password that is not there", doctor.Options{Address: "mqtt://" + plain, Client: transport.Options{PasswordFile: "no-file"}},
			doctor.Usage, "connection", "Options.PasswordFile", "file"},
		{"a client that may only read", doctor.Options{Address: "mqtt://" + serve(t, server.Options{Authorizer: readers{}})},
			doctor.Refused, "write", "not authorized", "--prefix"},
		{"a client that may do nothing", doctor.Options{Address: "mqtt://" + serve(t, server.Options{Authorizer: nothing{}})},
			doctor.Refused, "read", "not authorized", "give this client the right"},
		{"a store whose clock is five minutes ahead", doctor.Options{Address: "mqtt://" + plain, Now: func() time.Time { return time.Now().Add(-5 * time.Minute) }},
			doctor.Wrong, "clock", "behind the store's", "chrony"},
		{"a store whose clock is five minutes behind", doctor.Options{Address: "mqtt://" + plain, Now: func() time.Time { return time.Now().Add(5 * time.Minute) }},
			doctor.Wrong, "clock", "ahead of the store's", "chrony"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var told []doctor.Step
			test.options.OnStep = func(step doctor.Step) { told = append(told, step) }
			test.options.Timeout = 20 * time.Second
			report := examine(t.Context(), test.options)
			failure := report.FirstFailure()
			if failure == nil || failure.Name != test.step || failure.Kind != test.kind ||
				!strings.Contains(failure.Found, test.found) || !strings.Contains(failure.Cure, test.cure) {
				t.Errorf("found %+v, want %s (%s) with %q and %q\n%s", failure, test.step, test.kind, test.found, test.cure, text(report))
			}
			if !slices.Equal(told, report.Steps) {
				t.Errorf("told %d steps of %d", len(told), len(report.Steps))
			}
		})
	}
}

func TestAStoreThatWorksPassesEachStepAndKeepsNothing(t *testing.T) {
	ca := newAuthority(t, "plant-ca")
	certificate := ca.issue(time.Now().Add(-time.Hour), time.Now().Add(1000*time.Hour), "127.0.0.1", "broker.plant")
	for name, options := range map[string]server.Options{
		"plain": {}, "TLS and a password": {TLS: &tls.Config{Certificates: []tls.Certificate{certificate}}, Authenticator: users{"press-7", "right"}},
		"strict": {Store: statestore.Options{Strict: true, LockPrefixes: []string{"locks/"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, options)
			examined := doctor.Options{Address: "mqtt://" + s.Addr().String(), Timeout: 20 * time.Second, Client: transport.Options{ClientID: "node:a"}}
			if options.TLS != nil {
				examined.Address = "mqtts://" + s.Addr().String()
				examined.Client = transport.Options{Username: "press-7", Password: []byte("right"), TLS: transport.TLSOptions{CAFile: ca.file}}
			}
			for _, readOnly := range []bool{false, true} {
				examined.ReadOnly = readOnly
				report := examine(t.Context(), examined)
				if report.FirstFailure() != nil || report.Warnings() > 0 {
					t.Errorf("read only %v:\n%s", readOnly, text(report))
				}
				if len(report.Identity) != 32 {
					t.Errorf("%+v", report)
				}
				wrote := slices.ContainsFunc(report.Steps, func(s doctor.Step) bool { return s.Name == "notification" && s.Status == doctor.OK })
				if wrote == readOnly {
					t.Errorf("read only %v, and it wrote %v:\n%s", readOnly, wrote, text(report))
				}
			}
			if usage := s.Usage().Store; usage.Keys != 0 {
				t.Errorf("%d keys are left", usage.Keys)
			}
		})
	}
}

// The doctor sends timestamps that are a day off. The page and its alerts must not take them for its clock.
func TestTheStoreKeepsTheTrueClockOfTheDoctor(t *testing.T) {
	for name, off := range map[string]time.Duration{"right": 0, "five minutes behind": -5 * time.Minute} {
		s := start(t, server.Options{})
		examine(t.Context(), doctor.Options{Address: "mqtt://" + s.Addr().String(), Timeout: 20 * time.Second,
			Client: transport.Options{ClientID: "node-a"}, Now: func() time.Time { return time.Now().Add(off) }})
		var state activity.State
		await.Until(func() bool { // the server notes the end of a connection later than the client
			state = s.State()
			return len(state.Clients) == 1 && !state.Clients[0].Connected
		})
		client := state.Clients[0]
		if client.ClockImplausible || client.ClockOffsetMillis == nil || (time.Duration(*client.ClockOffsetMillis)*time.Millisecond-off).Abs() > time.Minute {
			t.Errorf("a clock that is %s: %+v", name, client)
		}
	}
}

func TestEachOfSeveralBrokersIsExamined(t *testing.T) {
	closed, works := listen(t, func(net.Conn) {}), serve(t, server.Options{})
	report := examine(t.Context(), doctor.Options{Address: "mqtt://" + closed + ",mqtt://" + works + ",mqtt://" + works, Timeout: 20 * time.Second})
	examined := make(map[string]int)
	for _, step := range report.Steps {
		if step.Name == "notification" && step.Status == doctor.OK {
			examined[step.Broker]++
		}
	}
	if failure := report.FirstFailure(); failure == nil || failure.Broker != closed || examined[works] != 2 || report.Identity == "" {
		t.Errorf("%+v\n%s", failure, text(report))
	}
}

// An interrupted doctor must not wait long for what it does at its end.
func TestAnInterruptedExaminationOfASilentStoreEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := servertest.New(t)
	report := await.Result(func() doctor.Report {
		return examine(ctx, doctor.Options{Address: s.URL, Timeout: time.Hour, OnStep: func(step doctor.Step) {
			if step.Name == "watch" { // the key is set next
				s.Freeze()
				cancel()
			}
		}})
	})
	if failure := report.FirstFailure(); failure == nil || failure.Name != "write" {
		t.Errorf("the store was never silent:\n%s", text(report))
	}
}

// slowConn is a connection on which each packet to the broker waits, as on a broker that gathers small
// packets until the one before is acknowledged.
type slowConn struct{ net.Conn }

func (c slowConn) Write(p []byte) (int, error) {
	time.Sleep(120 * time.Millisecond) // what the test is about; far more than a connection takes on a busy machine
	return c.Conn.Write(p)
}

func TestRoundTripsThatTheNetworkDoesNotExplainAreAWarning(t *testing.T) {
	t.Parallel()
	report := examine(t.Context(), doctor.Options{Address: "mqtt://" + serve(t, server.Options{}), Timeout: 20 * time.Second, ReadOnly: true,
		Client: transport.Options{Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return slowConn{conn}, err
		}}})
	if !slices.ContainsFunc(report.Steps, func(s doctor.Step) bool {
		return s.Name == "round trip" && s.Status == doctor.Warning && strings.Contains(s.Cure, "set_tcp_nodelay")
	}) {
		t.Error(text(report))
	}
}
