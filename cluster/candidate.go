package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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
	journal *Journal      // the last one, until it is closed
	running bool          // a Campaign
}

// Active describes the active store.
type Active struct {
	Name    string // Options.Name of the process; empty if there is no active store, or none is known yet
	Address string // Options.Address of the process
}

// observation is what was last read of the election key.
type observation struct {
	known    bool
	revision int64 // at which the key was created; 0 if there is none
	active   Active
}

// Open checks the options, waits until etcd answers, and checks the prefix and etcd's limits.
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

// Active returns the active store as far as this process knows, and a channel that is closed
// when that changes. It does not wait. What it returns can be old: only Journal.Standing says
// whether this process is the active one.
func (c *Candidate) Active() (active Active, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.active, c.changed
}

// Campaign waits until this process is the active store and returns its journal. It returns an
// error when ctx ends, with its cause; when the candidate is closed, with ErrClosed; and when
// etcd refuses what a candidate must do, with the reason. Other failures of etcd are waited
// out. Before a second Campaign, close the journal of the first.
func (c *Candidate) Campaign(ctx context.Context) (*Journal, error) {
	if err := c.beginCampaign(); err != nil {
		return nil, fmt.Errorf("cluster: campaign: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })()
	defer cancel(nil)
	journal, err := c.campaign(ctx)
	c.endCampaign(journal)
	if err != nil {
		return nil, fmt.Errorf("cluster: campaign: %w", err)
	}
	return journal, nil
}

func (c *Candidate) beginCampaign() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.life.Err() != nil:
		return ErrClosed
	case c.running:
		return errors.New("another Campaign is under way")
	case c.journal != nil:
		return errors.New("the journal of the last Campaign was not closed")
	}
	c.running = true
	c.tasks.Add(1) // with the lock, so Close waits for it or it sees the end
	return nil
}

func (c *Candidate) endCampaign(journal *Journal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.journal = false, journal
	c.tasks.Done()
}

func (c *Candidate) resigned(journal *Journal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.journal == journal {
		c.journal = nil
	}
}

func (c *Candidate) campaign(ctx context.Context) (*Journal, error) {
	failing := false
	for {
		seen, changed := c.observed()
		if !seen.known || seen.revision != 0 {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		journal, err := c.try(ctx)
		switch {
		case journal != nil:
			return journal, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && (refusal(err) != "" || errors.Is(err, ErrForeignData)):
			return nil, err
		case err == nil: // another process was first
			failing = false
		case !failing:
			failing = true
			c.options.Logger.Warn("campaign for the active store: trying again", slog.Any("reason", err))
		}
		// The key was seen to be free and is not, or etcd does not answer. observe will see it.
		pause := c.options.TTL / 8
		if !sleep.For(ctx, pause/2+mathrand.N(pause)) {
			return nil, context.Cause(ctx)
		}
	}
}

func (c *Candidate) observed() (observation, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen, c.changed
}

// try tries to create the election key once. It returns nil and no error if another process
// has it.
func (c *Candidate) try(ctx context.Context) (*Journal, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.TTL, errors.New("etcd did not answer in time"))
	defer cancel()
	j := &Journal{candidate: c, options: &c.options, endpoints: c.endpoints, keys: c.keys, term: rand.Text(), room: room{wake: make(chan struct{}, 1)}}
	began, err := j.grant(ctx)
	if err != nil {
		return nil, fmt.Errorf("grant a lease: %w", err)
	}
	// The lease's time has begun, so the deadline counts from before it was granted.
	j.standing = newStanding(c.options.Clock, j.ttl-c.options.Margin, began)
	if err := j.win(ctx); err != nil || j.won == 0 {
		// If the outcome is unknown, the key may still be created, but not after this.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.options.TTL/4)
		defer cancel()
		_ = revoke(ctx, c.endpoints, c.options.patience(), j.lease) // else it expires
		return nil, err
	}
	if err := j.check(); err != nil {
		return nil, fmt.Errorf("the election took longer than the lease lasts: %w", err)
	}
	c.options.Logger.Info("this process is the active store", slog.String("name", c.options.Name), slog.String("address", c.options.Address))
	j.start()
	return j, nil
}

