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
// there is no space it accepts nothing, until the oldest connection has had its time. Each other
// error of socket goes to failures, with what an operator can do, and a pause follows. Accept is
// called once.
func (l *Limiter) Accept(
	socket net.Listener, stopping <-chan struct{}, failures *loglimit.Lines, handle func(net.Conn),
) error {
	for {
		pause, end := l.pause(), l.freed
		if pause == 0 {
			conn, err := socket.Accept()
			if err == nil {
				handle(conn)
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				select {
				case <-stopping:
					return nil
				default:
					return err
				}
			}
			attributes := []any{"error", err.Error()}
			if descriptors.Exhausted(err) {
				attributes = append(attributes, "hint", descriptors.Hint)
			}
			failures.Log(attributes...)
			pause, end = acceptPause, nil
		}
		select {
		case <-time.After(pause):
		case <-end:
		case <-stopping:
			return nil
		}
	}
}
