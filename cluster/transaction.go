package cluster

import (
	"fmt"
	"iter"

	"github.com/tenurelock/tenure/statestore"
)

// transaction is the records of some groups, of each identifier the last one.
type transaction struct {
	records []statestore.Record
	index   map[string]int // in records
	size    int            // at most, as etcd counts it
}

const (
	// transactionBytes and operationBytes are at least what etcd adds to a transaction and to
	// each operation: message headers, lengths, the comparisons, the sequence number.
	transactionBytes = 2 << 10
	operationBytes   = 48
	// ownOperations are those besides records: the sequence number.
	ownOperations = 1
)

// split divides a batch into transactions of at most so many operations and bytes, in order and
// between groups only. A group that fits into none is an error; the transactions before it are returned.
func split(batch []statestore.Group, prefix string, operations, bytes int) iter.Seq2[*transaction, error] {
	return func(yield func(*transaction, error) bool) {
		t := newTransaction()
		for _, group := range batch {
			if !t.fits(group, len(prefix), operations, bytes) {
				if len(t.records) > 0 && !yield(t, nil) {
					return
				}
				t = newTransaction()
			}
			if !t.fits(group, len(prefix), operations, bytes) {
				yield(nil, fmt.Errorf("what one command changed does not fit into a transaction of %d operations and %d bytes; "+
					"lower MaxPacketSize of the server (--max-packet-size)", operations, bytes))
				return
			}
			t.add(group, len(prefix))
		}
		if len(t.records) > 0 {
			yield(t, nil)
		}
	}
}

func newTransaction() *transaction {
	return &transaction{index: make(map[string]int), size: transactionBytes}
}

// fits reports whether t has space for a group. It counts each record as if its identifier were new.
func (t *transaction) fits(group statestore.Group, prefix, operations, bytes int) bool {
	size := t.size
	for _, record := range group {
		size += sizeOf(record, prefix)
	}
	return len(t.records)+len(group)+ownOperations <= operations && size <= bytes
}

// add adds a group. If an identifier comes again, the later record replaces the earlier one:
// etcd refuses a transaction that writes a key twice, and all of it happens at once.
func (t *transaction) add(group statestore.Group, prefix int) {
	for _, record := range group {
		t.size += sizeOf(record, prefix)
		if i, again := t.index[string(record.ID)]; again {
			t.size -= sizeOf(t.records[i], prefix)
			t.records[i] = record
			continue
		}
		t.index[string(record.ID)] = len(t.records)
		t.records = append(t.records, record)
	}
}

func sizeOf(record statestore.Record, prefix int) int {
	return operationBytes + prefix + len(record.ID) + len(record.Value)
}
