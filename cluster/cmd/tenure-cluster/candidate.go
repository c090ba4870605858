package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/cmd/tenure/command"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/standby"
)

// firstWarning is after how long the log says that etcd does not answer yet. It says so again after
// twice as long each time, up to lastWarning.
const firstWarning, lastWarning = 10 * time.Second, 10 * time.Minute

// candidate is a command.Candidate on etcd.
type candidate struct {
	options cluster.Options
	where   string
	member  *member.Member // of this process; nil: none
	logger  *slog.Logger
	tasks   sync.WaitGroup

	mu      sync.Mutex
	cluster *cluster.Candidate // nil until etcd has answered
}

var _ command.Candidate = (*candidate)(nil)

// Open implements command.Candidate. What cluster.Open reads from a member is as new as what the leader
// of etcd had when it was asked, so a member that answers has caught up.
func (c *candidate) Open(ctx context.Context) error {
	_, err := c.open(ctx)
	return err
}

// Campaign implements command.Candidate.
func (c *candidate) Campaign(ctx context.Context) (standby.Journal, error) {
	candidate, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	journal, err := candidate.Campaign(ctx)
	if err != nil {
		return nil, err // not a nil *Journal in an interface
	}
	return journal, nil
}

func (c *candidate) open(ctx context.Context) (*cluster.Candidate, error) {
	if opened := c.opened(); opened != nil {
		return opened, nil
	}
	waiting, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for pause := firstWarning; sleep.For(waiting, pause); pause = min(2*pause, lastWarning) {
			c.logger.Warn("etcd does not answer yet; a majority of its members must run", "data", c.where)
		}
	})
	opened, err := c.openCluster(ctx)
	stop()
	tasks.Wait()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster = opened
	return opened, nil
}

// openCluster waits for the member of this process, if there is one, and opens its cluster.
func (c *candidate) openCluster(ctx context.Context) (*cluster.Candidate, error) {
	if c.member != nil {
		select {
		case <-c.member.Ready(): // before, there is no socket yet
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return cluster.Open(ctx, c.options)
}

func (c *candidate) opened() *cluster.Candidate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cluster
}

// Active implements command.Candidate.
func (c *candidate) Active() string {
	opened := c.opened()
	if opened == nil {
		return ""
	}
	active, _ := opened.Active()
	if active.Address == c.options.Address {
		return "" // from before; this process stands by
	}
	return active.Address
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
	if opened := c.opened(); opened != nil {
		err = opened.Close()
	}
	if c.member != nil {
		c.member.Close()
	}
	c.tasks.Wait()
	return err
}

// start starts the member with its data below a directory, and says where that is.
func (m *memberFlags) start(dir string, logger *slog.Logger, flush func()) (started *member.Member, where string, err error) {
	// A store on one machine has its data there. This one would not read it, and begin empty.
	if _, err := os.Stat(filepath.Join(dir, "tenure.log")); err == nil {
		return nil, "", command.Usage(fmt.Errorf("%s has the data of a store on one machine, which a replicated store does not read; "+
			"give --data with another directory, or move tenure.log away", dir))
	}
	where = memberDirectory(dir)
	options := m.options(where)
	options.Logger, options.Flush = logger, flush
	if started, err = member.Start(options); err != nil {
		return nil, "", err
	}
	return started, fmt.Sprintf("%s (member %s of etcd)", where, m.name), nil
}

// memberDirectory is where a member has its data, below the directory of --data.
func memberDirectory(dir string) string { return filepath.Join(dir, "member") }
