package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/statestore"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

var silent = slog.New(slog.DiscardHandler)

var about = About{Mode: "serve", Version: "v1.2.3", Commit: "0123456789abcdef"}

// serve serves a page of a node until the test ends, and returns its URL without the last slash.
func serve(t *testing.T, node *Node) string {
	t.Helper()
	listening, err := Listen(Options{Addr: "127.0.0.1:0", Node: node, About: about, Hosts: []string{"Tenure.Plant.Example"}, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- listening.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := await.Receive(done); err != nil {
			t.Error(err)
		}
		if _, err := net.Dial("tcp", listening.socket.Addr().String()); err == nil {
			t.Error("it still listens")
		}
	})
	return strings.TrimSuffix(listening.URL(), "/")
}

// ask sends a request with headers "Name: value", and returns the answer with its text.
func ask(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
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
	url := serve(t, NewNode())
	for _, test := range []struct {
		method, path, host string
		want               int
	}{
		{"GET", "/", "", 200},
		{"HEAD", "/", "", 200},
		{"GET", "/api/state", "", 200},
		{"POST", "/api/state", "", 405},
		{"OPTIONS", "/api/state", "", 405}, // a preflight
		{"GET", "/", "LOCALHOST.:8080", 200},
		{"GET", "/", "tenure.plant.example", 200},
		{"GET", "/", "evil.example:8080", 421}, // it resolves to us
		{"GET", "/", "evil.localhost", 421},
	} {
		var headers []string
		if test.host != "" {
			headers = append(headers, "Host: "+test.host)
		}
		answer, text := ask(t, test.method, url+test.path, headers...)
		if answer.StatusCode != test.want || test.method == "HEAD" && text != "" {
			t.Errorf("%+v: %d %.200q", test, answer.StatusCode, text)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", "Access-Control-Allow-Origin": "",
		} {
			if got := answer.Header.Get(name); !strings.HasPrefix(got, want) || want == "" && got != "" {
				t.Errorf("%+v: %s is %q", test, name, got)
			}
		}
	}
	answer, text := ask(t, "GET", url)
	policy := answer.Header.Get("Content-Security-Policy")
	for _, want := range []string{"script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policy, want) || strings.Contains(policy, "unsafe") {
			t.Errorf("%q is not in %q", want, policy)
		}
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
		{"localhost:8080", false, ""},
		{"0.0.0.0:8080", true, ""},
		{":8080", false, "--admin-insecure"},
		{"192.0.2.7:8080", false, "--admin-insecure"},
		{"8080", true, "is not host:port"},
	} {
		err := CheckAddress(test.addr, test.insecure)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%q, insecure %t: %v, want %q", test.addr, test.insecure, err, test.want)
		}
	}
}

func TestProbesSayWhetherTheProcessWorksAndWhetherItAnswers(t *testing.T) {
	attached := false
	node := NewNode()
	url := serve(t, node)
	for _, test := range []struct {
		name           string
		become         func()
		ready, standby int
		text           string
	}{
		{"while it loads", func() {}, 503, 503, "loading"},
		{"while it stands by", func() { node.StandBy(func() string { return "10.0.0.7:1883" }) }, 503, 200, "10.0.0.7:1883 is active"},
		{"with an active process that is not known", func() { node.StandBy(nil) }, 503, 200, "not known"},
		{"while a new store loads", node.Loading, 503, 503, "loading"},
		{"while it serves", func() { node.Serve(Store{}) }, 200, 200, "ready: active"},
		{"without its broker", func() {
			node.Serve(Store{Attached: func() attach.Stats { return attach.Stats{Attached: attached} }})
		}, 503, 503, "no connection to its broker"},
		{"with its broker again", func() { attached = true }, 200, 200, "ready"},
		{"while it stops", node.Stop, 503, 503, "asked to stop"},
		{"what comes after that", func() { node.Serve(Store{}) }, 503, 503, "asked to stop"},
	} {
		test.become()
		ready, text := ask(t, "GET", url+"/readyz")
		standby, _ := ask(t, "GET", url+"/readyz?standby=ok")
		health, _ := ask(t, "GET", url+"/healthz")
		if ready.StatusCode != test.ready || !strings.Contains(text, test.text) || standby.StatusCode != test.standby || health.StatusCode != 200 {
			t.Errorf("%s: ready %d %q, standby %d, healthy %d", test.name, ready.StatusCode, text, standby.StatusCode, health.StatusCode)
		}
	}
}

// answer returns what a handler answers.
func answer(t *testing.T, handler http.Handler, path string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost"+path, nil))
	return answer
}

func TestAStoreThatIsStuckIsNotHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stuck := NewNode(), make(chan struct{})
		var probes atomic.Int64
		node.Serve(Store{Usage: func() server.Usage {
			probes.Add(1)
			await.Receive(stuck)
			return server.Usage{}
		}})
		pages := newGuard(Options{Node: node, Logger: silent})
		for range 2 { // the second probe waits for the first, and does not add a goroutine
			if got := answer(t, pages, "/healthz"); got.Code != 503 || !strings.Contains(got.Body.String(), "restart the process") {
				t.Errorf("%d %q", got.Code, got.Body)
			}
		}
		go answer(t, pages, "/api/state") // it is stuck, too
		synctest.Wait()
		if got := answer(t, pages, "/api/state"); got.Code != 503 || got.Header().Get("Retry-After") == "" {
			t.Errorf("the state: %d %q", got.Code, got.Body)
		}
		if probes.Load() != 2 {
			t.Errorf("%d goroutines", probes.Load())
		}
		close(stuck)
	})
}

// Ten readers cost as much as one, and a client that has seen a change sees it on the page.
func TestReadersShareAReadingThatBeginsAfterTheirRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, readings := NewNode(), 0
		node.Serve(Store{State: func() activity.State {
			readings++
			time.Sleep(10 * time.Millisecond)
			return activity.NewState()
		}})
		view := newView(Options{Node: node})
		var tasks sync.WaitGroup
		for i := range 100 {
			tasks.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				asked := time.Now()
				reading, err := view.read(t.Context())
				if err != nil || reading.At.Before(asked) || time.Since(asked) > 120*time.Millisecond {
					t.Errorf("asked at %v, after %v: %v", asked, time.Since(asked), err)
				}
			})
		}
		await.Done(tasks.Wait)
		// The first at 0 ms, then one each 100 ms: they take a tenth of the time.
		if readings != 2 {
			t.Errorf("%d readings for 100 requests", readings)
		}
	})
}

func TestAnswersThatAreNotReadAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := limited(2, func(_ http.ResponseWriter, r *http.Request) { await.Receive(r.Context().Done()) })
		for range 2 {
			go answer(t, slow, "/")
		}
		synctest.Wait()
		if got := answer(t, slow, "/"); got.Code != 503 || got.Header().Get("Retry-After") == "" {
			t.Errorf("one more: %d", got.Code)
		}
	})
}

func TestTheStateHasTheProcessAndNoValues(t *testing.T) {
	node := NewNode()
	node.Describe("mqtt://10.0.0.7", "/data")
	node.Serve(Store{Identity: "4f2a", State: func() activity.State {
		return activity.State{Leases: []statestore.Lease{{Name: "press-7 <", Held: true, Value: "secret-word"}}}
	}})
	text := answer(t, newGuard(Options{Node: node, About: about, Logger: silent}), "/api/state").Body.String()
	if strings.Contains(text, "secret-word") || !strings.Contains(text, "press-7 <") {
		t.Error(text)
	}
	var state State
	if err := json.Unmarshal([]byte(text), &state); err != nil || state.Info.Identity != "4f2a" || state.Info.Role != "active" ||
		state.Info.Address != "mqtt://10.0.0.7" || !state.Node.Ready || state.Commit != about.Commit || time.Since(state.At).Abs() > time.Minute {
		t.Errorf("%+v, %v", state, err)
	}
}

// Connections without a request, or whose answers are not read, must not shut out a probe.
func TestANewConnectionTakesThePlaceOfTheOldest(t *testing.T) {
	url := serve(t, NewNode())
	for _, sent := range []string{"", "GET /readyz HTTP/1.1\r\nHost: loc", strings.Repeat("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400)} {
		var conns []net.Conn
		var tasks sync.WaitGroup
		for range 2 * maxConnections {
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
			_ = conn.(*net.TCPConn).SetReadBuffer(1)
			tasks.Go(func() { _, _ = io.WriteString(conn, sent) }) // until it is closed
		}
		if got, text := ask(t, "GET", url+"/healthz", "Connection: close"); got.StatusCode != 200 {
			t.Errorf("a probe: %d %q", got.StatusCode, text)
		}
		for _, conn := range conns[:maxConnections] {
			_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("an old connection is still open")
			}
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		await.Done(tasks.Wait)
	}
}

// Nor must clients that connect again and again.
func TestAProbeIsAnsweredBesideClientsThatConnectAgainAndAgain(t *testing.T) {
	url := serve(t, NewNode())
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	defer await.Done(tasks.Wait)
	defer cancel()
	var connections atomic.Int64
	for range 2 * maxConnections {
		tasks.Go(func() {
			for ctx.Err() == nil {
				if conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
					connections.Add(1)
					_ = conn.SetReadDeadline(time.Now().Add(time.Second))
					_, _ = conn.Read(make([]byte, 1)) // until the server closes it
					_ = conn.Close()
				}
			}
		})
	}
	await.Until(func() bool { return connections.Load() > 3*maxConnections })
	probe := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: await.Patience}
	for failures := 0; ; failures++ {
		if answer, err := probe.Get(url + "/healthz"); err == nil {
			answer.Body.Close()
			return
		} else if failures == 2 { // probes of Kubernetes fail with the third failure in a row
			t.Fatal(err)
		}
	}
}
