package cluster

import (
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// claim is what a process says to etcd about its ballot, and what the answers mean. It is a value without
// clock, connection, goroutine or lock.
type claim struct {
	keys     keys
	ballot   ballot           // the value of the election key
	lease    clientv3.LeaseID // of the key that says that this process lives; 0 with Options.Member
	won      int64            // the revision of the election key; it changes when another process takes it
	sequence uint64           // of the last transaction that etcd has applied
}

// takes is the transaction that takes the election key if it still is as it was seen.
func (c *claim) takes(seen observation) clientv3.Op {
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(c.keys.active), "=", seen.revision)}
	operations := []clientv3.Op{
		clientv3.OpPut(c.keys.active, c.ballot.encode()),
		clientv3.OpPut(c.keys.format, format),
		clientv3.OpPut(c.keys.sequence, c.number(0)),
	}
	if !seen.used { // so it does not wait, and one that comes late must not take a key that was deleted by hand meanwhile
		conditions = append(conditions, clientv3.Compare(clientv3.Version(c.keys.format), "=", 0))
	}
	if c.lease != 0 {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(c.keys.alive), "=", seen.aliveRevision))
		operations = append(operations, clientv3.OpPut(c.keys.alive, c.ballot.Term, clientv3.WithLease(c.lease)))
	}
	return clientv3.OpTxn(conditions, operations, []clientv3.Op{clientv3.OpGet(c.keys.active)})
}

// took returns the revision at which takes, or an earlier attempt of it, took the key; 0: another process
// was first.
func (c *claim) took(response *clientv3.TxnResponse) (won int64) {
	if response.Succeeded {
		return response.Header.Revision
	}
	for _, kv := range response.Responses[0].GetResponseRange().GetKvs() {
		if decodeBallot(kv.Value).Term == c.ballot.Term {
			won = kv.ModRevision
		}
	}
	return won
}

// proves returns nil if a read of the election key shows that no other process has taken it.
func (c *claim) proves(response *clientv3.GetResponse) error {
	if len(response.Kvs) == 0 || response.Kvs[0].ModRevision != c.won {
		return ErrDeposed
	}
	return nil
}

// isActive is the condition that no other process has taken the election key.
func (c *claim) isActive() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(c.keys.active), "=", c.won)
}

// page reads at most limit records from one on.
func (c *claim) page(from string, limit int) clientv3.Op {
	page := clientv3.OpGet(from, clientv3.WithRange(c.keys.recordsEnd), clientv3.WithLimit(int64(limit)))
	return clientv3.OpTxn([]clientv3.Cmp{c.isActive()}, []clientv3.Op{page}, nil)
}

// writes writes the records of a transaction, with the next sequence number.
func (c *claim) writes(t *transaction) clientv3.Op {
	conditions := []clientv3.Cmp{
		c.isActive(),
		clientv3.Compare(clientv3.Value(c.keys.sequence), "=", c.number(c.sequence)),
	}
	operations := make([]clientv3.Op, 0, len(t.records)+ownOperations)
	operations = append(operations, clientv3.OpPut(c.keys.sequence, c.number(c.sequence+1)))
	for _, record := range t.records {
		key := c.keys.records + string(record.ID)
		if record.Value == nil {
			operations = append(operations, clientv3.OpDelete(key))
		} else {
			operations = append(operations, clientv3.OpPut(key, string(record.Value)))
		}
	}
	return clientv3.OpTxn(conditions, operations,
		[]clientv3.Op{clientv3.OpGet(c.keys.active, clientv3.WithKeysOnly()), clientv3.OpGet(c.keys.sequence)})
}

// wrote returns nil if writes, or an earlier attempt of it, was applied.
func (c *claim) wrote(response *clientv3.TxnResponse) error {
	if response.Succeeded {
		return nil
	}
	active := response.Responses[0].GetResponseRange().GetKvs()
	sequence := response.Responses[1].GetResponseRange().GetKvs()
	switch {
	case len(active) == 0 || active[0].ModRevision != c.won:
		return final{ErrDeposed}
	case len(sequence) == 1 && string(sequence[0].Value) == c.number(c.sequence+1):
		return nil
	}
	return final{written([]byte(c.keys.sequence))}
}

// resigns says in the election key that this process answers nothing any more.
func (c *claim) resigns() clientv3.Op {
	return clientv3.OpTxn([]clientv3.Cmp{c.isActive()},
		[]clientv3.Op{clientv3.OpPut(c.keys.active, c.ballot.encode()), clientv3.OpDelete(c.keys.alive)}, nil)
}

// number is the value of keys.sequence after transaction n of this term.
func (c *claim) number(n uint64) string { return c.ballot.Term + "/" + strconv.FormatUint(n, 10) }

// observed is what an answer says of the election.
func (k *keys) observed(response *clientv3.GetResponse) observation {
	seen := observation{known: true}
	for _, kv := range response.Kvs {
		switch string(kv.Key) {
		case k.active:
			seen.revision, seen.ballot = kv.ModRevision, decodeBallot(kv.Value)
		case k.alive:
			seen.alive, seen.aliveRevision = true, kv.ModRevision
		case k.format:
			seen.used = true
		}
	}
	return seen
}
