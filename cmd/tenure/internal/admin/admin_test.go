package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/statestore"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// served is a status page that a test serves.
type served struct {
	*admin.Server
	node *admin.Node
	stop func() error
}

// serve serves a page with options that a test changes. It ends with the test.
func serve(t *testing.T, change func(*admin.Options)) *served {
	t.Helper()
	options := admin.Options{Addr: "127.0.0.1:0", Node: admin.NewNode(), About: admin.About{Mode: "serve", Version: "v1.2.3", Commit: "0123456789abcdef"}}
	if change != nil {
		change(&options)
	}
	listening, err := admin.Listen(options)
	if err != nil {
		t.Fatal(err)
	}
	if options.About.Mode == "impatient" {
		listening.SetPatience(50 * time.Millisecond)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- listening.Serve(ctx) }()
	s := &served{Server: listening, node: options.Node}
	ended := false
	s.stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		return await.Receive(done)
	}
	t.Cleanup(func() { _ = s.stop() })
	return s
}

// show makes a page show what state returns, as if a store ran.
func show(o *admin.Options, state func(now time.Time) activity.State) {
	o.Node.Serve(admin.Store{State: func() activity.State { return state(time.Now()) }})
}

// ask sends a request with headers "Name: value", and returns the answer with its text.
func (s *served) ask(t *testing.T, method, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(s.URL(), "/")+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
		if name == "Host" {
			request.Host = value
		}
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(text)
}

func TestOnlyReadingsOfOurOwnNamesAreAnswered(t *testing.T) {
	s := serve(t, func(o *admin.Options) { o.Hosts = []string{"Tenure.Plant.Example"} })
	_, port, _ := net.SplitHostPort(s.Addr().String())
	for _, test := range []struct {
		name, method, path string
		headers            []string
		want               int
	}{
		{"the page", "GET", "/", nil, 200},
		{"its header", "HEAD", "/", nil, 200},
		{"the state", "GET", "/api/state", nil, 200},
		{"metrics", "GET", "/metrics", nil, 200},
		{"health", "GET", "/healthz", nil, 200},
		{"a path that does not exist", "GET", "/api/keys", nil, 404},
		{"a change", "POST", "/api/state", nil, 405},
		{"a deletion", "DELETE", "/", nil, 405},
		{"a preflight", "OPTIONS", "/api/state", []string{"Origin: http://evil.example"}, 405},
		{"localhost", "GET", "/", []string{"Host: localhost:" + port}, 200},
		{"localhost, absolute", "GET", "/", []string{"Host: LOCALHOST.:" + port}, 200},
		{"an IPv6 address", "GET", "/", []string{"Host: [::1]:" + port}, 200},
		{"a name that was allowed", "GET", "/", []string{"Host: tenure.plant.example"}, 200},
		{"a foreign name that resolves to us", "GET", "/", []string{"Host: evil.example:" + port}, 421},
		{"the same for the metrics", "GET", "/metrics", []string{"Host: evil.example"}, 421},
		{"a name that ends like ours", "GET", "/", []string{"Host: evil.localhost"}, 421},
		{"a page of another site that reads", "GET", "/api/events", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors"}, 403},
		{"a link from another site", "GET", "/", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"}, 200},
		{"our own page", "GET", "/api/state", []string{"Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors"}, 200},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer, text := s.ask(t, test.method, test.path, test.headers...)
			if answer.StatusCode != test.want {
				t.Errorf("%d, want %d: %.200s", answer.StatusCode, test.want, text)
			}
			if test.method == "HEAD" && text != "" {
				t.Errorf("HEAD has a body: %.100q", text)
			}
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff",
				"X-Frame-Options": "DENY", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
				"Cross-Origin-Resource-Policy": "same-origin",
			} {
				if got := answer.Header.Get(name); !strings.HasPrefix(got, want) {
					t.Errorf("%s is %q", name, got)
				}
			}
			if answer.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Error("other sites may read it")
			}
		})
	}
}

func TestThePageLoadsNothingFromElsewhere(t *testing.T) {
	s := serve(t, nil)
	answer, text := s.ask(t, "GET", "/")
	policy := answer.Header.Get("Content-Security-Policy")
	for _, want := range []string{"script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("%q is not in %q", want, policy)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q", policy)
	}
	for _, forbidden := range []string{"src=", "innerHTML", "@import", "url(", "https://", "onclick="} {
		if strings.Contains(text, forbidden) {
			t.Errorf("the page contains %q", forbidden)
		}
	}
}

