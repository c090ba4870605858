// Package admin is the status page of a process that runs a store: which node leads each name, and
// why none does. It also answers probes and has metrics.
//
//	/             the page, one HTML file
//	/api/state    what the page shows, as JSON
//	/api/events   the same when it changes, as server-sent events
//	/healthz      200 while the process works
//	/readyz       200 while it answers requests; with ?standby=ok also while it stands by
//	/metrics      metrics in the format of Prometheus
//
// It only reads: GET and HEAD are all that it answers. It has no login and no encryption, so it
// listens on the machine's own addresses unless told otherwise.
package admin

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Options configures Listen.
type Options struct {
	// Addr is where to listen, as host:port. Port 0 takes a free one.
	Addr string
	// AllowInsecure allows an Addr that other machines reach.
	AllowInsecure bool
	// Hosts are the names, beside localhost and IP addresses, for which requests are answered.
	Hosts []string
	// Node is what the process does. It must not be nil.
	Node *Node
	// About describes the process.
	About About
	// Logger receives what goes wrong; nil keeps silent.
	Logger *slog.Logger
}

// About is what does not change while a process runs.
type About struct {
	Mode    string // what the process runs: "serve" or "attach"
	Version string // of the program
	Commit  string // from which it was built; may be empty
	Values  bool   // the page shows values; otherwise they are left out of every answer
}

const (
	// maxConnections bounds the connections, of which a page has two. maxProtected bounds those that
	// keep their place when a new one comes: all that stream, answer or scrape, and as many probes.
	maxConnections = 128
	maxProtected   = 2 * (maxStreams + maxAnswers + maxScrapes)
	// leastAge is how long each connection keeps its place.
	leastAge = 50 * time.Millisecond
	// maxHeader bounds a request, in bytes.
	maxHeader = 16 << 10
	// readTimeout bounds how long a request may take to arrive, and idleTimeout how long a
	// connection may have none.
	readTimeout, idleTimeout = 5 * time.Second, time.Minute
	// stopTimeout bounds how long requests may go on when the server stops.
	stopTimeout = 2 * time.Second
)

// Server answers requests about a process. Listen makes one.
type Server struct {
	socket   net.Listener
	guard    *guard
	http     *http.Server
	readings *readings
	streams  *streams
	end      context.CancelFunc // of what waits for readings
}

// Listen takes the address, so that an error comes before anything else starts. The caller calls
// Serve, which frees it.
func Listen(options Options) (*Server, error) {
	if err := CheckAddress(options.Addr, options.AllowInsecure); err != nil {
		return nil, err
	}
	logger := options.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	socket, err := net.Listen("tcp", options.Addr)
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	ending, end := context.WithCancel(context.Background())
	view := &view{options: options, started: time.Now()}
	readings := newReadings(view.read, ending.Done())
	streams := newStreams(readings, ending.Done())
	routes := http.NewServeMux()
	routes.HandleFunc("/{$}", servePage)
	routes.Handle("/api/state", newAnswers(readings))
	routes.Handle("/api/events", streams)
	routes.Handle("/healthz", protected(newHealth(options.Node.Probe)))
	routes.Handle("/readyz", protected(http.HandlerFunc(view.serveReady)))
	metrics, err := newMetrics(readings, logger)
	if err != nil {
		end()
		_ = socket.Close()
		return nil, fmt.Errorf("--admin: %w", err)
	}
	routes.Handle("/metrics", metrics)
	hosts := make([]string, 0, len(options.Hosts))
	for _, host := range options.Hosts {
		hosts = append(hosts, strings.ToLower(host))
	}
	guard := &guard{hosts: hosts, next: routes}
	return &Server{
		guard:  guard,
		socket: newBoundedListener(socket),
		http: &http.Server{
			Handler:           guard,
			ReadTimeout:       readTimeout,
			ReadHeaderTimeout: readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeader,
			ConnContext:       withConn,
			ConnState:         answered,
			ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		},
		readings: readings,
		streams:  streams,
		end:      end,
	}, nil
}

// Addr returns where the server listens.
func (s *Server) Addr() net.Addr { return s.socket.Addr() }

// URL returns the address of the page.
func (s *Server) URL() string { return "http://" + s.Addr().String() + "/" }

// Serve answers requests until ctx ends. Then it ends all connections, and returns nil when no
// goroutine of it is left. Any other error says why it could not go on. It is called once.
func (s *Server) Serve(ctx context.Context) error {
	working, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { s.readings.run(working) })
	tasks.Go(func() { s.streams.run(working) })
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.socket) }()
	var err error
	select {
	case <-ctx.Done():
		s.stop()
		<-served
	case err = <-served:
		s.stop()
		err = fmt.Errorf("the status page cannot be served any more: %w", err)
	}
	cancel()
	tasks.Wait()
	return err
}

// stop ends the streams, and gives other requests a moment to end.
func (s *Server) stop() {
	s.end()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	s.guard.tasks.Wait()
}
