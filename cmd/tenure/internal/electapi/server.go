package electapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/localhttp"
)

const (
	maxConnections = 256
	maxStreams     = 64
	maxBody        = 4 << 10
	// patience bounds how long a program may take for a request or to read an answer.
	patience = 5 * time.Second
	// aliveEvery is the pause between two comments of a stream without events, by which a program notices
	// that the stream is broken.
	aliveEvery = time.Second
)

// Listen opens an address: "unix:" and a path, or host:port with an address of this machine. Only the user of
// this process, and its group, may use a Unix socket. A socket that a killed process left is replaced.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		return nil, errors.New("give unix:PATH, or host:port of this machine, where programs ask")
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return listenUnix(ctx, path)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%q is neither unix:PATH nor host:port, like 127.0.0.1:8090: %w", address, err)
	}
	if !localhttp.IsLoopback(host) {
		return nil, fmt.Errorf("%s is an address that other machines reach, and there is no login: listen on 127.0.0.1 or "+
			"a Unix socket", address)
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("%s exists and is no socket: choose another path", path)
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		switch {
		case err == nil:
			return nil, errors.Join(fmt.Errorf("another process listens on %s: one tenure elect for each socket", path),
				conn.Close())
		case !errors.Is(err, syscall.ECONNREFUSED):
			return nil, fmt.Errorf("whether another process listens on it is not known: %w", err)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	socket, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("%w; is there the directory, and may this user write to it?", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// Serve answers on a socket until ctx ends, and closes it.
func (e *Election) Serve(ctx context.Context, socket net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		state, _ := e.State()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(state) // a program that has gone asks again
	})
	streams := make(chan struct{}, maxStreams)
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		select {
		case streams <- struct{}{}:
			defer func() { <-streams }()
			e.stream(r.Context(), w)
		default:
			http.Error(w, fmt.Sprintf("%d programs follow the events already", maxStreams), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /drained", e.confirm)
	server := &http.Server{
		Handler:           guard(mux, socket.Addr().Network() == "unix"),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: patience, WriteTimeout: patience, IdleTimeout: patience, MaxHeaderBytes: maxBody,
	}
	return localhttp.Serve(ctx, socket, maxConnections, server)
}

// guard refuses what a program of this machine does not send: what a web page makes a browser send, also for a
// name that the page's owner lets stand for this machine.
func guard(next http.Handler, unix bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !unix && !localhttp.IsLoopback(localhttp.HostOf(r.Host)):
			http.Error(w, "ask for 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
		case r.Header.Get("Sec-Fetch-Site") != "" || r.Header.Get("Origin") != "":
			http.Error(w, "this is for programs, and not for web pages", http.StatusForbidden)
		default:
			w.Header().Set("Cache-Control", "no-store")
			next.ServeHTTP(w, r)
		}
	})
}

// stream writes the state whenever it changes.
func (e *Election) stream(ctx context.Context, w http.ResponseWriter) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	var last string
	for {
		state, changed := e.State()
		state.DeadlineMS = nil
		text, err := json.Marshal(state)
		if err != nil {
			return
		}
		event := ": alive\n\n"
		if string(text) != last {
			last = string(text)
			event = "data: " + last + "\n\n"
		}
		// A program that does not read loses its stream, and nothing waits for it.
		_ = out.SetWriteDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(w, event); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-alive.C:
		case <-ctx.Done():
			return
		}
	}
}

// confirm is POST /drained.
func (e *Election) confirm(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
	var body struct{ Token string }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		http.Error(w, `the body must be {"token": "…"}: `+err.Error(), http.StatusBadRequest)
		return
	}
	if !e.Drained(body.Token) {
		http.Error(w, "no term with that token drains", http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
