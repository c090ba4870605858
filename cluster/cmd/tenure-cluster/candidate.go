package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/cmd/tenure/command"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/standby"
)

// firstWarning is after how long the log says that etcd does not answer yet. It says so again after
// twice as long each time, up to lastWarning.
const firstWarning, lastWarning = time.Second, 10 * time.Minute

// candidate is a command.Candidate on etcd.
type candidate struct {
	options cluster.Options
	where   string
	member  *member.Member // of this process; nil: none
	logger  *slog.Logger
	tasks   sync.WaitGroup
	cluster atomic.Pointer[cluster.Candidate] // nil until etcd has answered
}

var _ command.Candidate = (*candidate)(nil)

// Open implements command.Candidate. What cluster.Open reads from a member is as new as what the leader
// of etcd had when it was asked, so a member that answers has caught up.
func (c *candidate) Open(ctx context.Context) error {
	if c.cluster.Load() != nil {
		return nil
	}
	waiting, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for pause := firstWarning; sleep.For(waiting, pause); pause = min(2*pause, lastWarning) {
			c.logger.Warn("waiting for etcd: a majority of its members must run", "data", c.where)
		}
	})
	defer tasks.Wait()
	defer stop()
	if c.member != nil {
		select {
		case <-c.member.Ready(): // before, there is no socket yet
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	opened, err := cluster.Open(ctx, c.options)
	if err == nil {
		c.cluster.Store(opened)
	}
	return err
}

// Campaign implements command.Candidate.
func (c *candidate) Campaign(ctx context.Context) (standby.Journal, error) {
	if err := c.Open(ctx); err != nil {
		return nil, err
	}
	journal, err := c.cluster.Load().Campaign(ctx)
	if err != nil {
		return nil, err // not a nil *Journal in an interface
	}
	return journal, nil
}

// Active implements command.Candidate.
func (c *candidate) Active() string {
	opened := c.cluster.Load()
	if opened == nil {
		return ""
	}
	active := opened.Active()
	if active == c.options.Address {
		return "" // from before; this process stands by
	}
	return active
}

// StandByAfter implements command.Candidate. What etcd refuses, the next journal would meet too.
func (c *candidate) StandByAfter(err error) bool {
	return errors.Is(err, cluster.ErrDeposed) || errors.Is(err, cluster.ErrDeadlinePassed)
}

// Where implements command.Candidate.
func (c *candidate) Where() string { return c.where }

// Close implements command.Candidate. The member ends last: the candidate resigns through it.
func (c *candidate) Close() error {
	var err error
	if opened := c.cluster.Load(); opened != nil {
		err = opened.Close()
	}
	if c.member != nil {
		c.member.Close()
	}
	c.tasks.Wait()
	return err
}

// start starts the member with its data below a directory, and says where that is.
func (m *memberFlags) start(dir string, logger *slog.Logger,
	flush func()) (started *member.Member, where string, err error) {
	// A store on one machine has its data there. This one would not read it, and begin empty.
	if _, err := os.Stat(filepath.Join(dir, "tenure.log")); err == nil {
		return nil, "", command.Usage(
			fmt.Errorf("%s has the data of a store on one machine, which a replicated store does not read; "+
				"give --data with another directory, or move tenure.log away", dir))
	}
	m.Dir, m.Logger, m.Flush = memberDirectory(dir), logger, flush
	started, err = member.Start(m.Options)
	return started, fmt.Sprintf("%s (member %s of etcd)", m.Dir, m.Name), err
}

// memberDirectory is where a member has its data, below the directory of --data.
func memberDirectory(dir string) string { return filepath.Join(dir, "member") }
