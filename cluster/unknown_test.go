package cluster_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
)

// proxied returns a proxy for each member, and options that use them.
func (e *etcd) proxied(t *testing.T, name string) ([]*proxy, cluster.Options) {
	t.Helper()
	options := e.candidateOptions(t, name)
	options.Endpoints, options.TTL = nil, 6*time.Second // and so a silent attempt costs less
	var proxies []*proxy
	for _, url := range e.urls {
		p := newProxy(t, url)
		proxies = append(proxies, p)
		options.Endpoints = append(options.Endpoints, p.url())
	}
	return proxies, options
}

// history returns the values that a record has had, in order.
func (e *etcd) history(t *testing.T, id string) (values []string) {
	t.Helper()
	ctx := bounded(t)
	client := e.client(t)
	key := prefix(t) + "r/" + id
	now, err := client.Get(ctx, key)
	if err != nil || len(now.Kvs) != 1 {
		t.Fatalf("%v: %v", now, err)
	}
	watch := client.Watch(ctx, key, clientv3.WithRev(now.Kvs[0].CreateRevision))
	for {
		select {
		case answer := <-watch:
			if err := answer.Err(); err != nil {
				t.Fatal(err)
			}
			for _, event := range answer.Events {
				values = append(values, string(event.Kv.Value))
				if event.Kv.ModRevision == now.Kvs[0].ModRevision {
					return values
				}
			}
		case <-ctx.Done():
			t.Fatal("the history does not end")
		}
	}
}

// counter commits 1, 2, 3 … to the record k.
type counter struct {
	journal *cluster.Journal
	n       int
}

// newCounter waits until the candidate is the active one, and loads its journal.
func newCounter(t *testing.T, candidate *cluster.Candidate) *counter {
	t.Helper()
	c := &counter{journal: campaign(t, candidate)}
	load(t, c.journal)
	return c
}

func (c *counter) commit(t *testing.T) {
	t.Helper()
	c.n++
	value := strconv.Itoa(c.n)
	commit(t, c.journal, group("k", value, "of "+value, value))
}

// check checks that each commit was applied once, in order.
func (c *counter) check(t *testing.T, e *etcd) {
	t.Helper()
	values := e.history(t, "k")
	for i, value := range values {
		if value != strconv.Itoa(i+1) {
			t.Fatalf("commit %d wrote %s", i+1, value)
		}
	}
	if len(values) != c.n {
		t.Errorf("%d commits of %d were applied", len(values), c.n)
	}
	records, err := e.client(t).Get(bounded(t), prefix(t)+"r/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	if records.Count != int64(c.n)+1 {
		t.Errorf("there are %d records after %d commits", records.Count, c.n)
	}
}

// fault arms all proxies: the first at which n bytes have passed in a direction does what do says.
func fault(proxies []*proxy, w way, n int, do func(*proxy)) {
	var once sync.Once
	for _, p := range proxies {
		p.after(w, n, func() { once.Do(func() { do(p) }) })
	}
}

func TestInvariant33ACommitWhoseConnectionBreaksAtAnyByteIsAppliedOnce(t *testing.T) {
	e := sharedEtcd(t)
	proxies, options := e.proxied(t, "a")
	c := newCounter(t, open(t, options))
	for _, w := range []way{toEtcd, fromEtcd} {
		for n := 0; n < 600; n += 9 {
			fault(proxies, w, n, (*proxy).cutLocked)
			c.commit(t)
		}
	}
	c.check(t, e)
}

func TestInvariant33ACommitThatIsStuckAtAnyByteIsAppliedOnce(t *testing.T) {
	e := sharedEtcd(t)
	proxies, options := e.proxied(t, "a")
	c := newCounter(t, open(t, options))
	for _, w := range []way{toEtcd, fromEtcd} {
		for n := 0; n < 300; n += 50 {
			fault(proxies, w, n, (*proxy).holdLocked)
			c.commit(t)
			c.commit(t)
			for _, p := range proxies {
				p.release() // what was stuck arrives after later commits
			}
			c.commit(t)
		}
	}
	c.check(t, e)
}

// A member that was frozen applies what it has read when it goes on, though the sender has
// given up long ago.
func TestInvariant33ATransactionThatArrivesLateIsNotApplied(t *testing.T) {
	e := sharedEtcd(t)
	proxies, options := e.proxied(t, "a")
	c := newCounter(t, open(t, options))
	c.commit(t)
	late := 0
	for round := 0; late < 3; round++ {
		if round == 20 {
			t.Fatalf("%d transactions arrived late in %d rounds", late, round)
		}
		fault(proxies, toEtcd, 0, (*proxy).holdLocked)
		c.commit(t)
		c.commit(t)
		for _, p := range proxies {
			if !p.isHeld() {
				p.release()
				continue
			}
			before := p.hasPassed(fromEtcd)
			p.releaseHeld()
			// What was held may be no request, and have no answer.
			for range 100 {
				if p.hasPassed(fromEtcd) > before {
					late++
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			p.cut()
		}
		c.commit(t)
	}
	c.check(t, e)
}

// The outcome of an election can be unknown as well.
func TestAnElectionWhoseConnectionBreaksAtAnyByteIsWonOnce(t *testing.T) {
	e := sharedEtcd(t)
	proxies, options := e.proxied(t, "a")
	candidate := open(t, options)
	for _, w := range []way{toEtcd, fromEtcd} {
		for n := 0; n < 600; n += 24 {
			fault(proxies, w, n, (*proxy).cutLocked)
			journal := campaign(t, candidate)
			if _, err := journal.Load(bounded(t), func(statestore.Record) error { return nil }); err != nil {
				t.Fatal(err)
			}
			commit(t, journal, group(fmt.Sprint(w, n), "1"))
			if err := journal.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if records := load(t, campaign(t, candidate)); len(records) != 2*25 {
		t.Errorf("there are %d records after %d commits", len(records), 2*25)
	}
}

// A first proof that comes too late is repeated. The process does not resign and win again.
func TestAnElectionInWhichTheProcessStandsStillIsWonOnce(t *testing.T) {
	e := sharedEtcd(t)
	for n := int64(1); n <= 5; n++ { // as often as Campaign reads it
		t.Run(fmt.Sprintf("at reading %d of the clock", n), func(t *testing.T) {
			options := e.candidateOptions(t, "a")
			var readings atomic.Int64
			options.Clock = func() time.Duration {
				now := lease.SystemClock()
				if readings.Add(1) > n {
					now += options.Standing
				}
				return now
			}
			journal := campaign(t, open(t, options))
			response, err := e.client(t).Get(bounded(t), prefix(t)+"active")
			if err != nil || len(response.Kvs) != 1 || response.Kvs[0].Version != 1 {
				t.Errorf("the key was written %v, want once; %v", response, err)
			}
			if err := journal.Err(); err != nil && n < 3 { // later it stands still after the proof
				t.Errorf("the standing has ended: %v", err)
			}
		})
	}
}
