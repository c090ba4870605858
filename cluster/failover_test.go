//go:build unix

package cluster_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
)

// pair starts two children on e, and returns the active one first.
func pair(t *testing.T, e *etcd) (active, standby *child) {
	t.Helper()
	a := startChild(t, childOptions{Endpoints: e.urls, Prefix: prefix(t), Name: "a"})
	b := startChild(t, childOptions{Endpoints: e.urls, Prefix: prefix(t), Name: "b"})
	active = awaitActive(t, []*child{a, b})
	if active == b {
		a, b = b, a
	}
	eventually(t, "commits", func() bool { return len(active.of("committed")) > 50 })
	return a, b
}

// checkTakeover checks that former answered and committed nothing once next was active, and
// that next has what former committed.
func checkTakeover(t *testing.T, former, next *child) {
	t.Helper()
	took := next.await(t, "active")
	for _, what := range []string{"answer", "committed"} {
		events := former.of(what)
		if len(events) == 0 {
			t.Errorf("%s has no event %q", former.name, what)
			continue
		}
		if last := events[len(events)-1]; last.at >= took.at {
			t.Errorf("%s has an event %q %v after %s was active", former.name, what, last.at-took.at, next.name)
		}
	}
	var records int
	_, _ = fmt.Sscan(took.more, &records)
	// Two records for the first commit and one for each later one; the last may be unknown to former.
	if committed := len(former.of("committed")); records < committed+1 || records > committed+2 {
		t.Errorf("%s loaded %d records; %s had committed %d times", next.name, records, former.name, committed)
	}
	answers := former.of("answer")
	t.Logf("without an answer for %v", took.at-answers[len(answers)-1].at)
}

// checkTakeoverAfter ends the active process with a signal, and checks that one of all takes over.
func checkTakeoverAfter(t *testing.T, signal syscall.Signal, active *child, all ...*child) {
	t.Helper()
	active.signal(signal)
	active.end()
	checkTakeover(t, active, awaitActive(t, all, active))
}

func TestInvariant35AStandbyTakesOverFromAProcessThatIsKilled(t *testing.T) {
	t.Parallel() // they mostly wait
	active, standby := pair(t, sharedEtcd(t))
	checkTakeoverAfter(t, syscall.SIGKILL, active, standby)
}

func TestAProcessThatIsTerminatedHandsOverAtOnce(t *testing.T) {
	t.Parallel() // they mostly wait
	active, standby := pair(t, sharedEtcd(t))
	checkTakeoverAfter(t, syscall.SIGTERM, active, standby)
}

func TestInvariant35AProcessThatWasFrozenAnswersAndCommitsNothing(t *testing.T) {
	t.Parallel() // they mostly wait
	active, standby := pair(t, sharedEtcd(t))
	active.signal(syscall.SIGSTOP)
	awaitActive(t, []*child{standby})
	active.signal(syscall.SIGCONT)
	if failed := active.await(t, "failed"); !strings.Contains(failed.more, "active store") {
		t.Errorf("the process that was frozen ended with %s", failed.more)
	}
	active.end()
	checkTakeover(t, active, standby)
}

// nodes are three processes, each with a member of etcd and, unless it is a witness, a store.
type nodes struct {
	children [3]*child
	options  [3]childOptions
	urls     []string
}

func startNodes(t *testing.T, witnesses ...int) *nodes {
	t.Helper()
	n := &nodes{}
	for i, options := range etcdtest.Members(t, t.Cleanup) {
		n.urls = append(n.urls, options.ClientURL)
		n.options[i] = childOptions{Prefix: "test", Name: options.Name, Member: &options}
	}
	for _, i := range witnesses {
		n.options[i].Witness = true
	}
	for i := range n.children {
		n.start(t, i)
	}
	return n
}

func (n *nodes) start(t *testing.T, i int) { n.children[i] = startChild(t, n.options[i]) }

// index returns which node a child is.
func (n *nodes) index(c *child) int {
	for i := range n.children {
		if n.children[i] == c {
			return i
		}
	}
	return -1
}

// lead makes member i the leader of etcd.
func (n *nodes) lead(t *testing.T, i int) {
	t.Helper()
	eventually(t, "the member leads", func() bool {
		var ids [3]uint64
		leader := -1
		for m := range n.urls {
			client := n.client(t, m)
			status, err := client.Status(bounded(t), n.urls[m])
			if err != nil {
				return false
			}
			if ids[m] = status.Header.MemberId; status.Leader == ids[m] {
				leader = m
			}
		}
		if leader >= 0 && leader != i {
			_, _ = n.client(t, leader).MoveLeader(bounded(t), ids[i])
		}
		return leader == i
	})
}

