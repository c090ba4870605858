// Package takeover has a test that kills, freezes and stops active stores on etcd while clients
// use them, and checks what the clients see. Package crashtest of the server has the clients and
// the checks.
package takeover
