package unauthenticated

import (
	"errors"
	"net"
	"time"

	"github.com/tenurelock/tenure/internal/descriptors"
	"github.com/tenurelock/tenure/internal/loglimit"
)

// acceptPause is how long to wait after a connection could not be accepted, for example because
// too many files are open.
const acceptPause = 50 * time.Millisecond

// Accept calls handle with each connection that socket accepts, until stopping or socket is
// closed. It returns nil if stopping is closed by then, and otherwise the error of socket. While
// there is no room it accepts nothing, until the oldest connection has had its time. Each other
// error of socket goes to failures, with what an operator can do, and a pause follows. Accept is
// called once.
func (l *Limiter) Accept(
	socket net.Listener, stopping <-chan struct{}, failures *loglimit.Lines, handle func(net.Conn),
) error {
	for {
		if pause := l.pause(); pause > 0 {
			if !wait(pause, l.freed, stopping) {
				return nil
			}
			continue
		}
		conn, err := socket.Accept()
		switch {
		case err == nil:
			handle(conn)
		case errors.Is(err, net.ErrClosed):
			select {
			case <-stopping:
				return nil
			default:
				return err
			}
		default:
			attributes := []any{"error", err.Error()}
			if descriptors.Exhausted(err) {
				attributes = append(attributes, "hint", descriptors.Hint)
			}
			failures.Log(attributes...)
			if !wait(acceptPause, nil, stopping) {
				return nil
			}
		}
	}
}

// wait waits for a time, or until end receives. It returns false if stopping is closed.
func wait(pause time.Duration, end, stopping <-chan struct{}) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-end:
	case <-stopping:
		return false
	}
	return true
}