// grant gets a lease. If the outcome of an attempt is unknown, a lease that nothing uses expires.
func (j *Journal) grant(ctx context.Context) (began time.Duration, err error) {
	type grant struct {
		began time.Duration
		lease *clientv3.LeaseGrantResponse
	}
	g, err := do(ctx, j.endpoints, j.options.patience(), func(ctx context.Context, client *clientv3.Client) (g grant, err error) {
		g.began = j.options.Clock()
		g.lease, err = client.Grant(ctx, int64(j.options.TTL/time.Second))
		return g, err
	})
	if err != nil {
		return 0, err
	}
	j.lease, j.ttl = g.lease.ID, time.Duration(g.lease.TTL)*time.Second
	if j.ttl != j.options.TTL {
		j.options.Logger.Warn("etcd's election timeout makes the TTL of the active store longer", slog.Duration("TTL", j.ttl))
	}
	return g.began, nil
}

// win creates the election key unless there is one, and sets won if it has.
func (j *Journal) win(ctx context.Context) (err error) {
	value := ballot{Term: j.term, Name: j.options.Name, Address: j.options.Address}.encode()
	j.won, err = do(ctx, j.endpoints, j.options.patience(), func(ctx context.Context, client *clientv3.Client) (won int64, err error) {
		response, err := client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(j.keys.active), "=", 0)).
			Then(clientv3.OpPut(j.keys.active, value, clientv3.WithLease(j.lease)),
				clientv3.OpPut(j.keys.format, format),
				clientv3.OpPut(j.keys.sequence, j.number(0))).
			Else(clientv3.OpGet(j.keys.active)).Commit()
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return 0, final{err}
		case err != nil:
			return 0, err
		case response.Succeeded:
			return response.Header.Revision, nil
		}
		// An earlier attempt may have created it.
		for _, kv := range response.Responses[0].GetResponseRange().GetKvs() {
			if decodeBallot(kv.Value).Term == j.term {
				won = kv.CreateRevision
			}
		}
		return won, nil
	})
	return err
}

func decodeBallot(value []byte) (b ballot) {
	if json.Unmarshal(value, &b) != nil || len(b.Name) > maxAddress || len(b.Address) > maxAddress {
		return ballot{Name: "?"} // not written by this package
	}
	return b
}

// observe follows the election key until the candidate is closed. A watch wakes it early; it
// also asks every half TTL, because a watch at a member that is frozen is silent.
func (c *Candidate) observe() {
	unknown := false
	for {
		seen, next, err := c.look(c.life)
		switch {
		case c.life.Err() != nil:
			return
		case err != nil:
			if !unknown {
				unknown = true
				c.options.Logger.Warn("etcd does not answer, so the active store is not known; a majority of the members of etcd must run", slog.Any("reason", err))
				c.see(observation{}) // clients must not be sent to a process that may be gone
			}
			if !sleep.For(c.life, c.options.TTL/8) {
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

// look reads the election key. next is the first revision that the answer does not include.
func (c *Candidate) look(ctx context.Context) (seen observation, next int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.options.TTL, errors.New("etcd did not answer in time"))
	defer cancel()
	response, err := do(ctx, c.endpoints, c.options.patience(), func(ctx context.Context, client *clientv3.Client) (*clientv3.GetResponse, error) {
		return client.Get(ctx, c.keys.active)
	})
	if err != nil {
		return observation{}, 0, err
	}
	seen = observation{known: true}
	for _, kv := range response.Kvs {
		b := decodeBallot(kv.Value)
		seen.revision, seen.active = kv.CreateRevision, Active{Name: b.Name, Address: b.Address}
	}
	return seen, response.Header.Revision + 1, nil
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

// await returns when the election key has changed since revision next, after half a TTL, or
// when the watch fails.
func (c *Candidate) await(next int64) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(c.life), c.options.TTL/2)
	defer cancel() // ends the watch
	client, _ := c.endpoints.at(0)
	select {
	case response, open := <-client.Watch(ctx, c.keys.active, clientv3.WithRev(next)):
		if !open || response.Err() != nil {
			_ = sleep.For(ctx, c.options.TTL/16)
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
