package cluster_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
)

func TestInvariant35AnActiveProcessThatIsCutOffStopsBeforeTheStandbyTakesOver(t *testing.T) {
	e := sharedEtcd(t)
	proxies, options := e.proxied(t, "a")
	options.TTL = 3 * time.Second
	first := campaign(t, open(t, options))
	load(t, first)
	commit(t, first, group("a", "1"))
	second := open(t, e.candidateOptions(t, "b"))
	for _, p := range proxies {
		p.hold()
	}
	began := time.Now()
	took := campaign(t, second)
	t.Logf("the standby took over after %v", time.Since(began))
	if err := first.Standing(); err == nil {
		t.Error("both processes have standing")
	}
	if err := first.Commit(bounded(t), batchOf("a", "2")); err == nil {
		t.Error("the deposed process committed")
	}
	if want, got := map[string]string{"a": "1"}, load(t, took); !maps.Equal(got, want) {
		t.Errorf("the records are %q, want %q", got, want)
	}
	for _, p := range proxies {
		p.release()
	}
	if err := first.Close(); err != nil {
		t.Errorf("Close after the partition: %v", err)
	}
	commit(t, took, group("a", "3"))
	if err := took.Standing(); err != nil {
		t.Error(err)
	}
}

// A process with a clock that stands still never sees its deadline. etcd refuses what it writes.
func TestInvariant35EtcdRefusesWhatADeposedProcessWrites(t *testing.T) {
	e := sharedEtcd(t)
	proxies, options := e.proxied(t, "a")
	var stopped atomic.Int64
	options.Clock = func() time.Duration {
		if at := stopped.Load(); at != 0 {
			return time.Duration(at)
		}
		return lease.SystemClock()
	}
	first := campaign(t, open(t, options))
	load(t, first)
	stopped.Store(int64(lease.SystemClock()))
	commit(t, first, group("a", "1"))
	for _, p := range proxies {
		p.hold() // else it learns at once that it is deposed
	}
	e.expireLeaseOf(t)
	second := campaign(t, open(t, e.candidateOptions(t, "b")))
	load(t, second)
	commit(t, second, group("a", "2"))
	if err := first.Standing(); err != nil {
		t.Fatalf("the test needs a process that believes to be active: %v", err)
	}
	failed := make(chan error, 1)
	go func() { failed <- first.Commit(t.Context(), batchOf("a", "3")) }()
	for _, p := range proxies {
		p.release()
	}
	if err := await.Receive(failed); !errors.Is(err, cluster.ErrDeposed) {
		t.Fatalf("the deposed process committed with the result %v", err)
	}
	await.Receive(first.Done())
	if values := e.history(t, "a"); fmt.Sprint(values) != "[1 2]" {
		t.Errorf("the record had the values %q", values)
	}
}