func TestAnAddressThatOthersReachIsRefused(t *testing.T) {
	for _, test := range []struct {
		addr     string
		insecure bool
		want     string
	}{
		{"127.0.0.1:0", false, ""},
		{"[::1]:0", false, ""},
		{"localhost:8080", false, ""},
		{"[::ffff:127.0.0.1]:0", false, ""},
		{"0.0.0.0:8080", true, ""},
		{"0.0.0.0:8080", false, "--admin-insecure"},
		{":8080", false, "--admin-insecure"},
		{"192.0.2.7:8080", false, "--admin-insecure"},
		{"gateway:8080", false, "--admin-insecure"},
		{"8080", false, "is not host:port"},
		{"8080", true, "is not host:port"},
	} {
		err := admin.CheckAddress(test.addr, test.insecure)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q, insecure %t: %v, want %q", test.addr, test.insecure, err, test.want)
		}
	}
	if _, err := admin.Listen(admin.Options{Addr: ":0", Node: admin.NewNode()}); err == nil {
		t.Error("it listens on all addresses")
	}
}

func TestProbesSayWhetherTheProcessWorksAndWhetherItAnswers(t *testing.T) {
	attached := false
	s := serve(t, nil)
	for _, test := range []struct {
		name           string
		become         func()
		ready, standby int
		text           string
	}{
		{"while it loads", func() {}, 503, 503, "loading"},
		{"while it stands by", func() { s.node.StandBy(func() string { return "10.0.0.7:1883" }) }, 503, 200, "10.0.0.7:1883 is active"},
		{"with an active process that is not known", func() { s.node.StandBy(nil) }, 503, 200, "not known"},
		{"while a new store loads", s.node.Loading, 503, 503, "loading"},
		{"while it serves", func() { s.node.Serve(admin.Store{}) }, 200, 200, "ready: active"},
		{"without its broker", func() {
			s.node.Serve(admin.Store{Attached: func() attach.Stats { return attach.Stats{Attached: attached} }})
		}, 503, 503, "no connection to its broker"},
		{"with its broker again", func() { attached = true }, 200, 200, "ready"},
		{"while it stops", s.node.Stop, 503, 503, "asked to stop"},
		{"what comes after that", func() { s.node.Serve(admin.Store{}) }, 503, 503, "asked to stop"},
	} {
		test.become()
		ready, text := s.ask(t, "GET", "/readyz")
		if ready.StatusCode != test.ready || !strings.Contains(text, test.text) {
			t.Errorf("%s: /readyz: %d %q, want %d %q", test.name, ready.StatusCode, text, test.ready, test.text)
		}
		if standby, text := s.ask(t, "GET", "/readyz?standby=ok"); standby.StatusCode != test.standby {
			t.Errorf("%s: /readyz?standby=ok: %d %q, want %d", test.name, standby.StatusCode, text, test.standby)
		}
		if health, text := s.ask(t, "GET", "/healthz"); health.StatusCode != 200 {
			t.Errorf("%s: /healthz: %d %q", test.name, health.StatusCode, text)
		}
	}
}

func TestAStoreThatIsStuckIsNotHealthy(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	var stuck sync.Mutex
	stuck.Lock()
	defer stuck.Unlock()
	s.node.Serve(admin.Store{Usage: func() server.Usage {
		stuck.Lock()
		defer stuck.Unlock()
		return server.Usage{}
	}})
	for range 2 { // the second probe waits for the first, and does not add a goroutine
		if health, text := s.ask(t, "GET", "/healthz"); health.StatusCode != 503 || !strings.Contains(text, "restart the process") {
			t.Errorf("%d %q", health.StatusCode, text)
		}
	}
}

func TestValuesAreHiddenUnlessAskedFor(t *testing.T) {
	for _, values := range []bool{false, true} {
		s := serve(t, func(o *admin.Options) {
			o.About.Values = values
			show(o, func(time.Time) activity.State {
				return activity.State{Leases: []statestore.Lease{{Name: "press-7", Held: true, Value: "secret-word"}}}
			})
		})
		for _, path := range []string{"/api/state", "/metrics", "/api/events"} {
			var text string
			if path == "/api/events" {
				text = s.events(t).next(t, "state")
			} else {
				_, text = s.ask(t, "GET", path)
			}
			if strings.Contains(text, "secret-word") != (values && path != "/metrics") {
				t.Errorf("values %t: %s says %s", values, path, text)
			}
		}
	}
}

// events is a stream that a test reads.
type events struct {
	*bufio.Scanner
	body io.Closer
}

func (s *served) events(t *testing.T) *events {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, "GET", s.URL()+"api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s, %s", answer.Status, answer.Header.Get("Content-Type"))
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	return &events{lines, answer.Body}
}

