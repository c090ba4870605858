// Package peer has what Tenure is measured against: libraries for distributed locks with their
// servers. Each peer starts its server in a process of its own, and
// has clients with one set of methods, so that all are measured and tested alike.
//
// Servers that are Go libraries run in the same executable: Host starts it again, and [ServeChild],
// which main and TestMain call first, then runs the server and does not return.
//
// Each peer is configured as its documentation recommends. A comment at the configuration names the
// page.
package peer
