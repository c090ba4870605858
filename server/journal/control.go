package journal

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

// The lock of the directory and the file mapping of bbolt keep another process from reading the
// file of a running store. So the other process asks: it connects to a Unix socket in the
// directory, sends a controlRequest as a line of JSON, and gets a controlReply as a line of JSON
// and the bytes of the backup. Only processes that can read tenure.holder know the secret, on
// systems too that let any user connect to a socket.
const (
	controlBackup   = "backup"
	controlTimeout  = 10 * time.Second // for a request
	acceptPause     = time.Second      // after a connection could not be accepted
	controlRate     = 256 << 10        // bytes in a second; a slower reader would make the file grow
	maxControlLine  = 4 << 10
	maxControlConns = 4
	maxSocketPath   = 100 // the address of a Unix socket has 104 bytes on some systems
)

type controlRequest struct {
	Secret string `json:"secret"`
	Do     string `json:"do"`
}

type controlReply struct {
	Error string `json:"error,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
}

// A control answers other processes of this machine.
type control struct {
	file     *File
	listener net.Listener
	private  string // the directory of the socket, if it has one of its own
	secret   string

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	slots  chan struct{}
	wait   sync.WaitGroup

	mu      sync.Mutex
	backups map[net.Conn]struct{} // that are under way
}

// listen says which process has the lock, and begins to answer others. The caller has the lock.
func (f *File) listen() error {
	removeSocket(f.dir.path)
	host, _ := os.Hostname() // if it fails, errors of other processes lack the name
	self := holder{PID: os.Getpid(), Host: host, Boot: boot(), Silent: f.silent}
	c, err := newControl(f)
	if err != nil {
		f.logger.Warn("journal: to make a backup, stop this process: no other process can ask it for one", "directory", f.dir.path, "error", err)
	} else {
		self.Socket, self.Secret = c.listener.Addr().String(), c.secret
	}
	f.control = c
	return f.dir.writeHolder(self)
}

// removeSocket removes the socket of a process that is gone.
func removeSocket(dir string) {
	_ = os.Remove(filepath.Join(dir, socketName))
	former, err := readHolder(dir)
	if err != nil || filepath.Base(former.Socket) != socketName {
		return
	}
	if private := filepath.Dir(former.Socket); strings.HasPrefix(filepath.Base(private), privatePrefix) {
		_ = os.Remove(former.Socket)
		_ = os.Remove(private)
	}
}

const privatePrefix = "tenure-socket-"

func newControl(f *File) (*control, error) {
	c := &control{file: f, secret: rand.Text(), slots: make(chan struct{}, maxControlConns), backups: make(map[net.Conn]struct{})}
	path, err := filepath.Abs(filepath.Join(f.dir.path, socketName))
	if err != nil {
		return nil, err
	}
	if len(path) > maxSocketPath {
		if c.private, err = os.MkdirTemp("", privatePrefix); err != nil {
			return nil, err
		}
		path = filepath.Join(c.private, socketName)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		// The directory may have been moved when the listener closes: directory.remove removes the socket.
		listener.SetUnlinkOnClose(c.private != "")
		c.listener, err = listener, os.Chmod(path, 0o600)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err != nil {
		return nil, together(err, c.close())
	}
	c.wait.Go(c.accept)
	return c, nil
}

// endBackups ends the backups that are under way. The other side sees that they are not complete.
func (c *control) endBackups() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.backups {
		_ = conn.SetDeadline(time.Unix(1, 0)) // ends a write that waits
	}
}

// close ends what is under way, and waits for it.
func (c *control) close() error {
	c.cancel()
	var err error
	if c.listener != nil {
		err = c.listener.Close() // removes a socket with a directory of its own
	}
	c.wait.Wait()
	if c.private != "" {
		err = together(err, os.Remove(c.private))
	}
	return err
}

func (c *control) accept() {
	for {
		conn, err := c.listener.Accept()
		if c.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil { // such as too many open files
			sleep.For(c.ctx, acceptPause)
			continue
		}
		select {
		case c.slots <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		c.wait.Go(func() {
			defer func() { <-c.slots }()
			defer context.AfterFunc(c.ctx, func() { _ = conn.Close() })()
			defer conn.Close()
			if err := c.serve(conn); err != nil && c.ctx.Err() == nil {
				c.file.logger.Warn("journal: a backup failed", "file", c.file.path, "error", err)
			}
		})
	}
}

func (c *control) serve(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(controlTimeout)); err != nil {
		return err
	}
	var request controlRequest
	if err := readLine(bufio.NewReader(conn), &request); err != nil {
		return err
	}
	refuse := func(reason string) error { return writeLine(conn, controlReply{Error: reason}) }
	if subtle.ConstantTimeCompare([]byte(request.Secret), []byte(c.secret)) != 1 {
		return refuse("wrong secret")
	}
	if request.Do != controlBackup {
		return refuse(fmt.Sprintf("unknown request %q: use the same version of tenure", request.Do))
	}
	defer func() {
		c.mu.Lock()
		delete(c.backups, conn)
		c.mu.Unlock()
	}()
	begun := false
	err := c.file.backup(c.ctx, func(size int64) (io.Writer, error) {
		begun = true
		limit := controlTimeout + time.Duration(size/controlRate)*time.Second
		if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.backups[conn] = struct{}{}
		c.mu.Unlock()
		return conn, writeLine(conn, controlReply{Bytes: size})
	})
	switch {
	case err != nil && !begun:
		return together(err, refuse(err.Error()))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the process that asked for it reads too slowly: back up again, to a faster disk: %w", err)
	case errors.As(err, new(*net.OpError)):
		return fmt.Errorf("the process that asked for it has ended, and says why: %w", err)
	}
	return err
}

func writeLine(w io.Writer, value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

func readLine(r *bufio.Reader, value any) error {
	var line []byte
	for !bytes.HasSuffix(line, []byte("\n")) {
		if len(line) >= maxControlLine {
			return errors.New("the line is too long")
		}
		b, err := r.ReadByte()
		if err != nil {
			return err
		}
		line = append(line, b)
	}
	return json.Unmarshal(line, value)
}

// askForBackup asks the process that holds dir for a backup, and writes it to a file. progress gets
// bytes. An error of that file is an unwritten.
func askForBackup(ctx context.Context, dir string, to *os.File, progress Progress) error {
	found, err := readHolder(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal: %s: %w by %s; try again when it has ended", dir, ErrInUse, holderOf(dir))
	}
	if err != nil {
		return about(filepath.Join(dir, holderName), err)
	}
	own, _ := os.Hostname()
	switch {
	case found.Host != own:
		return fmt.Errorf("journal: %s: %w by %s; do this on that host", dir, ErrInUse, holderOf(dir))
	case found.Socket == "":
		return fmt.Errorf("journal: %s: %w by %s, which cannot be asked, as its log says; stop it first", dir, ErrInUse, holderOf(dir))
	}
	if info, err := os.Lstat(found.Socket); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return about(found.Socket, fmt.Errorf("%w: it is a symbolic link, which is not followed; stop the store, and start it again", ErrUnsafe))
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", found.Socket)
	if err != nil {
		return fmt.Errorf("journal: %s: %w by %s, which does not answer: %w; try again, or stop it first", dir, ErrInUse, holderOf(dir), err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := receive(conn, found.Secret, to, progress); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err = asUnwritten(err, to); errors.As(err, new(unwritten)) {
			return err
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errors.New("it does not answer; it may be loading its data: try again")
		}
		return fmt.Errorf("journal: %s: ask %s for a backup: %w", dir, holderOf(dir), err)
	}
	return nil
}

func receive(conn net.Conn, secret string, w io.Writer, progress Progress) error {
	if err := conn.SetDeadline(time.Now().Add(2 * controlTimeout)); err != nil {
		return err
	}
	if err := writeLine(conn, controlRequest{Secret: secret, Do: controlBackup}); err != nil {
		return err
	}
	reader := bufio.NewReaderSize(conn, 64<<10)
	var reply controlReply
	if err := readLine(reader, &reply); err != nil {
		return err
	}
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil { // the other side has the limit
		return err
	}
	written, err := io.CopyN(&progressWriter{w: w, progress: progress, total: uint64(max(reply.Bytes, 0))}, reader, reply.Bytes)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("it ended after %d of %d bytes", written, reply.Bytes)
	}
	return err
}

type progressWriter struct {
	w           io.Writer
	progress    Progress
	done, total uint64
}

func (p *progressWriter) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.done += uint64(n)
	p.progress.call(p.done, p.total)
	return n, err
}
