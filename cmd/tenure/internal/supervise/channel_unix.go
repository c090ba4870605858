//go:build unix

package supervise

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// channel is one end of a socket between supervisor and guard.
type channel struct {
	*net.UnixConn
	raw        syscall.RawConn
	broken     error    // of Write: a part of a message may have left
	connection *os.File // what came with the first message; nil: nothing
}

// newChannel takes a socket over.
func newChannel(file *os.File) (*channel, error) {
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, errors.New("the socket is not a local one")
	}
	raw, err := socket.SyscallConn()
	return &channel{UnixConn: socket, raw: raw}, err
}

// Write writes what the socket takes at once. It never waits: there is no deadline that a busy
// machine could let pass. After an error nothing more is written.
func (s *channel) Write(p []byte) (int, error) { return s.write(p, nil) }

func (s *channel) write(p, rights []byte) (n int, err error) {
	if s.broken != nil {
		return 0, s.broken
	}
	closed := s.raw.Write(func(fd uintptr) bool {
		for n < len(p) && err == nil {
			var written int
			if written, err = unix.SendmsgN(int(fd), p[n:], rights, nil, 0); err == nil {
				n, rights = n+written, nil
			} else if errors.Is(err, unix.EINTR) {
				err = nil
			}
		}
		return true
	})
	s.broken = errors.Join(closed, err)
	return n, s.broken
}

// writeWith is Write of a message that gives the other end a descriptor of connection. It returns
// the error of connection. The connection stays as it is: (*os.File).Fd would make it blocking, for
// this process too.
func (s *channel) writeWith(p []byte, connection syscall.RawConn) error {
	return connection.Control(func(fd uintptr) { _, _ = s.write(p, unix.UnixRights(int(fd))) })
}

// Read reads, and keeps the connection that comes with what it reads.
func (s *channel) Read(p []byte) (int, error) {
	var rights [64]byte
	n, size, _, _, err := s.ReadMsgUnix(p, rights[:])
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	messages, _ := unix.ParseSocketControlMessage(rights[:size])
	for _, message := range messages {
		fds, _ := unix.ParseUnixRights(&message)
		for _, fd := range fds {
			unix.CloseOnExec(fd) // where the system call does not do that itself
			s.connection = os.NewFile(uintptr(fd), "connection")
		}
	}
	return max(n, 0), err // an io.Reader returns no -1, as ReadMsgUnix does with an error
}

// isLost reports whether the peer has closed the connection that came through the channel, or it failed.
func (s *channel) isLost() (lost bool) {
	if s.connection == nil {
		return false
	}
	if raw, err := s.connection.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { lost = isClosed(fd) })
	}
	return lost
}

// isClosed reports whether the peer has closed a connection, or it failed.
func isClosed(fd uintptr) bool {
	state := []unix.PollFd{{Fd: int32(fd), Events: pollPeerClosed}}
	_, err := unix.Poll(state, 0)
	return err == nil && state[0].Revents&(pollPeerClosed|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}

// awaitLoss returns when isLost is true. It reads nothing. Without a connection it does not return.
func (s *channel) awaitLoss() {
	if s.connection == nil {
		select {}
	}
	raw, err := s.connection.SyscallConn()
	if err == nil {
		err = raw.Read(isClosed) // called again when the state of the connection changes
	}
	if err != nil {
		select {} // it cannot be watched; the deadline stands
	}
}

// connect makes the channel to a guard that is not started yet. theirs is the guard's end: the
// guard inherits it under its present number, beside what this process has inherited itself.
func connect(cmd *exec.Cmd) (ours *channel, theirs []*os.File, err error) {
	syscall.ForkLock.RLock() // no process that is started meanwhile gets the ends
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(ends[0])
		unix.CloseOnExec(ends[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	end := os.NewFile(uintptr(ends[1]), "supervisor")
	if ours, err = newChannel(os.NewFile(uintptr(ends[0]), "guard")); err != nil {
		_ = end.Close()
		return nil, nil, err
	}
	cmd.Args = append([]string{guardName, strconv.Itoa(ends[1])}, cmd.Args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return ours, []*os.File{end}, nil
}

// openChannel returns the guard's end of the channel.
func openChannel() (*channel, error) {
	if len(os.Args) < 5 { // its name, the socket, the lease, the file of the program and its name
		return nil, errors.New("there is no program")
	}
	fd, err := strconv.ParseUint(os.Args[1], 10, 31)
	if err != nil {
		return nil, err
	}
	return newChannel(inherited(int(fd)))
}

// inherited takes a descriptor over that this process was started with. The program does not inherit it.
func inherited(fd int) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "inherited")
}

// duplicate returns another descriptor of a file, and its number.
func duplicate(file *os.File) (copied *os.File, fd int, err error) {
	err = control(file, func(of int) (err error) {
		fd, err = unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 3)
		return err
	})
	if err != nil {
		return nil, 0, err // a file of 0 would close the standard input one day
	}
	return os.NewFile(uintptr(fd), file.Name()), fd, nil
}

// letInherit lets the processes that are started from now on inherit a file.
func letInherit(file *os.File) error {
	return control(file, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		return err
	})
}

// control calls do with the descriptor of a file. (*os.File).Fd would make it blocking.
func control(file *os.File, do func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = do(int(fd)) })
	return errors.Join(err, failed)
}