// next returns the data of the next event with this name. It ends with the context of the stream.
func (e *events) next(t *testing.T, name string) string {
	t.Helper()
	for e.Scan() {
		if e.Text() == "event: "+name {
			e.Scan()
			return strings.TrimPrefix(e.Text(), "data: ")
		}
	}
	t.Fatalf("the stream ended: %v", e.Err())
	return ""
}

func TestAnEventComesWhenSomethingChanges(t *testing.T) {
	t.Parallel()
	changes := make(chan activity.State, 1)
	current := activity.State{}
	s := serve(t, func(o *admin.Options) {
		show(o, func(now time.Time) activity.State {
			select {
			case current = <-changes:
			default:
			}
			state := current
			state.At = now // only time has passed: that is no change
			state.Leases = []statestore.Lease{{Name: "press-7", Held: true, Holder: state.Info.Mode, LeftMillis: now.UnixMilli()}}
			return state
		})
	})
	stream := s.events(t)
	var at struct{ Now time.Time }
	if err := json.Unmarshal([]byte(stream.next(t, "time")), &at); err != nil || time.Since(at.Now).Abs() > time.Minute {
		t.Errorf("the time is %v: %v", at.Now, err)
	}
	var event struct {
		Now   time.Time
		State admin.State
	}
	read := func() {
		t.Helper()
		event.State = admin.State{}
		text := stream.next(t, "state")
		if err := json.Unmarshal([]byte(text), &event); err != nil {
			t.Fatal(err)
		}
		for _, left := range []string{`"at":`, `"leftMillis":`, `"noHolderMillis":`} {
			if strings.Contains(text, left) {
				t.Errorf("the event has %s, which changes all the time: %s", left, text)
			}
		}
	}
	read()
	if got := event.State; got.Leases[0].Holder != "" || got.Leases[0].LeftMillis != 0 || got.Info.Version != "v1.2.3" || got.Node.Role != admin.RoleActive {
		t.Errorf("the first event is %+v", got)
	}
	first := event.Now
	changes <- activity.State{Info: activity.Info{Mode: "gateway-b"}}
	read()
	if event.State.Leases[0].Holder != "gateway-b" {
		t.Errorf("the event after a change has %+v after %v", event.State.Leases[0], event.Now.Sub(first))
	}
	s.node.Serve(admin.Store{Identity: "4f2a"})
	read()
	if event.State.Info.Role != "active" || event.State.Info.Identity != "4f2a" || !event.State.Node.Ready {
		t.Errorf("the event after the role changed has %+v", event.State.Info)
	}
}

func TestStreamsAreBoundedAndEndWithTheServer(t *testing.T) {
	s := serve(t, nil)
	var streams []*events
	for range admin.MaxStreams {
		stream := s.events(t)
		stream.next(t, "time")
		streams = append(streams, stream)
	}
	if answer, text := s.ask(t, "GET", "/api/events"); answer.StatusCode != 503 || answer.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %d %q", answer.StatusCode, text)
	}
	if answer, _ := s.ask(t, "GET", "/healthz"); answer.StatusCode != 200 {
		t.Errorf("a probe meanwhile: %d", answer.StatusCode)
	}
	if err := s.stop(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	for _, stream := range streams {
		for stream.Scan() { // to its end, within the bound of its context
		}
	}
	if _, err := net.Dial("tcp", s.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}

// A page that is open on a machine that sleeps must not hold memory, nor delay other pages.
func TestAClientThatDoesNotReadIsDisconnected(t *testing.T) {
	var changes atomic.Int64
	s := serve(t, func(o *admin.Options) {
		o.About.Mode = "impatient"
		show(o, func(time.Time) activity.State {
			// Each event is larger than what the sockets of both ends hold.
			return activity.State{Totals: activity.Totals{Requests: uint64(changes.Add(1))}, Leases: []statestore.Lease{{Name: strings.Repeat("x", 8<<20)}}}
		})
	})
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(await.Patience)
	for came := false; !came || s.Streams() > 0; came = came || s.Streams() > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("came %t; %d clients read events", came, s.Streams())
		}
		time.Sleep(time.Millisecond) // between two looks; the deadline bounds the wait
	}
	if err := conn.SetReadDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still open")
	}
}

