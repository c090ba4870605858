//go:build unix || windows

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/journal"
)

// store is a state store in a process of its own, which can be killed and started again. Its
// data and its address stay the same.
type store struct {
	dir     string   // for the data
	address string   // of the form mqtt://host:port
	process *process // nil before the first start
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
	said := make(chan string, 1)
	first := func(line []byte) {
		select {
		case said <- string(line):
		default:
		}
	}
	p, err := start("the store", first, func() {}, "--store", s.dir, "--broker", s.address)
	if err != nil {
		return err
	}
	s.process = p
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case s.address = <-said:
		return nil
	case <-p.exited:
		return errors.New("the store ended before it answered")
	case <-late.C:
		p.kill()
		return fmt.Errorf("the store did not answer in %v", patience)
	}
}

// ended returns a channel that is closed when the process has ended; nil if there is no process.
func (s *store) ended() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.process.exited
}

// remove stops the process, and removes the data.
func (s *store) remove() {
	if s.process != nil {
		_ = s.process.stdin.Close()
		late := time.AfterFunc(patience, s.process.kill)
		<-s.process.exited
		late.Stop()
	}
	_ = os.RemoveAll(s.dir)
}

// runStore runs a store on an address with its data in a directory, writes where it listens, and
// ends with ctx or with commands.
func runStore(ctx context.Context, dir, address string, commands io.Reader, out io.Writer) (err error) {
	ctx, stop := untilClosed(ctx, commands, func(string) {})
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
	fmt.Fprintf(out, "mqtt://%s\n", s.Addr())
	return s.Serve(ctx)
}
