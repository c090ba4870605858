// Package takeover has a test that kills, freezes, stops and cuts off the active gateway of a pair while
// clients use it, and checks what the clients see. Package crashtest of the server has the clients and
// the checks.
package takeover
