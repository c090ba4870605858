package adminclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func TestOneTextIsTheAddressToListenOnAndToAsk(t *testing.T) {
	for _, test := range []struct{ address, listen, ask string }{
		{"127.0.0.1:8080", "127.0.0.1:8080", "http://127.0.0.1:8080"},
		{"localhost:8080", "localhost:8080", "http://localhost:8080"},
		{"[::1]:8080", "[::1]:8080", "http://[::1]:8080"},
		{":8080", ":8080", "http://127.0.0.1:8080"},
		{"0.0.0.0:8080", "0.0.0.0:8080", "http://127.0.0.1:8080"},
		{"[::]:8080", "[::]:8080", "http://[::1]:8080"},
		{"http://127.0.0.1:8080", "127.0.0.1:8080", "http://127.0.0.1:8080"},
		{"https://0.0.0.0/", "", "https://127.0.0.1/"},
		{"http://[::]", "", "http://[::1]"},
		{"http://0.0.0.0:8080/", "0.0.0.0:8080", "http://127.0.0.1:8080/"},
		// Only to ask.
		{"https://plant.example/tenure/", "", "https://plant.example/tenure/"},
		{"http://plant.example", "", "http://plant.example"},
		{"http://127.0.0.1:8080/tenure", "", "http://127.0.0.1:8080/tenure"},
		// Neither.
		{"", "", ""},
		{"8080", "", ""},
		{"gateway", "", ""},
		{"::1", "", ""},
		{"127.0.0.1:8080/tenure", "", ""},
		{"ftp://host:8080", "", ""},
		{"http://", "", ""},
		{"http://user:secret@host:8080", "", ""},
		{"http://host:8080/?a=b", "", ""},
		{"http://host:8080/#a", "", ""},
		{"http://[::1", "", ""},
		{"127.0.0.1:80 80", "", ""},
	} {
		listen, err := ListenAddress(test.address)
		if listen != test.listen || (err == nil) != (test.listen != "") {
			t.Errorf("%q: listens on %q, %v", test.address, listen, err)
		}
		page, err := New(test.address)
		ask := ""
		if err == nil {
			ask = page.String()
		}
		if ask != test.ask {
			t.Errorf("%q: asks %q, %v", test.address, ask, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Error("the error repeats a password")
		}
	}
}

// serve answers each path with a function until the test ends.
func serve(t *testing.T, path string, answer http.HandlerFunc) *Page {
	t.Helper()
	routes := http.NewServeMux()
	routes.HandleFunc(path, answer)
	server := httptest.NewServer(routes)
	t.Cleanup(server.Close)
	page, err := New(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(page.Close)
	return page
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

func TestAProbeIsAnsweredOrTheAnswerIsNoneOfAStatusPage(t *testing.T) {
	for _, test := range []struct {
		name       string
		status     int
		text       string
		probe      Probe
		yes        bool
		line, want string
	}{
		{"ready", 200, "ready: active\n", Ready, true, "ready: active", ""},
		{"not ready", 503, "not ready: loading\nmore", Ready, false, "not ready: loading", ""},
		{"standing by", 200, "ready: ", ReadyOrStandby, true, "ready: standby=ok", ""},
		{"healthy", 200, "ok\n", Live, true, "ok", ""},
		{"another server", 200, "<html>", Ready, false, "", "is that the status page of tenure?"},
		{"another answer", 200, "ok", Ready, false, "", "is that the status page of tenure?"},
		{"another fault", 503, "\x1b[2Jbusy", Ready, false, "", `"\x1b[2Jbusy"`},
		{"another name", 421, "this server does not answer for that host name", Ready, false, "", "421 Misdirected Request"},
		{"no end", 200, strings.Repeat("ready", maxLine), Ready, false, "", "more than 4096 bytes"},
		{"elsewhere", 302, "", Ready, false, "", "302 Found"},
	} {
		t.Run(test.name, func(t *testing.T) {
			page := serve(t, strings.TrimSuffix(string(test.probe), "?standby=ok"), func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "http://elsewhere.example/")
				w.WriteHeader(test.status)
				fmt.Fprint(w, test.text, r.URL.RawQuery)
			})
			// A probe on this machine must not depend on a proxy.
			if transport := page.client.Transport.(*http.Transport); transport.Proxy != nil {
				t.Error("it asks a proxy of the environment")
			}
			yes, line, err := page.Ask(bounded(t), test.probe)
			if yes != test.yes || line != test.line || (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%t %q %v", yes, line, err)
			}
		})
	}
}

func TestAStateIsReadOrTheAnswerIsNoneOfAStatusPage(t *testing.T) {
	page := serve(t, "/api/state", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"at":"2026-03-01T12:00:00Z","info":{"mode":"serve"},"leases":[{"name":"press-7"}]}`)
	})
	state, err := page.State(bounded(t))
	if err != nil || state.Info.Mode != "serve" || len(state.Leases) != 1 {
		t.Errorf("%+v, %v", state, err)
	}
	for _, text := range []string{"{}", "<html>", ""} {
		page := serve(t, "/api/state", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
		if _, err := page.State(bounded(t)); err == nil || !strings.Contains(err.Error(), "is that the status page of tenure?") {
			t.Errorf("%q: %v", text, err)
		}
	}
	endless := serve(t, "/api/state", func(w http.ResponseWriter, r *http.Request) {
		block := []byte(strings.Repeat(" ", 1<<16))
		for r.Context().Err() == nil {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	if _, err := endless.State(bounded(t)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}

func TestAPageThatDoesNotAnswerIsGivenUp(t *testing.T) {
	page := serve(t, "/readyz", func(_ http.ResponseWriter, r *http.Request) { await.Next(r.Context().Done()) })
	cause := errors.New("too late")
	ctx, cancel := context.WithTimeoutCause(bounded(t), 50*time.Millisecond, cause)
	defer cancel()
	if _, _, err := page.Ask(ctx, Ready); !errors.Is(err, cause) {
		t.Error(err)
	}
}
