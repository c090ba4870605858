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

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

func TestAPrefixOfEtcdIsAJournal(t *testing.T) {
	e := sharedEtcd(t)
	statestoretest.RunJournal(t, func(t *testing.T) func() statestore.Journal {
		options := e.candidateOptions(t, "active")
		return func() statestore.Journal { return campaign(t, open(t, options)) }
	})
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
	hold(proxies) // else it learns at once that it is deposed
	e.expireLeaseOf(t)
	second := campaign(t, open(t, e.candidateOptions(t, "b")))
	load(t, second)
	commit(t, second, group("a", "2"))
	if err := first.Standing(); err != nil {
		t.Fatalf("the test needs a process that believes to be active: %v", err)
	}
	failed := make(chan error, 1)
	go func() { failed <- first.Commit(t.Context(), []statestore.Group{group("a", "3")}) }()
	release(proxies)
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
	if _, err := e.client(t).Revoke(bounded(t), clientv3.LeaseID(e.get(t, "alive").Lease)); err != nil {
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

// compact removes all revisions before the present one, and what that leaves free in the files.
func (e *etcd) compact(t *testing.T) {
	t.Helper()
	client := e.client(t)
	now, err := client.Get(bounded(t), "none")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(bounded(t), now.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	for _, url := range e.urls {
		if _, err := client.Defragment(bounded(t), url); err != nil {
			t.Fatal(err)
		}
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
	e.compact(t)
	// Each member that has refused a request raises an alarm, the last one maybe after the first
	// was disarmed.
	await.Until(func() bool { // etcd takes writes again
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

// Pages are read one after the other; the data between them may be compacted, and the files written anew. That does no
// harm to commits either.
func TestLoadReadsManyPagesWhileEtcdIsCompacted(t *testing.T) {
	e := newEtcd(t)
	options := e.candidateOptions(t, "a")
	options.Standing = cluster.MaxStanding // while its file is written anew, a member answers nothing
	candidate := open(t, options)
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
	e.compact(t)
	commit(t, journal, group("last", "1"))
	want["last"] = "1"
	_ = journal.Close()
	next := campaign(t, candidate)
	got := make(map[string]string)
	_, err := next.Load(bounded(t), func(record statestore.Record) error {
		if len(got)%500 == 0 {
			if _, err := e.client(t).Put(bounded(t), "other", ""); err != nil {
				return err
			}
			e.compact(t)
		}
		got[string(record.ID)] = string(record.Value)
		clear(record.ID) // the bytes belong to this function
		clear(record.Value)
		return nil
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%d records were read, want %d: %v", len(got), len(want), err)
	}
}

func TestAnEtcdThatCannotKeepTheStoreIsRefusedAtTheStart(t *testing.T) {
	e := sharedEtcd(t)
	put := func(key, value string) func(t *testing.T, o *cluster.Options) {
		return func(t *testing.T, o *cluster.Options) {
			if _, err := e.client(t).Put(bounded(t), o.Prefix+key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		change func(*testing.T, *cluster.Options)
		says   string
	}{
		"a foreign key":        {put("some", "thing"), "another prefix"},
		"a later format":       {put("format", "tenure store 2"), "another prefix"},
		"records of no format": {put("r/record", "1"), "another prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			options := e.candidateOptions(t, "a")
			test.change(t, &options)
			_, err := cluster.Open(bounded(t), options)
			isForeign := errors.Is(err, cluster.ErrForeignData)
			if err == nil || !strings.Contains(err.Error(), test.says) || isForeign != (test.says == "another prefix") {
				t.Errorf("Open: %v; want %s", err, test.says)
			}
		})
	}
}

// An operator has to find what another program has written, so the text names the key.
func TestWhatAnotherProgramWroteIsNoticed(t *testing.T) {
	e := sharedEtcd(t)
	candidate := open(t, e.candidateOptions(t, "a"))
	journal := campaign(t, candidate)
	write := func(key string) {
		t.Helper()
		if _, err := e.client(t).Put(bounded(t), prefix(t)+key, "x"); err != nil {
			t.Fatal(err)
		}
	}
	write("r/intruder")
	decode := func(record statestore.Record) error { _, err := record.Decode(); return err }
	if _, err := journal.Load(bounded(t), decode); !errors.Is(err, cluster.ErrForeignData) {
		t.Errorf("Load while it was written: %v", err)
	}
	write("sequence")
	if err := journal.Commit(bounded(t), []statestore.Group{group("a", "1")}); !errors.Is(err, cluster.ErrForeignData) {
		t.Errorf("Commit: %v", err)
	}
	_ = journal.Close()
	_, err := campaign(t, candidate).Load(bounded(t), decode)
	if !errors.Is(err, statestore.ErrDamaged) || !strings.Contains(err.Error(), prefix(t)+"r/intruder") {
		t.Errorf("Load: %v", err)
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	valid := func() cluster.Options { return cluster.Options{Endpoints: []string{"http://127.0.0.1:2379"}} }
	for says, change := range map[string]func(*cluster.Options){
		"Endpoints is empty":      func(o *cluster.Options) { o.Endpoints = nil },
		"not the URL of a member": func(o *cluster.Options) { o.Endpoints = []string{"localhost"} },
		"without TLS":             func(o *cluster.Options) { o.TLS = &tls.Config{} },
		"Options.Prefix":          func(o *cluster.Options) { o.Prefix = strings.Repeat("p", 300) },
		"Options.Address":         func(o *cluster.Options) { o.Address = strings.Repeat("p", 3000) },
		"Options.TTL":             func(o *cluster.Options) { o.TTL = 2500 * time.Millisecond },
		"Options.Standing":        func(o *cluster.Options) { o.Standing = time.Millisecond },
	} {
		options := valid()
		change(&options)
		if _, err := cluster.Open(bounded(t), options); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Open: %v; want an error with %q", err, says)
		}
	}
}

func TestOpenWaitsForEtcdAndSaysWhyUntilItsContextEnds(t *testing.T) {
	nothing := etcdtest.Addresses(t, 1)[0]
	var log logbuffer.Buffer
	await.Until(func() bool { // the error says why etcd did not answer
		_, err := cluster.Open(short(t), cluster.Options{Endpoints: []string{"http://" + nothing}, Logger: log.Logger()})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Open: %v", err)
		}
		return strings.Contains(err.Error(), "refused") // on a busy machine it may end before the first attempt
	})
	if got := log.String(); !strings.Contains(got, "waiting for etcd") || !strings.Contains(got, nothing) {
		t.Errorf("the log has\n%s", got)
	}
}

func TestInvariant42ClosingACandidateAtAnyMomentEndsItsCampaign(t *testing.T) {
	e := sharedEtcd(t)
	first := open(t, e.candidateOptions(t, "a"))
	journal := campaign(t, first)
	second := open(t, e.candidateOptions(t, "b"))
	await.Until(func() bool { return second.Active() == "a:8883" })
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
	await.Receive(journal.Done())
	if err := journal.Standing(); err == nil || !errors.Is(journal.Err(), cluster.ErrClosed) {
		t.Errorf("a journal that was closed has the standing %v, and ended with %v", err, journal.Err())
	}
	await.Until(func() bool { // no goroutine of the package is left
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

// ledBy is a member that always leads etcd, and notes what it was told.
type ledBy struct{ eligible, gaveUp atomic.Bool }

func (l *ledBy) Leads() (bool, <-chan struct{}) { return true, nil }

func (l *ledBy) SetEligible(can bool) {
	l.eligible.Store(can)
	if !can {
		l.gaveUp.Store(true)
	}
}

// electionKey returns the election key.
func (e *etcd) electionKey(t *testing.T) *mvccpb.KeyValue {
	t.Helper()
	return e.get(t, "active")
}

// get returns a key below the prefix of the test.
func (e *etcd) get(t *testing.T, key string) *mvccpb.KeyValue {
	t.Helper()
	response, err := e.client(t).Get(bounded(t), prefix(t)+key)
	if err != nil || len(response.Kvs) != 1 {
		t.Fatal(response, err)
	}
	return response.Kvs[0]
}

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
	if value := string(e.electionKey(t).Value); !strings.Contains(value, `"resigned":true`) {
		t.Errorf("the election key has %s", value)
	}
}

// A first proof that comes too late is repeated: to resign, and to win again, would take longer.
func TestAFirstProofThatComesTooLateIsRepeated(t *testing.T) {
	e := sharedEtcd(t)
	options := e.candidateOptions(t, "a")
	var readings atomic.Int64
	options.Clock = func() time.Duration { // for which the process stands still after it has sent the first proof
		now := lease.SystemClock()
		if readings.Add(1) > 2 {
			now += options.Standing
		}
		return now
	}
	journal := campaign(t, open(t, options))
	if key := e.electionKey(t); key.Version != 1 || journal.Err() != nil {
		t.Errorf("the key was written %d times, want once; %v", key.Version, journal.Err())
	}
}

// A process that has given leadership up and then wins all the same must not be deposed for that.
func TestAProcessThatWinsAfterVainAttemptsKeepsLeadership(t *testing.T) {
	t.Parallel() // it mostly waits
	e := sharedEtcd(t)
	options := e.candidateOptions(t, "a")
	member := new(ledBy)
	options.Member, options.TTL, options.Standing = member, 2*time.Second, time.Second
	var jumps atomic.Int64
	options.Clock = func() time.Duration { // the first proofs come too late
		if !member.gaveUp.Load() {
			jumps.Add(1)
		}
		return lease.SystemClock() + time.Duration(jumps.Load())*time.Minute
	}
	journal := campaign(t, open(t, options))
	defer journal.Close()
	if !member.gaveUp.Load() || !member.eligible.Load() {
		t.Errorf("its member handed leadership on: %t; it may lead again: %t", member.gaveUp.Load(), member.eligible.Load())
	}
}