// Connections without a request, complete or not, must not shut out a probe.
func TestANewConnectionTakesThePlaceOfAnIdleOne(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, sent string }{
		{"that has asked and stays open", "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"},
		{"that says nothing", ""},
		{"that sends a part of a request", "GET /readyz HTTP/1.1\r\nHost: loc"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, nil)
			stream := s.events(t) // it is in use, so it stays
			stream.next(t, "time")
			var conns []net.Conn
			defer func() {
				for _, conn := range conns {
					_ = conn.Close()
				}
			}()
			for range 2 * admin.MaxConnections {
				conn, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, conn)
				_ = conn.SetDeadline(time.Now().Add(await.Patience))
				if _, err := io.WriteString(conn, test.sent); err != nil {
					t.Fatal(err)
				}
				if strings.HasSuffix(test.sent, "\r\n\r\n") {
					if _, err := conn.Read(make([]byte, 1<<10)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if answer, text := s.ask(t, "GET", "/healthz", "Connection: close"); answer.StatusCode != 200 {
				t.Errorf("a probe: %d %q", answer.StatusCode, text)
			}
			for i, conn := range conns[:admin.MaxConnections] {
				if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("connection %d is still open: %v", i, err)
				}
			}
			s.node.StandBy(nil)
			for !strings.Contains(stream.next(t, "state"), `"role":"standby"`) { // next ends with the stream
			}
		})
	}
}

// Nor must connections that ask again and again and do not read the answers.
func TestAProbeIsAnsweredBesideClientsThatDoNotRead(t *testing.T) {
	for _, path := range []string{"/", "/healthz"} {
		t.Run(path, func(t *testing.T) {
			s := serve(t, nil)
			ask := strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400)
			var tasks sync.WaitGroup
			defer await.Done(tasks.Wait)
			for range 2 * admin.MaxConnections {
				conn, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_ = conn.(*net.TCPConn).SetReadBuffer(1)
				tasks.Go(func() { _, _ = io.WriteString(conn, ask) }) // until it is closed
				_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
				if _, err := conn.Read(make([]byte, 1)); err != nil { // the first answer has begun
					t.Fatal(err)
				}
			}
			for range 20 {
				if answer, text := s.ask(t, "GET", "/healthz", "Connection: close"); answer.StatusCode != 200 {
					t.Fatalf("a probe: %d %q", answer.StatusCode, text)
				}
			}
		})
	}
}

// Nor must clients that connect again and again and ask nothing.
func TestAProbeIsAnsweredBesideClientsThatConnectAgainAndAgain(t *testing.T) {
	s := serve(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	defer await.Done(tasks.Wait)
	defer cancel()
	var connections atomic.Int64
	for range 2 * admin.MaxConnections {
		tasks.Go(func() {
			for ctx.Err() == nil {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr().String())
				if err != nil {
					continue
				}
				connections.Add(1)
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = conn.Read(make([]byte, 1)) // until the server closes it
				stop()
				_ = conn.Close()
			}
		})
	}
	await.Until(func() bool { return connections.Load() > 3*admin.MaxConnections })
	for range 20 {
		if answer, text := s.ask(t, "GET", "/healthz", "Connection: close"); answer.StatusCode != 200 {
			t.Fatalf("a probe: %d %q", answer.StatusCode, text)
		}
	}
}

func TestAnswersThatAreNotReadAreBounded(t *testing.T) {
	t.Parallel()
	var read atomic.Int64
	s := serve(t, func(o *admin.Options) {
		show(o, func(now time.Time) activity.State {
			read.Add(1)
			// It is larger than what the sockets of both ends hold.
			return activity.State{At: now, Clients: []activity.Client{{Client: strings.Repeat("x", 8<<20)}}}
		})
	})
	var conns []*net.TCPConn
	for range admin.MaxAnswers {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn.(*net.TCPConn))
		if err := conns[len(conns)-1].SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range conns { // all at once: they share readings, so no answer waits long to be read
		if _, err := io.WriteString(conn, "GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
		if _, err := conn.Read(make([]byte, 1)); err != nil { // the answer has begun
			t.Fatal(err)
		}
	}
	before := read.Load()
	if answer, text := s.ask(t, "GET", "/api/state"); answer.StatusCode != 503 || answer.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %d %.100q", answer.StatusCode, text)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz?standby=ok": 200, "/": 200} {
		if answer, _ := s.ask(t, "GET", path); answer.StatusCode != want {
			t.Errorf("%s meanwhile: %d, want %d", path, answer.StatusCode, want)
		}
	}
	if read.Load() != before {
		t.Error("a probe or a refusal reads the state")
	}
	if answer, _ := s.ask(t, "GET", "/metrics"); answer.StatusCode != 200 {
		t.Errorf("metrics meanwhile: %d", answer.StatusCode)
	}
}
