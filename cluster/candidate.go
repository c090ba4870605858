package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/internal/sleep"
)

// Candidate is a process that can become the active store. Its methods are safe for concurrent use.
type Candidate struct {
	options   Options
	endpoints *endpoints
	keys      keys
	stop      context.CancelCauseFunc // of life
	life      context.Context
	tasks     sync.WaitGroup

	mu      sync.Mutex
	seen    observation
	changed chan struct{} // closed when seen changes
	last    claim         // of this process
	journal *Journal      // the last one, until it is closed
	running bool          // a Campaign
	vain    int           // attempts and standings in a row that came to nothing
}

// observation is what was last read of the election.
type observation struct {
	known    bool
	used     bool  // there has been an active process
	revision int64 // at which the election key was written; 0 if there is none
	claim    claim
	// alive says that the lease of the process has not expired. Without Options.Member only.
	alive         bool
	aliveRevision int64
}

// Open checks the options, waits until etcd answers, and checks its version and the prefix.
// It does not begin to campaign. The error says which option makes no sense, what etcd
// refuses, or why it did not answer before ctx ended; it wraps ErrForeignData if the prefix
// holds other keys.
func Open(ctx context.Context, options Options) (*Candidate, error) {
	if err := options.setDefaults(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	endpoints, err := dial(&options)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	c := &Candidate{options: options, endpoints: endpoints, keys: newKeys(options.Prefix), changed: make(chan struct{})}
	c.life, c.stop = context.WithCancelCause(context.Background())
	if err := c.probe(ctx); err != nil {
		endpoints.close()
		return nil, fmt.Errorf("cluster: etcd at %q: %w", options.Endpoints, err)
	}
	c.tasks.Go(c.observe)
	return c, nil
}

// Active returns Options.Address of the active store as far as this process knows. It is empty if there is none, or
// none is known yet. It does not wait. What it returns can be old: only Journal.Standing says whether this process is
// the active one.
func (c *Candidate) Active() (address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen.claim.Resigned || c.options.Member == nil && !c.seen.alive {
		return ""
	}
	return c.seen.claim.Address
}

// Campaign waits until this process is the active store and returns its journal. It returns an
// error when ctx ends, with its cause; when the candidate is closed, with ErrClosed; and when
// etcd refuses what a candidate must do, with the reason. Other failures of etcd are waited
// out. Before a second Campaign, close the journal of the first.
func (c *Candidate) Campaign(ctx context.Context) (journal *Journal, err error) {
	if err := c.beginCampaign(); err != nil {
		return nil, fmt.Errorf("cluster: campaign: %w", err)
	}
	defer c.tasks.Done()
	ctx, cancel := joined(ctx, c.life)
	defer cancel()
	journal, err = c.campaign(ctx)
	if err != nil {
		c.setEligible(false)
		err = fmt.Errorf("cluster: campaign: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.journal = false, journal
	return journal, err
}

func (c *Candidate) beginCampaign() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.life.Err() != nil:
		return ErrClosed
	case c.running || c.journal != nil:
		return errors.New("the journal of the last Campaign was not closed, or another Campaign is under way")
	}
	c.running = true
	c.tasks.Add(1) // with the lock, so Close waits for it or it sees the end
	return nil
}

// A standing that is shorter than minSteady, or than ten times Options.Standing, shows that the proofs are too slow.
const minSteady = 30 * time.Second

// lasted counts a standing that lasted for some time and ended with why.
func (c *Candidate) lasted(standing time.Duration, why error) {
	c.count(errors.Is(why, ErrDeadlinePassed) && standing <= max(minSteady, 10*c.options.Standing))
}

// count counts what came to nothing, and reports whether it is the first in a row.
func (c *Candidate) count(vain bool) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !vain {
		c.vain = 0
		return false
	}
	c.vain++
	return c.vain == 1
}

