package admin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/tenurelock/tenure/cmd/tenure/internal/localhttp"
)

// CheckAddress checks an address to listen on. Only an address of this
// machine is accepted unless insecure is set, because the page has neither encryption nor login.
// A name must be localhost: what another name stands for may change.
func CheckAddress(address string, insecure bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--admin %q is not host:port, like 127.0.0.1:8080: %w", address, err)
	}
	if insecure || localhttp.IsLoopback(host) {
		return nil
	}
	return fmt.Errorf("--admin %s lets other machines read the status page, which has no encryption and no login; "+
		"listen on 127.0.0.1 behind a proxy that has both, or say --admin-insecure", address)
}

// errForeignHost refuses a request for a name that is not this server's. A page of another site could
// otherwise make its own name resolve to this machine and read the answers (DNS rebinding).
var errForeignHost = errors.New("this server does not answer for that host name; ask for its IP address or " +
	"localhost, or start it with --admin-host NAME")

// guard refuses what a status page must not answer, and sets the headers of every answer.
type guard struct {
	hosts []string // names beside localhost and IP addresses, in lower case
	next  http.Handler
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy",
		"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	if !g.isOurs(r.Host) {
		http.Error(w, errForeignHost.Error(), http.StatusMisdirectedRequest)
		return
	}
	g.next.ServeHTTP(w, r)
}

// isOurs reports whether a Host header names this server. An IP address does: a browser sends it
// only to that address.
func (g *guard) isOurs(host string) bool {
	name := localhttp.HostOf(host)
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || slices.Contains(g.hosts, name)
}
