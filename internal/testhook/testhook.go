// Package testhook gives the tests of other modules what a package of this module does not
// export. No other code may use it.
package testhook

// NewConn is transport's func(address string, options Options) (Conn, error). It returns
// the connection below a transport.Client, with which a test sends requests that a Client
// has no method for. Package transport sets it.
var NewConn any
