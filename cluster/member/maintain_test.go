package member_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/statestore"
)

// What was deleted leaves a large file. The members that neither lead nor have an active store write it
// anew, and the store goes on meanwhile.
func TestAFileThatIsMostlyFreeIsWrittenAnewWhereNoStoreIsActive(t *testing.T) {
	prerequisite.Long(t, "it takes a minute")
	t.Cleanup(member.SetMaintainEvery(200 * time.Millisecond)) // after the members have ended
	options := three(t)
	var logs [3]logbuffer.Buffer
	for i := range options {
		options[i].Logger = logs[i].Logger()
	}
	members := startAll(t, options[:])
	candidate, err := cluster.Open(bounded(t), members[0].Configure(cluster.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	defer candidate.Close()
	journal, err := candidate.Campaign(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Load(bounded(t), func(statestore.Record) error { return nil }); err != nil {
		t.Fatal(err)
	}
	const values = 64
	for _, value := range [][]byte{make([]byte, 1<<20), nil} {
		for i := range values {
			if err := journal.Commit(bounded(t), []statestore.Group{{{ID: []byte(fmt.Sprint("k", i)), Value: value}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 20 { // after so much, the active store compacts
		if err := journal.Commit(bounded(t), []statestore.Group{{{ID: []byte("k"), Value: make([]byte, 1<<20)}}}); err != nil {
			t.Fatal(err)
		}
	}
	size := func(i int) int64 {
		info, err := os.Stat(filepath.Join(options[i].Dir, "etcd", "member", "snap", "db"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	eventually(t, "a member writes its file anew", func() bool {
		if err := journal.Commit(bounded(t), []statestore.Group{{{ID: []byte("k"), Value: []byte(time.Now().String())}}}); err != nil {
			t.Fatal(err)
		}
		small := 0
		for i := range options {
			if size(i) < values<<20/2 {
				small++
			}
		}
		return small > 0
	})
	if size(0) < values<<20/2 {
		t.Error("the member beside the active store has written its file anew")
	}
	if err := journal.Standing(); err != nil {
		t.Error(err)
	}
	await.Done(func() { _ = candidate.Close() })
}
