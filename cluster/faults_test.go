package cluster_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// history returns the values that a record has had, in order.
func (e *etcd) history(t *testing.T, id string) (values []string) {
	t.Helper()
	ctx := bounded(t)
	client := e.client(t)
	now := e.get(t, "r/"+id)
	for answer := range client.Watch(ctx, string(now.Key), clientv3.WithRev(now.CreateRevision)) {
		for _, event := range answer.Events {
			values = append(values, string(event.Kv.Value))
			if event.Kv.ModRevision == now.ModRevision {
				return values
			}
		}
	}
	t.Fatal("the history does not end")
	return nil
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
}

// Each request has an unknown outcome at some byte: the one that commits, and the one that takes the election. What is
// stuck arrives after later commits.
func TestInvariant33ACommitThatIsCutOrStuckAtAnyByteIsAppliedOnce(t *testing.T) {
	t.Parallel() // it mostly waits
	e := sharedEtcd(t)
	proxies, options := e.proxied(t, "a")
	candidate := open(t, options)
	c := newCounter(t, candidate)
	for _, w := range []way{toEtcd, fromEtcd} {
		for n := 0; n < 600; n += 9 {
			fault(proxies, w, n, (*proxy).cut)
			c.commit(t)
			if n%24 != 0 {
				continue
			}
			if err := c.journal.Close(); err != nil {
				t.Fatal(err)
			}
			fault(proxies, w, n, (*proxy).cut)
			if c.journal = campaign(t, candidate); len(load(t, c.journal)) != c.n+1 {
				t.Fatalf("the election is won without the records of %d commits", c.n)
			}
		}
		for n := 0; n < 300; n += 50 {
			fault(proxies, w, n, (*proxy).hold)
			c.commit(t)
			c.commit(t)
			release(proxies)
			c.commit(t)
		}
	}
	c.check(t, e)
}

// The store outlives the loss of one member of etcd: one that accepts connections and answers nothing, and the
// one that leads. Without a majority it stops.
func TestInvariant34TheStoreStopsWithoutAMajorityOfEtcdAndComesBack(t *testing.T) {
	t.Parallel() // it mostly waits
	e := newEtcd(t)
	proxies, options := e.proxied(t, "a")
	candidate := open(t, options)
	c := newCounter(t, candidate)
	hold(proxies[:1]) // the candidate prefers this one
	for range 10 {
		c.commit(t)
	}
	release(proxies)
	leader := 0
	await.Until(func() bool { // a member leads
		for i, m := range e.members {
			if leads, _ := m.Leads(); leads {
				leader = i
				return true
			}
		}
		return false
	})
	e.members[leader].Close()
	for range 10 {
		c.commit(t)
	}
	c.check(t, e)

	e.members[(leader+1)%3].Close()
	if err := c.journal.Commit(bounded(t), []statestore.Group{group("k", "lost")}); err == nil {
		t.Error("a commit without a majority succeeded")
	}
	if err := c.journal.Standing(); err == nil {
		t.Error("the store has standing without a majority")
	}
	await.Until(func() bool { return candidate.Active() == "" })
	if err := c.journal.Close(); err == nil || !strings.Contains(err.Error(), "as after a crash") {
		t.Errorf("Close without a majority: %v", err)
	}
	e.start(t, leader)
	e.start(t, (leader+1)%3)
	c.journal = campaign(t, candidate)
	// The outcome of the commit that failed is unknown.
	if records := load(t, c.journal); records["k"] != fmt.Sprint(c.n) && records["k"] != "lost" || records["of 1"] != "1" {
		t.Errorf("the records are %q", records)
	}
	c.commit(t)
}
