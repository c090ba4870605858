//go:build unix || windows

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/journal"
)

// store is a state store in a process of its own, which can be killed and started again. Its
// data and its address stay the same.
type store struct {
	dir     string // for the data
	address string // of the form mqtt://host:port
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	exited  chan struct{} // closed when the process has ended
}

// newStore starts a store with an empty directory. The caller calls remove at the end.
func newStore() (*store, error) {
	dir, err := os.MkdirTemp("", "tenure-failover-")
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, address: "mqtt://127.0.0.1:0"}
	if err := s.start(); err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// start runs this program again as the store, and returns when it answers.
func (s *store) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "--store", s.dir, "--broker", s.address)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = inItsOwnGroup // as in startProcess
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the store: %w", err)
	}
	s.cmd, s.stdin, s.exited = cmd, stdin, make(chan struct{})
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	late.Stop()
	go func() {
		defer close(s.exited)
		_ = cmd.Wait() // a store that failed has written why to standard error
	}()
	if err != nil {
		s.kill()
		return fmt.Errorf("the store does not answer: %w", err)
	}
	s.address = strings.TrimSpace(line)
	return nil
}

// ended returns a channel that is closed when the process has ended; nil if there is no process.
func (s *store) ended() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.exited
}

// kill ends the process at once, and waits for that.
func (s *store) kill() {
	_ = s.cmd.Process.Kill() // fails if it has ended
	<-s.exited
}

// remove stops the process, and removes the data.
func (s *store) remove() {
	if s.cmd != nil {
		_ = s.stdin.Close()
		late := time.AfterFunc(patience, func() { _ = s.cmd.Process.Kill() })
		<-s.exited
		late.Stop()
	}
	_ = os.RemoveAll(s.dir)
}

// runStore runs a store on an address with its data in a directory, writes where it listens, and
// ends with ctx or with commands.
func runStore(ctx context.Context, dir, address string, commands io.Reader, out io.Writer) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	data, err := journal.Open(dir, journal.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	s, err := server.New(server.Options{Addr: strings.TrimPrefix(address, "mqtt://"), Journal: data})
	if err != nil {
		return err
	}
	go func() { // ends with the process: nothing can interrupt a read of standard input
		_, _ = io.Copy(io.Discard, commands)
		stop() // the director is gone
	}()
	fmt.Fprintf(out, "mqtt://%s\n", s.Addr())
	return s.Serve(ctx)
}
