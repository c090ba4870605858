package admin

import (
	"fmt"
	"net/http"
	"time"
)

// probeTimeout is how long the process may take to look at its store before it counts as stuck.
const probeTimeout = 5 * time.Second

// health answers /healthz: whether the process works. A process that stands by, or that has lost
// its broker, works: a restart would not help. One whose store is stuck does not.
type health struct {
	probe func() // looks at everything that has a lock
	// running has room for one probe. One that is stuck keeps its place, so at most one
	// goroutine is lost.
	running chan struct{}
}

func newHealth(probe func()) *health {
	return &health{probe: probe, running: make(chan struct{}, 1)}
}

// ServeHTTP implements http.Handler.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	timer := time.NewTimer(probeTimeout)
	defer timer.Stop()
	select {
	case h.running <- struct{}{}:
	case <-timer.C:
		h.refuse(w)
		return
	case <-r.Context().Done():
		return
	}
	done := make(chan struct{})
	go func() {
		defer func() { <-h.running }()
		defer close(done)
		h.probe()
	}()
	select {
	case <-done:
		_, _ = fmt.Fprintln(w, "ok")
	case <-timer.C:
		h.refuse(w)
	case <-r.Context().Done():
	}
}

func (h *health) refuse(w http.ResponseWriter) {
	http.Error(w, fmt.Sprintf("not healthy: the store has not answered this process for %v; restart the process", probeTimeout), http.StatusServiceUnavailable)
}

// serveReady answers /readyz: whether requests are answered here. A load balancer sends clients to
// such a process only.
func (v *view) serveReady(w http.ResponseWriter, r *http.Request) {
	status, _ := v.options.Node.status()
	standbyOK := r.URL.Query().Get("standby") == "ok"
	if status.Ready || standbyOK && status.Role == RoleStandby {
		_, _ = fmt.Fprintf(w, "ready: %s\n", status.Role)
		return
	}
	http.Error(w, fmt.Sprintf("not ready: %s: %s", status.Role, status.Detail), http.StatusServiceUnavailable)
}
