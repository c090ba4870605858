// Package adminclient asks the status page of a process that runs a store, without a proxy of the environment: a
// probe on one machine must not depend on another one.
package adminclient

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/tenurelock/tenure/server/activity"
)

// maxAnswer bounds what is read of an answer, in bytes, and maxLine what is shown of it.
const maxAnswer, maxLine = 2 * activity.MaxJSON, 200

// ErrAddress is the error for an address that is none.
var ErrAddress = errors.New("write the address of a status page like 127.0.0.1:8080")

// Ask asks a probe: "/healthz", "/readyz" or "/readyz?standby=ok". It returns whether the answer is yes, and the line
// that says it, with whatever bytes it has.
func Ask(ctx context.Context, address, probe string) (yes bool, line string, err error) {
	answer, text, err := get(ctx, address, probe)
	if err != nil {
		return false, "", err
	}
	line, _, _ = strings.Cut(string(text[:min(len(text), maxLine)]), "\n")
	switch {
	case answer.StatusCode == http.StatusOK && (strings.HasPrefix(line, "ready") || strings.HasPrefix(line, "ok")):
		return true, line, nil
	case answer.StatusCode == http.StatusServiceUnavailable:
		return false, line, nil
	}
	return false, "", unexpected(answer, text)
}

// State returns what the page shows now.
func State(ctx context.Context, address string) (state activity.State, err error) {
	answer, text, err := get(ctx, address, "/api/state")
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(text, &state); err != nil || state.At.IsZero() {
		return state, unexpected(answer, text)
	}
	return state, nil
}

// get asks for a path.
func get(ctx context.Context, address, path string) (*http.Response, []byte, error) {
	if strings.HasPrefix(address, ":") { // as serve listens on all addresses
		address = "127.0.0.1" + address
	}
	page := url.URL{Scheme: "http", Host: address}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String()+path, nil)
	if err != nil || address == "" {
		return nil, nil, ErrAddress
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		return nil, nil, fmt.Errorf("the status page does not answer: %w: is its address %s?", err, address)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer)) // what has come says more than the error
	return answer, text, nil
}

// unexpected is the error for an answer that is none of a status page.
func unexpected(answer *http.Response, text []byte) error {
	return fmt.Errorf("%s answers %q: is that the status page of tenure? %.*q", answer.Request.Host, answer.Status, maxLine, text)
}
