package testsupport

import (
	"net"
	"sync/atomic"
)

// FailingListener is a listener that fails with what Failure returns, unless that is nil.
type FailingListener struct {
	net.Listener
	Calls   atomic.Int64 // of Accept, so far
	Failure func(call int64) error
}

// Accept implements net.Listener.
func (l *FailingListener) Accept() (net.Conn, error) {
	if err := l.Failure(l.Calls.Add(1)); err != nil {
		return nil, err
	}
	return l.Listener.Accept()
}

// AcceptError returns the error of a TCP listener for a system call that failed with err.
func AcceptError(err error) error {
	return &net.OpError{Op: "accept", Net: "tcp", Err: err}
}