// expireLeaseOf ends the lease of the active process, as etcd does when it expires.
func (e *etcd) expireLeaseOf(t *testing.T) {
	t.Helper()
	client := e.client(t)
	response, err := client.Get(bounded(t), prefix(t)+"alive")
	if err != nil || len(response.Kvs) != 1 {
		t.Fatalf("the key with the lease: %v, %v", response, err)
	}
	if _, err := client.Revoke(bounded(t), clientv3.LeaseID(response.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
}

func TestAnActiveProcessWhoseLeaseExpiredEnds(t *testing.T) {
	e := sharedEtcd(t)
	options := e.candidateOptions(t, "a")
	options.TTL = 4 * time.Second
	journal := campaign(t, open(t, options))
	e.expireLeaseOf(t)
	await.Receive(journal.Done())
	if !errors.Is(journal.Err(), cluster.ErrDeposed) || journal.Standing() == nil {
		t.Errorf("it ended with %v", journal.Err())
	}
}

// compact removes all revisions before the present one.
func compact(t *testing.T, client *clientv3.Client) {
	t.Helper()
	now, err := client.Get(bounded(t), "none")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(bounded(t), now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

// defragment makes the member at url give up what compactions left.
func defragment(t *testing.T, client *clientv3.Client, url string) {
	t.Helper()
	if _, err := client.Defragment(bounded(t), url); err != nil {
		t.Fatal(err)
	}
}

func TestCompactionAndDefragmentationDoNoHarm(t *testing.T) {
	e := newEtcd(t)
	candidate := open(t, e.candidateOptions(t, "a"))
	c := newCounter(t, candidate)
	client := e.client(t)
	for range 8 {
		c.commit(t)
		compact(t, client)
		for _, url := range e.urls {
			c.commit(t)
			defragment(t, client, url)
		}
	}
	if err := c.journal.Close(); err != nil {
		t.Fatal(err)
	}
	next := campaign(t, candidate)
	if records := load(t, next); len(records) != c.n+1 || records["k"] != fmt.Sprint(c.n) {
		t.Errorf("%d records after %d commits; k is %q", len(records), c.n, records["k"])
	}
}

func TestInvariant34AnEtcdThatIsFullEndsTheJournalWithTheCure(t *testing.T) {
	e := startEtcdWith(t, t.Cleanup, func(o *member.Options) { o.MaxDatabase, o.Quota = 64<<20, 128<<20 })
	candidate := open(t, e.candidateOptions(t, "a"))
	journal := campaign(t, candidate)
	load(t, journal)
	var failed error
	committed := 0
	for ; failed == nil && committed < 300; committed++ {
		failed = journal.Commit(bounded(t), []statestore.Group{{{ID: []byte("a"), Value: make([]byte, 1<<20)}}})
	}
	if failed == nil || !strings.Contains(failed.Error(), "--quota-backend-bytes") {
		t.Fatalf("after %d commits: %v", committed, failed)
	}
	if journal.Standing() == nil {
		t.Error("the process may still answer")
	}
	_ = journal.Close() // nor does etcd keep that it resigned
	// The cure that the error names.
	client := e.client(t)
	compact(t, client)
	for _, url := range e.urls {
		defragment(t, client, url)
	}
	// Each member that has refused a request raises an alarm, the last one maybe after the first
	// was disarmed.
	eventually(t, "etcd takes writes again", func() bool {
		if _, err := client.AlarmDisarm(bounded(t), &clientv3.AlarmMember{}); err != nil {
			t.Fatal(err)
		}
		_, err := client.Put(bounded(t), "after the alarm", "")
		return err == nil
	})
	journal = campaign(t, candidate)
	load(t, journal)
	commit(t, journal, group("a", "small"))
}

func TestAnEtcdOfItsOwnIsCompactedBeforeItIsFull(t *testing.T) {
	e := startEtcdWith(t, t.Cleanup, func(o *member.Options) { o.MaxDatabase, o.Quota, o.Witness = 64<<20, 128<<20, o.Name != "m0" })
	journal := campaign(t, open(t, e.members[0].Configure(e.candidateOptions(t, "a"))))
	load(t, journal)
	for range 200 {
		commit(t, journal, statestore.Group{{ID: []byte("a"), Value: make([]byte, 1<<20)}})
	}
}

// Another program of that etcd may read old revisions. Its operator compacts it.
func TestAnEtcdThatOthersShareIsNotCompacted(t *testing.T) {
	e := sharedEtcd(t)
	client := e.client(t)
	before, err := client.Get(bounded(t), prefix(t))
	if err != nil {
		t.Fatal(err)
	}
	journal := campaign(t, open(t, e.candidateOptions(t, "a")))
	load(t, journal)
	for range 20 { // more than is compacted elsewhere
		commit(t, journal, statestore.Group{{ID: []byte("a"), Value: make([]byte, 1<<20)}})
	}
	if err := journal.Close(); err != nil { // after what it had begun
		t.Error(err)
	}
	if _, err := client.Get(bounded(t), prefix(t), clientv3.WithRev(before.Header.Revision)); err != nil {
		t.Errorf("a read of what was before the journal: %v", err)
	}
}

// Pages are read one after the other; the data between them may be compacted.
func TestLoadReadsManyPagesWhileEtcdIsCompacted(t *testing.T) {
	e := newEtcd(t)
	candidate := open(t, e.candidateOptions(t, "a"))
	journal := campaign(t, candidate)
	load(t, journal)
	want := make(map[string]string)
	var batch []statestore.Group
	for i := range 3000 {
		id, value := fmt.Sprintf("%d", i), strings.Repeat("v", i%100)
		if i%300 == 0 {
			value = strings.Repeat("large", 200_000)
		}
		want[id] = value
		batch = append(batch, group(id, value))
	}
	commit(t, journal, batch...)
	_ = journal.Close()
	next := campaign(t, candidate)
	client := e.client(t)
	got := make(map[string]string)
	_, err := next.Load(bounded(t), func(record statestore.Record) error {
		if len(got)%500 == 0 {
			now, err := client.Put(bounded(t), "other", "")
			if err != nil {
				return err
			}
			if _, err := client.Compact(bounded(t), now.Header.Revision); err != nil {
				return err
			}
		}
		got[string(record.ID)] = string(record.Value)
		clear(record.ID) // the bytes belong to this function
		clear(record.Value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d records were read, want %d", len(got), len(want))
	}
}

func TestLoadPassesTheErrorOfItsFunction(t *testing.T) {
	e := sharedEtcd(t)
	candidate := open(t, e.candidateOptions(t, "a"))
	journal := campaign(t, candidate)
	commit(t, journal, group("a", "1"))
	_ = journal.Close()
	want := errors.New("no")
	if _, err := campaign(t, candidate).Load(bounded(t), func(statestore.Record) error { return want }); !errors.Is(err, want) {
		t.Errorf("Load: %v", err)
	}
}

func TestAPrefixWithOtherDataIsRefused(t *testing.T) {
	e := sharedEtcd(t)
	client := e.client(t)
	for name, pairs := range map[string][2]string{
		"a foreign key":  {"some", "thing"},
		"a later format": {"format", "tenure store 2"},
		"no format":      {"r/record", "of a store whose format key is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			options := e.candidateOptions(t, "a")
			if _, err := client.Put(bounded(t), options.Prefix+pairs[0], pairs[1]); err != nil {
				t.Fatal(err)
			}
			_, err := cluster.Open(bounded(t), options)
			if !errors.Is(err, cluster.ErrForeignData) || !strings.Contains(err.Error(), "another prefix") {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

func TestAPrefixBesideAStoresKeysIsRefused(t *testing.T) {
	e := sharedEtcd(t)
	options := e.candidateOptions(t, "a")
	journal := campaign(t, open(t, options))
	commit(t, journal, group("nested/a", "1"))
	nested := options
	for _, under := range []string{"r/nested/", "r/", "r/none/there/"} {
		nested.Prefix = options.Prefix + under
		if _, err := cluster.Open(bounded(t), nested); !errors.Is(err, cluster.ErrForeignData) || !strings.Contains(err.Error(), "another prefix") {
			t.Errorf("Open with the prefix %q: %v", nested.Prefix, err)
		}
	}
	nested.Prefix = options.Prefix + "rest/" // not among the records
	open(t, nested)
}

// The text of a store that cannot load names the key, because its operator has to delete it.
func TestARecordThatIsDamagedIsNamed(t *testing.T) {
	e := sharedEtcd(t)
	candidate := open(t, e.candidateOptions(t, "a"))
	_ = campaign(t, candidate).Close()
	if _, err := e.client(t).Put(bounded(t), prefix(t)+"r/intruder", "x"); err != nil {
		t.Fatal(err)
	}
	_, err := campaign(t, candidate).Load(bounded(t), func(record statestore.Record) error { _, err := record.Decode(); return err })
	if !errors.Is(err, statestore.ErrDamaged) || !strings.Contains(err.Error(), prefix(t)+"r/intruder") || !strings.Contains(err.Error(), "delete the key") {
		t.Errorf("Load: %v", err)
	}
}

func TestARecordThatAnotherProgramWroteIsNoticed(t *testing.T) {
	e := sharedEtcd(t)
	journal := campaign(t, open(t, e.candidateOptions(t, "a")))
	if _, err := e.client(t).Put(bounded(t), prefix(t)+"r/intruder", "x"); err != nil {
		t.Fatal(err)
	}
	_, err := journal.Load(bounded(t), func(statestore.Record) error { return nil })
	if !errors.Is(err, cluster.ErrForeignData) {
		t.Errorf("Load: %v", err)
	}
	if _, err := e.client(t).Put(bounded(t), prefix(t)+"sequence", "x"); err != nil {
		t.Fatal(err)
	}
	if err := journal.Commit(bounded(t), batchOf("a", "1")); !errors.Is(err, cluster.ErrForeignData) {
		t.Errorf("Commit: %v", err)
	}
}

func TestAnEtcdWithLowerLimitsIsRefusedAtTheStart(t *testing.T) {
	e := sharedEtcd(t)
	for name, test := range map[string]struct {
		change func(*cluster.Options)
		says   string
	}{
		"operations": {func(o *cluster.Options) { o.MaxOperations = 5000 }, "--max-txn-ops"},
		"bytes":      {func(o *cluster.Options) { o.MaxTransactionBytes = 5 << 20 }, "--max-request-bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			options := e.candidateOptions(t, "a")
			test.change(&options)
			if _, err := cluster.Open(bounded(t), options); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("Open: %v; want %s", err, test.says)
			}
		})
	}
}

// The largest transactions that options allow are accepted.
func TestTransactionsOfTheLargestSizeAreCommitted(t *testing.T) {
	e := sharedEtcd(t)
	options := e.candidateOptions(t, "a")
	journal := campaign(t, open(t, options))
	large := make([]byte, options.MaxPacketSize())
	var batch []statestore.Group
	for i := range 3 {
		batch = append(batch, statestore.Group{{ID: fmt.Appendf(nil, "large %d", i), Value: large}, {ID: fmt.Appendf(nil, "reply %d", i), Value: make([]byte, 1<<16)}})
	}
	for i := range 1000 {
		batch = append(batch, group(fmt.Sprintf("small %d", i), "1"))
	}
	commit(t, journal, batch...)
	_, err := e.client(t).Get(bounded(t), prefix(t)+"r/small 999")
	if err != nil {
		t.Error(err)
	}
}

func TestAGroupThatIsTooLargeEndsTheJournalWithTheCure(t *testing.T) {
	e := sharedEtcd(t)
	journal := campaign(t, open(t, e.candidateOptions(t, "a")))
	err := journal.Commit(bounded(t), []statestore.Group{{{ID: []byte("a"), Value: make([]byte, 2<<20)}}})
	if err == nil || !strings.Contains(err.Error(), "MaxPacketSize") || journal.Standing() == nil {
		t.Errorf("Commit: %v", err)
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	valid := func() cluster.Options { return cluster.Options{Endpoints: []string{"http://127.0.0.1:2379"}} }
	for says, change := range map[string]func(*cluster.Options){
		"Endpoints is empty":      func(o *cluster.Options) { o.Endpoints = nil },
		"not the URL of a member": func(o *cluster.Options) { o.Endpoints = []string{"localhost"} },
		"without TLS":             func(o *cluster.Options) { o.TLS = &tls.Config{} },
		"Options.Prefix":          func(o *cluster.Options) { o.Prefix = strings.Repeat("p", 300) },
		"Options.Name":            func(o *cluster.Options) { o.Name = strings.Repeat("p", 3000) },
		"Options.TTL":             func(o *cluster.Options) { o.TTL = 2500 * time.Millisecond },
		"Options.Standing":        func(o *cluster.Options) { o.Standing = time.Millisecond },
		"Options.MaxOperations":   func(o *cluster.Options) { o.MaxOperations = statestore.MaxGroup },
		"MaxTransactionBytes":     func(o *cluster.Options) { o.MaxTransactionBytes = 1 << 10 },
	} {
		options := valid()
		change(&options)
		if _, err := cluster.Open(bounded(t), options); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Open: %v; want an error with %q", err, says)
		}
	}
}

func TestOpenWaitsForEtcdUntilItsContextEnds(t *testing.T) {
	nothing := []string{"http://" + etcdtest.Addresses(t, 1)[0]}
	eventually(t, "the error says why etcd did not answer", func() bool {
		_, err := cluster.Open(short(t), cluster.Options{Endpoints: nothing}) // on a busy machine it may end before the first attempt
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Open: %v", err)
		}
		return strings.Contains(err.Error(), "refused")
	})
}

func TestInvariant42ClosingACandidateAtAnyMomentEndsItsCampaign(t *testing.T) {
	e := sharedEtcd(t)
	first := open(t, e.candidateOptions(t, "a"))
	campaign(t, first)
	second := open(t, e.candidateOptions(t, "b"))
	failed := make(chan error, 1)
	go func() {
		_, err := second.Campaign(t.Context())
		failed <- err
	}()
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if err := await.Receive(failed); !errors.Is(err, cluster.ErrClosed) {
		t.Errorf("Campaign: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Errorf("Close of the active one: %v", err)
	}
	eventually(t, "no goroutine of the package is left", func() bool {
		stacks := make([]byte, 16<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return !bytes.Contains(stacks, []byte("/cluster.(*")) && !bytes.Contains(stacks, []byte("/cluster.do"))
	})
	third := open(t, e.candidateOptions(t, "c"))
	campaign(t, third) // at once: the first has resigned
	if _, err := third.Campaign(bounded(t)); err == nil {
		t.Error("a second Campaign got the election while the first journal is open")
	}
}

// ledBy is a member that always leads etcd, and notes what it was told last.
type ledBy struct{ eligible atomic.Bool }

func (l *ledBy) Leads() (bool, <-chan struct{}) { return true, nil }
func (l *ledBy) SetEligible(can bool)           { l.eligible.Store(can) }

// A campaign that ends after it has won and before its first proof must resign: the next process would wait
// for an end that has come.
func TestACampaignThatEndsAfterItHasWonResigns(t *testing.T) {
	e := sharedEtcd(t)
	options := e.candidateOptions(t, "a")
	ctx, cancel := context.WithCancel(bounded(t))
	options.Member = new(ledBy)
	options.Clock = func() time.Duration { // it is read when the election is won
		cancel()
		return lease.SystemClock()
	}
	if journal, err := open(t, options).Campaign(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(journal, err)
	}
	response, err := e.client(t).Get(bounded(t), options.Prefix+"active")
	if err != nil || len(response.Kvs) != 1 {
		t.Fatal(response, err)
	}
	if value := string(response.Kvs[0].Value); !strings.Contains(value, `"resigned":true`) {
		t.Errorf("the election key has %s", value)
	}
}

// A process that has given leadership up and then wins all the same must not be deposed for that.
func TestAProcessThatWinsAfterVainAttemptsKeepsLeadership(t *testing.T) {
	e := sharedEtcd(t)
	options := e.candidateOptions(t, "a")
	member := new(ledBy)
	options.Member = member
	var reads atomic.Int64
	options.Clock = func() time.Duration { // the first proofs come too late
		n := min(reads.Add(1), 40)
		return lease.SystemClock() + time.Duration(n)*time.Minute
	}
	journal := campaign(t, open(t, options))
	defer journal.Close()
	if reads.Load() < 40 {
		t.Error("no attempt was in vain")
	}
	if !member.eligible.Load() {
		t.Error("its member hands leadership on")
	}
}