func (n *nodes) client(t *testing.T, i int) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: n.urls[i : i+1], Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// activeLeader waits until a node is active, and makes its member the leader of etcd.
func (n *nodes) activeLeader(t *testing.T) *child {
	t.Helper()
	active := awaitActive(t, n.children[:])
	n.lead(t, n.index(active))
	committed := len(active.of("committed"))
	eventually(t, "commits", func() bool { return len(active.of("committed")) > committed+20 })
	return active
}

// The store and the leader of etcd are one process here, and freeze together.
func TestInvariant35ANodeThatLedEtcdAnswersNothingAfterItWasFrozen(t *testing.T) {
	t.Parallel() // they mostly wait
	n := startNodes(t)
	active := n.activeLeader(t)
	active.signal(syscall.SIGSTOP)
	next := awaitActive(t, n.children[:], active)
	eventually(t, "commits", func() bool { return len(next.of("committed")) > 20 })
	active.signal(syscall.SIGCONT)
	active.await(t, "failed")
	active.end()
	checkTakeover(t, active, next)
}

func TestInvariant35ANodeThatLedEtcdIsKilled(t *testing.T) {
	t.Parallel() // they mostly wait
	n := startNodes(t)
	checkTakeoverAfter(t, syscall.SIGKILL, n.activeLeader(t), n.children[:]...)
}

func TestANodeThatIsTerminatedHandsOverAtOnce(t *testing.T) {
	t.Parallel() // they mostly wait
	n := startNodes(t)
	checkTakeoverAfter(t, syscall.SIGTERM, n.activeLeader(t), n.children[:]...)
}

func TestTheActiveStoreOutlivesTheLeaderOfEtcd(t *testing.T) {
	t.Parallel() // they mostly wait
	n := startNodes(t, 0, 1, 2)
	e := &etcd{urls: n.urls}
	c := newCounter(t, open(t, e.candidateOptions(t, "a")))
	c.commit(t)
	n.lead(t, 1)
	n.children[1].signal(syscall.SIGKILL)
	began := time.Now()
	for range 10 {
		c.commit(t)
	}
	t.Logf("the commits took %v", time.Since(began))
	c.check(t, e)
}

// A member that is frozen accepts connections and answers nothing.
func TestTheActiveStoreOutlivesAFrozenLeaderOfEtcd(t *testing.T) {
	t.Parallel() // they mostly wait
	n := startNodes(t, 0, 1, 2)
	e := &etcd{urls: n.urls}
	c := newCounter(t, open(t, e.candidateOptions(t, "a")))
	c.commit(t)
	n.lead(t, 0) // which the candidate prefers
	n.children[0].signal(syscall.SIGSTOP)
	began := time.Now()
	for range 10 {
		c.commit(t)
	}
	t.Logf("the commits took %v", time.Since(began))
	n.children[0].signal(syscall.SIGCONT)
	for range 100 {
		c.commit(t)
	}
	c.check(t, e)
}

func TestInvariant34TheStoreStopsWithoutAMajorityOfEtcdAndComesBack(t *testing.T) {
	t.Parallel() // they mostly wait
	n := startNodes(t, 0, 1, 2)
	e := &etcd{urls: n.urls}
	options := e.candidateOptions(t, "a")
	options.TTL = 4 * time.Second
	candidate := open(t, options)
	c := newCounter(t, candidate)
	c.commit(t)
	for i := range 2 {
		n.children[i].signal(syscall.SIGKILL)
		n.children[i].end()
	}
	if err := c.journal.Commit(bounded(t), batchOf("k", "lost")); err == nil {
		t.Error("a commit without a majority succeeded")
	}
	if err := c.journal.Standing(); err == nil {
		t.Error("the store has standing without a majority")
	}
	if err := c.journal.Close(); err == nil || !strings.Contains(err.Error(), "as after a crash") {
		t.Errorf("Close without a majority: %v", err)
	}
	for i := range 2 {
		n.start(t, i)
	}
	c.journal = campaign(t, candidate)
	// The outcome of the commit that failed is unknown.
	if records := load(t, c.journal); records["k"] != "1" && records["k"] != "lost" || records["of 1"] != "1" {
		t.Errorf("the records are %q", records)
	}
	c.commit(t)
}
