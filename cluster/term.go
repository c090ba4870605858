package cluster

import (
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// term is the time of one claim: what a process asks of etcd from taking the election key to resigning, and
// what the answers mean. It is a value without clock, connection, goroutine or lock.
type term struct {
	keys     keys
	claim    claim            // the value of the election key
	lease    clientv3.LeaseID // of the key that says that this process lives; 0 with Options.Member
	revision int64            // the revision of the election key; it changes when another process takes it
	sequence uint64           // of the last transaction that etcd has applied
}

// takes is the transaction that takes the election key if it still is as it was seen.
func (t *term) takes(seen observation) clientv3.Op {
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(t.keys.active), "=", seen.revision)}
	operations := []clientv3.Op{
		clientv3.OpPut(t.keys.active, t.claim.encode()),
		clientv3.OpPut(t.keys.format, format),
		clientv3.OpPut(t.keys.sequence, t.number(0)),
	}
	if !seen.used { // so it does not wait, and one that comes late must not take a key that was deleted by hand meanwhile
		conditions = append(conditions, clientv3.Compare(clientv3.Version(t.keys.format), "=", 0))
	}
	if t.lease != 0 {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(t.keys.alive), "=", seen.aliveRevision))
		operations = append(operations, clientv3.OpPut(t.keys.alive, t.claim.Term, clientv3.WithLease(t.lease)))
	}
	return clientv3.OpTxn(conditions, operations, []clientv3.Op{clientv3.OpGet(t.keys.active)})
}

// took returns the revision at which takes, or an earlier attempt of it, took the key; 0: another process
// was first.
func (t *term) took(response *clientv3.TxnResponse) (won int64) {
	if response.Succeeded {
		return response.Header.Revision
	}
	for _, kv := range response.Responses[0].GetResponseRange().GetKvs() {
		if decodeClaim(kv.Value).Term == t.claim.Term {
			won = kv.ModRevision
		}
	}
	return won
}

// proves returns nil if a read of the election key shows that no other process has taken it.
func (t *term) proves(response *clientv3.GetResponse) error {
	if len(response.Kvs) == 0 || response.Kvs[0].ModRevision != t.revision {
		return ErrDeposed
	}
	return nil
}

// isActive is the condition that no other process has taken the election key.
func (t *term) isActive() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(t.keys.active), "=", t.revision)
}

// page reads at most limit records from one on.
func (t *term) page(from string, limit int) clientv3.Op {
	page := clientv3.OpGet(from, clientv3.WithRange(t.keys.recordsEnd), clientv3.WithLimit(int64(limit)))
	return clientv3.OpTxn([]clientv3.Cmp{t.isActive()}, []clientv3.Op{page}, nil)
}

// writes writes the records of a transaction, with the next sequence number.
func (t *term) writes(batch *transaction) clientv3.Op {
	conditions := []clientv3.Cmp{
		t.isActive(),
		clientv3.Compare(clientv3.Value(t.keys.sequence), "=", t.number(t.sequence)),
	}
	operations := make([]clientv3.Op, 0, len(batch.records)+ownOperations)
	operations = append(operations, clientv3.OpPut(t.keys.sequence, t.number(t.sequence+1)))
	for _, record := range batch.records {
		key := t.keys.records + string(record.ID)
		if record.Value == nil {
			operations = append(operations, clientv3.OpDelete(key))
		} else {
			operations = append(operations, clientv3.OpPut(key, string(record.Value)))
		}
	}
	return clientv3.OpTxn(conditions, operations,
		[]clientv3.Op{clientv3.OpGet(t.keys.active, clientv3.WithKeysOnly()), clientv3.OpGet(t.keys.sequence)})
}

// wrote returns nil if writes, or an earlier attempt of it, was applied.
func (t *term) wrote(response *clientv3.TxnResponse) error {
	if response.Succeeded {
		return nil
	}
	active := response.Responses[0].GetResponseRange().GetKvs()
	sequence := response.Responses[1].GetResponseRange().GetKvs()
	switch {
	case len(active) == 0 || active[0].ModRevision != t.revision:
		return ErrDeposed
	case len(sequence) == 1 && string(sequence[0].Value) == t.number(t.sequence+1):
		return nil
	}
	return written([]byte(t.keys.sequence))
}

// resigns says in the election key that this process answers nothing any more.
func (t *term) resigns() clientv3.Op {
	return clientv3.OpTxn([]clientv3.Cmp{t.isActive()},
		[]clientv3.Op{clientv3.OpPut(t.keys.active, t.claim.encode()), clientv3.OpDelete(t.keys.alive)}, nil)
}

// number is the value of keys.sequence after transaction n of this term.
func (t *term) number(n uint64) string { return t.claim.Term + "/" + strconv.FormatUint(n, 10) }

// observed is what an answer says of the election.
func (k *keys) observed(response *clientv3.GetResponse) observation {
	seen := observation{known: true}
	for _, kv := range response.Kvs {
		switch string(kv.Key) {
		case k.active:
			seen.revision, seen.claim = kv.ModRevision, decodeClaim(kv.Value)
		case k.alive:
			seen.alive, seen.aliveRevision = true, kv.ModRevision
		case k.format:
			seen.used = true
		}
	}
	return seen
}
