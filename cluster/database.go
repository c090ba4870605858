package cluster

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/statestore"
)

// database is how much space etcd's database has for the records of a journal.
type database struct {
	full     atomic.Bool  // see Full
	old      atomic.Int64 // bytes that were written since the last compaction
	revision atomic.Int64 // of the last transaction
}

const (
	// oldBytes is how much may be written before the values that it replaced are compacted.
	oldBytes = 16 << 20
	// measurePause is the pause between two looks at the size of the database: a burst of writes must not take
	// all the space between them.
	measurePause = time.Second / 4
	// databaseTimeout bounds a request. etcd removes old values after its answer.
	databaseTimeout = 10 * time.Second
)

// Full implements [statestore.Bounded]: the database is larger than Options.MaxDatabase.
func (j *Journal) Full() bool { return j.database.full.Load() }

var _ statestore.Bounded = (*Journal)(nil)

// wrote notes a transaction, at a revision.
func (d *database) wrote(size int, revision int64) {
	d.old.Add(int64(size))
	d.revision.Store(revision)
}

// watchDatabase looks at the size of the database, and compacts what is old, until the standing ends.
func (j *Journal) watchDatabase() {
	level := ample
	for sleep.For(j.life, measurePause) {
		level = j.measure(level)
		j.database.full.Store(level == full)
		if old := j.database.old.Load(); j.options.Member != nil && (old >= oldBytes || level != ample && old > 0) {
			j.compact(old)
		}
		if level == full {
			j.touch()
		}
	}
}

// How much of the space for the database is used, as the log says it.
const (
	ample      = "the database has space again"
	nearlyFull = "the database is nearly full; then the store refuses what needs more space: delete keys, or allow a " +
		"larger one"
	full = "the database is full, so the store refuses what needs more space: delete keys, or allow a larger one"
)

// measure asks how large the database is. What is free in its file does not count: etcd uses that first.
func (j *Journal) measure(before string) (now string) {
	ctx, cancel := context.WithTimeout(j.life, databaseTimeout)
	defer cancel()
	status, err := do(ctx, j.endpoints, j.options.patience(),
		func(ctx context.Context, client *clientv3.Client) (*pb.StatusResponse, error) {
			status, err := pb.NewMaintenanceClient(client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
			return status, rpctypes.Error(err)
		})
	if err != nil {
		return before // the proofs of the standing say what is wrong with etcd
	}
	limit := cmp.Or(j.options.MaxDatabase, status.DbSizeQuota/5*4)
	used := status.DbSizeInUse
	now = ample
	switch {
	case limit <= 0:
	case used >= limit, before == full && used >= limit/16*15: // not in and out with each write
		now = full
	case used >= limit/5*4:
		now = nearlyFull
	}
	if now != before {
		j.options.Logger.Warn(now, slog.Int64("bytes", used), slog.Int64("limit", limit))
	}
	return now
}

// compact removes the values that were replaced before the last transaction. old is how much was
// written by then.
func (j *Journal) compact(old int64) {
	ctx, cancel := context.WithTimeout(j.life, databaseTimeout)
	defer cancel()
	client, _ := j.endpoints.at(0)
	if _, err := client.Compact(ctx, j.database.revision.Load()); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		if j.life.Err() == nil {
			j.options.Logger.Warn("compact etcd: tried again later", slog.Any("reason", err))
		}
		return
	}
	j.database.old.Add(-old)
}

// touch writes what is there already. etcd v3.6.14 counts what a compaction has freed when it writes the
// next time, and a store that refuses everything would not write.
func (j *Journal) touch() {
	ctx, cancel := context.WithTimeout(j.life, databaseTimeout)
	defer cancel()
	client, _ := j.endpoints.at(0)
	_, _ = client.Txn(ctx).If(j.isActive()).
		Then(clientv3.OpPut(j.keys.format, format)).Commit() // the next look comes soon
}
