package admin

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// probeTimeout is how long the process may take to look at its store before it counts as stuck.
const probeTimeout = 5 * time.Second

// serveHealth answers /healthz: whether the process works. A process that stands by, or that has lost
// its broker, works: a restart would not help. One whose store is stuck does not.
func (v *view) serveHealth(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
	defer cancel()
	done := make(chan struct{})
	select {
	case v.probing <- struct{}{}:
		go func() {
			defer func() { <-v.probing }()
			defer close(done)
			v.options.Node.Probe()
		}()
	case <-ctx.Done():
	}
	select {
	case <-done:
		_, _ = fmt.Fprintln(w, "ok")
	case <-ctx.Done():
		refuse(w, fmt.Sprintf("not healthy: the store has not answered this process for %v; restart the process",
			probeTimeout))
	}
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
	refuse(w, fmt.Sprintf("not ready: %s: %s", status.Role, status.Detail))
}
