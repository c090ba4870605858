// Package admin is the status page of a process that runs a store: which node leads each name, and
// why none does. It also answers probes and has metrics.
//
//	/             the page, one HTML file
//	/api/state    what the page shows, as JSON
//	/healthz      200 while the process works
//	/readyz       200 while it answers requests; with ?standby=ok also while it stands by
//	/metrics      metrics in the format of Prometheus
//
// It only reads: GET and HEAD are all that it answers. It has no login and no encryption, so it
// listens on the machine's own addresses unless told otherwise.
package admin

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/localhttp"
)

// Options configures Listen.
type Options struct {
	// Addr is where to listen, as host:port that CheckAddress allows. Port 0 takes a free one.
	Addr string
	// Hosts are the names, beside localhost and IP addresses, for which requests are answered.
	Hosts []string
	// Node is what the process does. It must not be nil.
	Node *Node
	// About describes the process.
	About About
	// Logger receives what goes wrong. It must not be nil.
	Logger *slog.Logger
}

// About is what does not change while a process runs.
type About struct {
	Mode    string // what the process runs: "serve" or "attach"
	Version string // of the program
	Commit  string // from which it was built; may be empty
}

const (
	// maxConnections bounds the open connections.
	maxConnections = 128
	// maxHeader bounds a request, in bytes.
	maxHeader = 16 << 10
	// readTimeout bounds how long a request may take to arrive, writeTimeout how long a client may take to
	// read an answer, and idleTimeout how long a connection may have no request.
	readTimeout, writeTimeout, idleTimeout = 5 * time.Second, 10 * time.Second, time.Minute
)

// Server answers requests about a process. Listen makes one.
type Server struct {
	socket net.Listener
	http   *http.Server
}

// Listen takes the address, so that an error comes before anything else starts. The caller calls
// Serve, which frees it.
func Listen(options Options) (*Server, error) {
	socket, err := net.Listen("tcp", options.Addr)
	if err != nil {
		return nil, err
	}
	return &Server{socket, &http.Server{
		Handler:        newGuard(options),
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(options.Logger.Handler(), slog.LevelDebug),
	}}, nil
}

// newGuard returns the handler of all requests.
func newGuard(options Options) *guard {
	view := newView(options)
	routes := http.NewServeMux()
	routes.HandleFunc("GET /{$}", servePage)
	routes.Handle("GET /api/state", limited(maxAnswers, view.serveState))
	routes.Handle("GET /metrics", limited(maxScrapes, newMetrics(view).serve))
	routes.HandleFunc("GET /healthz", view.serveHealth)
	routes.HandleFunc("GET /readyz", view.serveReady)
	hosts := make([]string, 0, len(options.Hosts))
	for _, host := range options.Hosts {
		hosts = append(hosts, strings.ToLower(host))
	}
	return &guard{hosts: hosts, next: routes}
}

// URL returns the address of the page.
func (s *Server) URL() string { return "http://" + s.socket.Addr().String() + "/" }

// Serve answers requests until ctx ends. Then it ends all connections, and returns nil when no
// request is left. Any other error says why it could not go on. It is called once.
func (s *Server) Serve(ctx context.Context) error {
	return localhttp.Serve(ctx, s.socket, maxConnections, s.http)
}