// standAside leaves the store to another process when maxTries attempts and standings of this one in a row came
// to nothing: it waits until its member no longer leads etcd, or for longer than members elect another one.
func (c *Candidate) standAside(ctx context.Context) {
	c.mu.Lock()
	vain := c.vain >= maxTries && c.options.Member != nil
	if vain {
		c.vain = 0
	}
	c.mu.Unlock()
	if vain {
		c.options.Logger.Warn("this process cannot take the store, or its proofs come too late, again and again, so " +
			"another one is to be the active store: look at the network between the members and at their disks, or raise " +
			"--election-timeout")
		c.setEligible(false)
		ctx, cancel := context.WithTimeout(ctx, c.options.commitLimit())
		defer cancel()
		for leads, changed := c.options.Member.Leads(); leads && ctx.Err() == nil; leads, changed = c.options.Member.Leads() {
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
	c.setEligible(true)
}

// setEligible says to the member of this process, if there is one, whether the process can serve.
func (c *Candidate) setEligible(can bool) {
	if c.options.Member != nil {
		c.options.Member.SetEligible(can)
	}
}

func (c *Candidate) resigned(journal *Journal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = journal.claim
	if c.journal == journal {
		c.journal = nil
	}
}

func (c *Candidate) campaign(ctx context.Context) (*Journal, error) {
	for {
		c.standAside(ctx)
		if may, changed := c.mayTake(); !may {
			c.count(false)
			select {
			case <-changed:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			continue
		}
		journal, err := c.try(ctx)
		switch {
		case journal != nil:
			return journal, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case refusal(err) != "" || errors.Is(err, ErrForeignData):
			return nil, err
		}
		if c.count(err != nil) {
			c.options.Logger.Warn("campaign for the active store: trying again", slog.Any("reason", err))
		}
		if !sleep.For(ctx, tryPause/2+mathrand.N(tryPause)) {
			return nil, context.Cause(ctx)
		}
	}
}

// maxTries is after how many attempts and standings in a row a process stands aside.
const maxTries = 3

// tryPause is how long a candidate waits on average before it tries again.
const tryPause = 100 * time.Millisecond

// mayTake reports whether this process may take the election key now: because its member leads
// etcd, or else because no other process is alive, as far as this one knows. Nothing but the moment
// of a takeover depends on it. changed is closed when that may have changed.
func (c *Candidate) mayTake() (may bool, changed <-chan struct{}) {
	if c.options.Member != nil {
		return c.options.Member.Leads()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.last.Term != "" && c.seen.claim.Term == c.last.Term
	return c.seen.known && (!c.seen.alive || own), c.changed
}

// try tries to take the election key once. It returns nil and no error if another process
// was first.
func (c *Candidate) try(ctx context.Context) (*Journal, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.requestLimit(), errors.New("etcd did not answer in time"))
	defer cancel()
	seen, _, err := c.readElection(ctx)
	if err != nil {
		return nil, err
	}
	c.see(seen)
	if may, _ := c.mayTake(); !may {
		return nil, nil
	}
	j := &Journal{candidate: c, options: &c.options, endpoints: c.endpoints, stop: func() {}}
	j.term = term{keys: c.keys, claim: claim{Term: rand.Text(), Address: c.options.Address}}
	wait := j.claim.inherit(seen, c.remember(j.claim), c.options.Standing)
	if c.options.Member == nil {
		if err := j.grant(ctx); err != nil {
			return nil, err
		}
	}
	if err := j.win(ctx, seen); err != nil || j.revision == 0 {
		return nil, err
	}
	j.began = c.options.Clock()
	from := answersFrom(j.began, wait)
	began, err := j.firstProof(ctx)
	j.standing = newStanding(c.options.Clock, c.options.Standing, began, from)
	if err != nil {
		_ = j.Close() // the next process must not wait for an end that has come
		return nil, err
	}
	c.options.Logger.Info("this process is the active store",
		slog.String("address", c.options.Address), slog.Duration("answers_in", max(from-c.options.Clock(), 0)))
	j.start()
	return j, nil
}

// remember notes the last claim of this process, and returns the one before.
func (c *Candidate) remember(latest claim) (before claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, c.last = c.last, latest
	return before
}

// firstProof begins the standing. The transaction that won proves little: with a slow disk it takes
// longer than a proof is valid. A proof that comes too late is repeated: to resign, and to win
// again, would take longer.
func (j *Journal) firstProof(ctx context.Context) (began time.Duration, err error) {
	return do(ctx, j.endpoints, j.options.patience(),
		func(ctx context.Context, client *clientv3.Client) (began time.Duration, err error) {
			began = j.options.Clock()
			err = j.proveAt(ctx, client)
			switch took := j.options.Clock() - began; {
			case errors.Is(err, ErrDeposed):
				err = final{err}
			case err == nil && took >= j.options.Standing:
				err = fmt.Errorf("%w: the first proof took %v, and is valid for %v", ErrDeadlinePassed, took, j.options.Standing)
			}
			return began, err
		})
}

// win takes the election key if it still is as it was seen, and sets revision if it has.
func (j *Journal) win(ctx context.Context, seen observation) error {
	response, err := j.transact(ctx, j.options.patience(), j.takes(seen))
	if err == nil {
		j.revision = j.took(response)
	}
	return err
}

// transact carries a transaction out: see do.
func (j *Journal) transact(ctx context.Context, patience time.Duration, op clientv3.Op) (*clientv3.TxnResponse, error) {
	return do(ctx, j.endpoints, patience,
		func(ctx context.Context, client *clientv3.Client) (*clientv3.TxnResponse, error) {
			response, err := client.Do(ctx, op)
			return response.Txn(), err
		})
}

// observe follows the election until the candidate is closed. A watch wakes it early; it
// also asks each half of Options.TTL, because a watch at a member that is frozen is silent.
func (c *Candidate) observe() {
	unknown := false
	for {
		seen, next, err := c.readElection(c.life)
		switch {
		case c.life.Err() != nil:
			return
		case err != nil:
			if !unknown {
				unknown = true
				c.options.Logger.Warn("etcd does not answer, so the active store is not known; "+
					"a majority of the members of etcd must run", slog.Any("reason", err))
				c.see(observation{}) // clients must not be sent to a process that may be gone
			}
			if !sleep.For(c.life, c.options.requestLimit()/8) {
				return
			}
			continue
		}
		if unknown {
			unknown = false
			c.options.Logger.Warn("etcd answers again")
		}
		c.see(seen)
		c.await(next)
	}
}

// readElection reads the keys of the election. next is the first revision that the answer does not include.
func (c *Candidate) readElection(ctx context.Context) (seen observation, next int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.requestLimit(), errors.New("etcd did not answer in time"))
	defer cancel()
	response, err := do(ctx, c.endpoints, c.options.patience(),
		func(ctx context.Context, client *clientv3.Client) (*clientv3.GetResponse, error) {
			from, to := c.keys.election()
			return client.Get(ctx, from, to)
		})
	if err != nil {
		return observation{}, 0, err
	}
	return c.keys.observed(response), response.Header.Revision + 1, nil
}

func (c *Candidate) see(seen observation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen != seen {
		c.seen = seen
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// await returns when the election has changed since revision next, after half of the limit of a request, or
// when the watch fails.
func (c *Candidate) await(next int64) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(c.life), c.options.requestLimit()/2)
	defer cancel() // ends the watch
	client, _ := c.endpoints.at(0)
	from, to := c.keys.election()
	select {
	case response, open := <-client.Watch(ctx, from, to, clientv3.WithRev(next)):
		if !open || response.Err() != nil {
			_ = sleep.For(ctx, c.options.requestLimit()/16)
		}
	case <-ctx.Done():
	}
}

// Close ends a Campaign that is under way, closes the journal, and ends the connections to
// etcd. It returns the error of Journal.Close. It may be called several times.
func (c *Candidate) Close() error {
	c.mu.Lock()
	c.stop(ErrClosed)
	c.mu.Unlock()
	c.tasks.Wait()
	c.mu.Lock()
	journal := c.journal
	c.mu.Unlock()
	var err error
	if journal != nil {
		err = journal.Close()
	}
	c.endpoints.close()
	return err
}
