// Package adminclient asks the status page of a process that runs a store: tenure serve or tenure
// attach with --admin.
//
// The address of a page is the text with which it was started, so one variable (TENURE_ADMIN) serves
// a process and the commands that ask it: host:port, or the URL of the page. No host, as in :8080,
// and the addresses that stand for all of a machine are this machine. A URL may also name a
// reverse proxy, with https and a path.
//
// The page is asked without a proxy of the environment (HTTP_PROXY): a probe on one machine must not
// depend on another one.
package adminclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/tenurelock/tenure/server/activity"
)

const (
	// maxState and maxLine bound what is read of an answer, in bytes.
	maxState = 2 * activity.MaxJSON
	maxLine  = 4 << 10
)

// A Probe is a question about a process.
type Probe string

// The probes.
const (
	Ready          Probe = "/readyz"            // does it answer requests?
	ReadyOrStandby Probe = "/readyz?standby=ok" // does it answer requests, or stand by?
	Live           Probe = "/healthz"           // does it work?
)

const examples = "write it like 127.0.0.1:8080 or http://127.0.0.1:8080"

// parse returns the parts of an address. Its errors repeat no password.
func parse(address string) (*url.URL, error) {
	text := address
	var noPort error
	if !strings.Contains(text, "://") {
		text = "http://" + text
		_, _, noPort = net.SplitHostPort(address)
	}
	page, err := url.Parse(text)
	switch {
	case strings.Contains(address, "@"):
		return nil, errors.New("the address of a status page has no user and no password; " + examples)
	case err != nil, noPort != nil, page.Host == "", page.Scheme != "http" && page.Scheme != "https",
		page.RawQuery != "", page.Fragment != "", text != address && page.Path != "":
		return nil, fmt.Errorf("%q is not the address of a status page; %s", address, examples)
	}
	return page, nil
}

// ListenAddress returns host:port of an address, for the process that serves the page.
func ListenAddress(address string) (string, error) {
	page, err := parse(address)
	switch {
	case err != nil:
		return "", err
	case page.Scheme != "http":
		return "", fmt.Errorf("%q: the status page has no encryption; listen on 127.0.0.1 and put a proxy before it", address)
	case strings.Trim(page.Path, "/") != "" || page.Port() == "":
		return "", fmt.Errorf("%q is not an address to listen on; %s", address, examples)
	}
	return page.Host, nil
}

// Page is a status page. Its methods may be called from several goroutines at once.
type Page struct {
	url    *url.URL
	client *http.Client
}

// New returns the page at an address. The error says how to write one. The caller calls Close.
func New(address string) (*Page, error) {
	page, err := parse(address)
	if err != nil {
		return nil, err
	}
	host := page.Hostname()
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if err == nil && ip.Is6() {
			host = "::1"
		}
		page.Host = strings.TrimSuffix(net.JoinHostPort(host, page.Port()), ":") // the scheme says which port
	}
	return &Page{url: page, client: &http.Client{
		Transport:     &http.Transport{DisableCompression: true, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes connections that no call uses.
func (p *Page) Close() { p.client.CloseIdleConnections() }

// String returns the URL of the page.
func (p *Page) String() string { return p.url.String() }

// get asks for a path, and returns at most limit bytes of the answer.
func (p *Page) get(ctx context.Context, path string, limit int64) (*http.Response, []byte, error) {
	path, query, _ := strings.Cut(path, "?")
	at := p.url.JoinPath(path)
	at.RawQuery = query
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	answer, err := p.client.Do(request)
	if err != nil {
		return nil, nil, p.failure(ctx, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	switch {
	case err != nil:
		return nil, nil, p.failure(ctx, err)
	case int64(len(text)) > limit:
		return nil, nil, fmt.Errorf("%s answers with more than %d bytes", p, limit)
	}
	return answer, text, nil
}

// failure returns why a request failed: the cause of its context if that has ended.
func (p *Page) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if request := (*url.Error)(nil); errors.As(err, &request) { // it repeats the URL
		err = request.Err
	}
	return fmt.Errorf("%w: is %s the status page of tenure?", err, p)
}

// unexpected is the error for an answer that is none of a status page.
func (p *Page) unexpected(answer *http.Response, text []byte) error {
	return fmt.Errorf("%s answers %q: is that the status page of tenure? %.200q", p, answer.Status, firstLine(text))
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

// State returns what the page shows now.
func (p *Page) State(ctx context.Context) (activity.State, error) {
	var state activity.State
	answer, text, err := p.get(ctx, "/api/state", maxState)
	switch {
	case err != nil:
		return state, err
	case answer.StatusCode != http.StatusOK:
		return state, p.unexpected(answer, text)
	}
	if err := json.Unmarshal(text, &state); err != nil || state.At.IsZero() {
		return activity.State{}, p.unexpected(answer, text)
	}
	return state, nil
}

// Ask asks a probe. It returns the answer, and the line that says it, such as "ready: active" or "not
// ready: loading: …", with whatever bytes it has.
func (p *Page) Ask(ctx context.Context, probe Probe) (yes bool, line string, err error) {
	answer, text, err := p.get(ctx, string(probe), maxLine)
	if err != nil {
		return false, "", err
	}
	line = firstLine(text)
	good := "ready"
	if probe == Live {
		good = "ok"
	}
	switch {
	case answer.StatusCode == http.StatusOK && strings.HasPrefix(line, good):
		return true, line, nil
	case answer.StatusCode == http.StatusServiceUnavailable && strings.HasPrefix(line, "not "):
		return false, line, nil
	}
	return false, "", p.unexpected(answer, text)
}
