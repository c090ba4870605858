package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/statestore"
)

// limit is how long a test waits for what must happen.
const limit = 60 * time.Second

// etcd is a cluster of three members in this process.
type etcd struct {
	members [3]*member.Member
	options [3]member.Options
	urls    []string // of the members' client ports
}

// shared is the etcd of the tests that do it no harm. TestMain stops it.
var shared struct {
	sync.Once
	etcd *etcd
	stop func()
}

func TestMain(m *testing.M) {
	code := testprocess.Run(m)
	if shared.stop != nil {
		shared.stop()
	}
	os.Exit(code)
}

func sharedEtcd(t testing.TB) *etcd {
	t.Helper()
	shared.Do(func() {
		var cleanups []func()
		shared.stop = func() {
			for _, f := range slices.Backward(cleanups) {
				f()
			}
		}
		shared.etcd = startEtcdWith(t, func(f func()) { cleanups = append(cleanups, f) }, func(*member.Options) {})
	})
	if shared.etcd == nil {
		t.Fatal("no etcd")
	}
	return shared.etcd
}

// newEtcd is an etcd for one test.
func newEtcd(t testing.TB) *etcd {
	t.Helper()
	return startEtcdWith(t, t.Cleanup, func(*member.Options) {})
}

// startEtcdWith changes the options of each member.
func startEtcdWith(t testing.TB, cleanup func(func()), change func(*member.Options)) *etcd {
	t.Helper()
	e := &etcd{options: etcdtest.Members(t, cleanup)}
	for i := range e.members {
		e.urls = append(e.urls, e.options[i].ClientURL)
		e.options[i].Election = 2 * time.Second // the machine of the tests is busy
		change(&e.options[i])
		e.start(t, i)
	}
	cleanup(func() {
		for _, m := range e.members { // at the same time, the leader would wait 7 s for another
			m.Close()
		}
	})
	return e
}

func (e *etcd) start(t testing.TB, i int) {
	t.Helper()
	m, err := member.Start(e.options[i])
	if err != nil {
		t.Fatal(err)
	}
	e.members[i] = m
}

// client returns etcd's own client, of all members.
func (e *etcd) client(t testing.TB) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: e.urls, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// bounded returns a context that ends with the test or its patience.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// short returns a context for what is tried again until it ends.
func short(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// candidateOptions returns the options of a candidate on e; the prefix is the test's own.
func (e *etcd) candidateOptions(t testing.TB, name string) cluster.Options {
	return cluster.Options{
		Endpoints: e.urls, Prefix: prefix(t), Address: name + ":8883",
		TTL:      20 * time.Second, // tests in which a lease expires have a shorter one
		Standing: 2 * time.Second,
		Logger:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// prefix is the prefix of a test. A test that is repeated gets another.
func prefix(t testing.TB) string { return fmt.Sprintf("%s/%p/", t.Name(), t) }

func open(t testing.TB, options cluster.Options) *cluster.Candidate {
	t.Helper()
	candidate, err := cluster.Open(bounded(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = candidate.Close() })
	return candidate
}

func campaign(t testing.TB, candidate *cluster.Candidate) *cluster.Journal {
	t.Helper()
	journal, err := candidate.Campaign(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return journal
}

func load(t testing.TB, journal statestore.Journal) map[string]string {
	t.Helper()
	records := make(map[string]string)
	_, err := journal.Load(bounded(t), func(record statestore.Record) error {
		if _, twice := records[string(record.ID)]; twice || record.Value == nil {
			t.Errorf("record %q was read twice, or is gone", record.ID)
		}
		records[string(record.ID)] = string(record.Value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func group(pairs ...string) (g statestore.Group) {
	for i := 0; i < len(pairs); i += 2 {
		record := statestore.Record{ID: []byte(pairs[i])}
		if pairs[i+1] != gone {
			record.Value = []byte(pairs[i+1])
		}
		g = append(g, record)
	}
	return g
}

// gone is the value with which group removes a record.
const gone = "\x00gone"

func commit(t testing.TB, journal statestore.Journal, batch ...statestore.Group) {
	t.Helper()
	if err := journal.Commit(bounded(t), batch); err != nil {
		t.Fatal(err)
	}
}
