package cluster

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tenurelock/tenure/statestore"
)

// randomBatch returns groups with few different identifiers, so that many come again.
func randomBatch(random *rand.Rand) (batch []statestore.Group) {
	for range random.IntN(200) {
		var group statestore.Group
		for range 1 + random.IntN(statestore.MaxGroup) {
			record := statestore.Record{ID: []byte{byte('a' + random.IntN(26)), byte('a' + random.IntN(26))}}
			switch random.IntN(10) {
			case 0:
			case 1:
				record.Value = bytes.Repeat([]byte{1}, random.IntN(1000))
			default:
				record.Value = []byte{byte(random.IntN(256))}
			}
			group = append(group, record)
		}
		batch = append(batch, group)
	}
	return batch
}

// state is what the records of groups or transactions make of a journal.
type state map[string]string

func (s state) apply(records []statestore.Record) {
	for _, record := range records {
		if record.Value == nil {
			delete(s, string(record.ID))
		} else {
			s[string(record.ID)] = string(record.Value)
		}
	}
}

func TestInvariant37EachTransactionEndsBetweenGroupsAndFitsIntoEtcd(t *testing.T) {
	const prefix = "tenure/r/"
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 0))
		batch := randomBatch(random)
		maxOperations := statestore.MaxGroup + 1 + random.IntN(200)
		maxBytes := 80_000 + random.IntN(100_000)
		want, got, next := state{}, state{}, 0
		for transaction, err := range split(batch, prefix, maxOperations, maxBytes) {
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if n := len(transaction.records) + ownOperations; n > maxOperations {
				t.Fatalf("seed %d: a transaction has %d operations, at most %d are allowed", seed, n, maxOperations)
			}
			if size := asEtcdCounts(prefix, transaction); size > maxBytes || size > transaction.size {
				t.Fatalf("seed %d: a transaction has %d bytes and was taken for %d; at most %d are allowed", seed, size, transaction.size, maxBytes)
			}
			ids := make(map[string]bool)
			for _, record := range transaction.records {
				if ids[string(record.ID)] {
					t.Fatalf("seed %d: a transaction writes %q twice", seed, record.ID)
				}
				ids[string(record.ID)] = true
			}
			got.apply(transaction.records)
			// Some number of whole groups gives the same state.
			same := false
			for ; next < len(batch) && !same; next++ {
				want.apply(batch[next])
				same = maps.Equal(want, got)
			}
			for ; same && next < len(batch); next++ { // groups that changed nothing, or changed it back
				ahead := maps.Clone(want)
				ahead.apply(batch[next])
				if !maps.Equal(ahead, got) {
					break
				}
				want = ahead
			}
			if !same {
				t.Fatalf("seed %d: a transaction ends inside a group", seed)
			}
		}
		if next != len(batch) {
			t.Fatalf("seed %d: %d of %d groups are in transactions", seed, next, len(batch))
		}
	}
}

// asEtcdCounts returns the size of the request that commit makes of t, as etcd puts it into its log.
func asEtcdCounts(prefix string, t *transaction) int {
	number := []byte(strings.Repeat("n", 26) + "/18446744073709551615")
	request := &pb.TxnRequest{
		Compare: []*pb.Compare{
			{Target: pb.Compare_MOD, Key: []byte(prefix + "active"), TargetUnion: &pb.Compare_ModRevision{ModRevision: 1 << 62}},
			{Target: pb.Compare_VALUE, Key: []byte(prefix + "sequence"), TargetUnion: &pb.Compare_Value{Value: number}},
		},
		Success: []*pb.RequestOp{put(prefix+"sequence", number)},
		Failure: []*pb.RequestOp{
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(prefix + "active"), KeysOnly: true}}},
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(prefix + "sequence")}}},
		},
	}
	for _, record := range t.records {
		key := prefix + string(record.ID)
		if record.Value != nil {
			request.Success = append(request.Success, put(key, record.Value))
			continue
		}
		deletion := &pb.DeleteRangeRequest{Key: []byte(key)}
		request.Success = append(request.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: deletion}})
	}
	raft := &pb.InternalRaftRequest{Header: &pb.RequestHeader{ID: 1 << 63, Username: strings.Repeat("u", 64), AuthRevision: 1 << 62}, Txn: request}
	return raft.Size()
}

func put(key string, value []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: value}}}
}

func TestAGroupThatFitsIntoNoTransactionIsAnErrorAfterThoseBeforeIt(t *testing.T) {
	small := statestore.Group{{ID: []byte("a"), Value: []byte("1")}}
	large := statestore.Group{{ID: []byte("b"), Value: make([]byte, 10_000)}}
	count, failed := 0, false
	for transaction, err := range split([]statestore.Group{small, large, small}, "p/", 65, 10_000) {
		if err != nil {
			failed = true
			if !strings.Contains(err.Error(), "MaxPacketSize") {
				t.Errorf("%v does not say what to change", err)
			}
			continue
		}
		count += len(transaction.records)
	}
	if !failed || count != 1 {
		t.Errorf("%d records are in transactions, want 1; failed: %v", count, failed)
	}
}

// The largest command of a server with MaxPacketSize fits.
func TestWhatAPacketOfTheLargestSizeChangesFitsIntoATransaction(t *testing.T) {
	group := statestore.Group{{ID: make([]byte, statestore.MaxID), Value: make([]byte, MaxPacketSize)}}
	for i := range statestore.MaxGroup - 1 {
		group = append(group, statestore.Record{ID: append(make([]byte, statestore.MaxID), byte(i)), Value: make([]byte, 300)})
	}
	for _, err := range split([]statestore.Group{group}, strings.Repeat("p", maxPrefix), defaultOperations, maxTransactionBytes) {
		if err != nil {
			t.Error(err)
		}
	}
}
