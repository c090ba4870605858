//go:build unix

package mqttnet

import (
	"net"
	"syscall"
)

// direct writes to a socket without a wait: as much as the operating system takes at once.
// A net.Conn has no such write, and a deadline that is over would take nothing at all.
type direct struct {
	raw     syscall.RawConn
	attempt func(fd uintptr) bool // a field, so that each write does not allocate it

	// Of the present write.
	data []byte // what was not written yet
	err  error
}

// newDirect returns nil for a connection that only its own Write may write to: a type that we
// do not know may do more with the bytes than pass them on.
func newDirect(conn net.Conn) *direct {
	socket, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	d := &direct{raw: raw}
	d.attempt = d.try
	return d
}

// write returns what the socket did not take. An error ends the connection. It is not safe for
// concurrent use.
func (d *direct) write(data []byte) (rest []byte, err error) {
	d.data, d.err = data, nil
	err = d.raw.Write(d.attempt)
	rest = d.data
	d.data = nil // a write keeps no memory of its caller
	if err == nil {
		err = d.err
	}
	return rest, err
}

// try writes until nothing is left or the socket takes no more. It always returns true: false
// would wait.
func (d *direct) try(fd uintptr) bool {
	for len(d.data) > 0 {
		n, err := syscall.Write(int(fd), d.data)
		switch {
		case n > 0:
			d.data = d.data[n:]
		case err == syscall.EINTR:
		case err == nil, err == syscall.EAGAIN, err == syscall.EWOULDBLOCK:
			return true
		default:
			d.err = err
			return true
		}
	}
	return true
}
