package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/statestore"
)

// Journal keeps the records of a store in etcd while this process is the active one. It
// implements [statestore.Journal]. [Candidate.Campaign] returns it.
type Journal struct {
	*standing
	candidate *Candidate
	options   *Options
	endpoints *endpoints
	term

	database database

	began    time.Duration // when the election was won
	warnings loglimit.Limiter
	closing  sync.Once
	closed   error // why the resignation failed; after closing
	stop     context.CancelFunc
	tasks    sync.WaitGroup
}

// keys are the keys of a store in etcd.
type keys struct{ format, active, alive, sequence, records, recordsEnd string }

func newKeys(prefix string) keys {
	return keys{prefix + "format", prefix + "active", prefix + "alive", prefix + "sequence",
		prefix + "r/", clientv3.GetPrefixRangeEnd(prefix + "r/")}
}

// election returns the range of the keys active, alive and format.
func (k *keys) election() (from string, to clientv3.OpOption) {
	return k.active, clientv3.WithRange(k.records)
}

// format is the value of keys.format. Later releases that write other keys have another one.
const format = "tenure store 1"

// start begins to prove the standing.
func (j *Journal) start() {
	ctx, stop := context.WithCancel(context.Background())
	j.stop = stop
	if j.lease != 0 {
		j.tasks.Go(func() { j.keepAlive(ctx) })
	}
	j.tasks.Go(func() {
		j.keep(ctx, j.attemptProof)
		err := j.why()
		j.candidate.lasted(j.clock()-j.began, err)
		j.candidate.setEligible(false) // until the next campaign; before the log, which may block
		if err != nil && !errors.Is(err, ErrClosed) {
			j.options.Logger.Error("this process is no longer the active store", slog.Any("reason", err))
		}
	})
}

// warnIfSlow logs that a proof took more than half of what it is valid for, with growing pauses. It does not wait for
// the log, which may block.
func (j *Journal) warnIfSlow(took time.Duration) {
	if took <= j.options.Standing/2 || !j.warnings.Due("", time.Now()) {
		return
	}
	j.tasks.Go(func() {
		j.options.Logger.Warn("etcd answers slowly: if a proof that this process is the active store takes as long as it "+
			"is valid, another process takes over; look at the network between the members and at their load, or raise "+
			"--election-timeout (--etcd-ttl)",
			slog.Duration("took", took), slog.Duration("valid", j.options.Standing))
	})
}

// attemptProof is one proof of the standing: see "What is guaranteed" in the package comment.
func (j *Journal) attemptProof(ctx context.Context, n uint32) (p proof) {
	attempt, cancel := context.WithTimeout(ctx, j.options.Standing)
	defer cancel()
	client, index := j.endpoints.at(n)
	p = proof{began: j.clock()}
	p.err = j.proveAt(attempt, client)
	switch {
	case p.err == nil:
		j.endpoints.answered(index)
		j.warnIfSlow(j.clock() - p.began)
	case ctx.Err() == nil:
		j.endpoints.failed(index)
	}
	return p
}

func (j *Journal) proveAt(ctx context.Context, client *clientv3.Client) error {
	response, err := client.Get(ctx, j.keys.active, clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	return j.proves(response)
}

// Done is closed when this process is no longer the active store, or Close was called: it must
// not serve any more.
func (j *Journal) Done() <-chan struct{} { return j.life.Done() }

// Err returns nil while Done is not closed, and then why it was: see "How a journal ends" in
// the package comment.
func (j *Journal) Err() error { return j.why() }

// Standing implements [statestore.Journal]. Its error ends the journal: Done is closed, and Err
// returns the same cause.
func (j *Journal) Standing() error { return j.check() }

// living returns a context that ends with ctx and with the standing.
func (j *Journal) living(ctx context.Context) (context.Context, context.CancelFunc) {
	return joined(ctx, j.life)
}

// joined returns a context that ends with both, with the cause of the first.
func joined(ctx, other context.Context) (context.Context, context.CancelFunc) {
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return joined, func() { stop(); cancel(nil) }
}

const (
	// etcd counts for each page all records that follow, so pages must not be small.
	firstPageRecords, maxPageRecords = 64, 50_000
	// pageBytes is the size that a page should have.
	pageBytes = 8 << 20
	// pagePatience is longer than that of other requests, because a page takes longer to arrive.
	pagePatience = 4 * time.Second
)

// Load implements [statestore.Journal]. It reads pages of about 8 MiB. Only the active process
// writes records and each page is read only if this process still is that one, so all pages
// are of one state, though etcd may be compacted meanwhile. It returns once the process before
// answers nothing any more, and says for how long that is so already.
func (j *Journal) Load(ctx context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	ctx, cancel := j.living(ctx)
	defer cancel()
	j.tasks.Go(j.watchDatabase)
	if err := j.load(ctx, each); err != nil {
		return former, err
	}
	former.Silent = j.claim.Silent
	former.Idle, err = j.wait(ctx)
	return former, err
}

func (j *Journal) load(ctx context.Context, each func(statestore.Record) error) error {
	from, limit := j.keys.records, firstPageRecords
	for {
		page, err := j.loadPage(ctx, from, limit)
		if tooLarge(err) && limit > 1 {
			limit = max(limit/8, 1)
			continue
		}
		if err != nil {
			return fmt.Errorf("read the records of %q: %w", j.options.Prefix, err)
		}
		size := 1
		if len(page.Kvs) > 0 { // each may write over the bytes
			from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
		}
		for _, kv := range page.Kvs {
			if kv.ModRevision > j.revision {
				return fmt.Errorf("read the records of %q: %w", j.options.Prefix, written(kv.Key))
			}
			record := statestore.Record{ID: kv.Key[len(j.keys.records):], Value: kv.Value}
			if record.Value == nil {
				record.Value = []byte{} // nil means that the record is gone
			}
			switch err := each(record); {
			case errors.Is(err, statestore.ErrDamaged):
				return fmt.Errorf("the key %q of etcd: %w; if another program has written it, stop that program and delete the key",
					kv.Key, err)
			case err != nil:
				return err
			}
			size += len(kv.Key) + len(kv.Value)
		}
		if !page.More || len(page.Kvs) == 0 {
			return nil
		}
		fits := int64(pageBytes) * int64(len(page.Kvs)) / int64(size)
		limit = max(1, min(int(min(fits, maxPageRecords)), 8*limit))
	}
}

func (j *Journal) loadPage(ctx context.Context, from string, limit int) (*clientv3.GetResponse, error) {
	response, err := j.transact(ctx, pagePatience, j.page(from, limit))
	switch {
	case err != nil:
		return nil, err
	case !response.Succeeded:
		j.over(ErrDeposed)
		return nil, ErrDeposed
	}
	return (*clientv3.GetResponse)(response.Responses[0].GetResponseRange()), nil
}

// Commit implements [statestore.Journal]. A batch that is larger than a transaction of etcd
// becomes several, between groups. The error is the cause with which the journal ended, or
// says what etcd refused; the journal has ended then, and the outcome is unknown.
func (j *Journal) Commit(ctx context.Context, batch []statestore.Group) error {
	ctx, cancel := j.living(ctx)
	defer cancel()
	for t, err := range split(batch, j.keys.records, j.options.operations(), maxTransactionBytes) {
		if err == nil {
			err = j.commit(ctx, t)
		}
		if err != nil {
			j.over(err)
			return err
		}
	}
	// The batch is durable. If this process was frozen meanwhile, it still answers nothing.
	if err := j.lasts(); err != nil {
		return fmt.Errorf("the batch is durable, but %w", err)
	}
	return nil
}

// commit repeats one transaction until its outcome is known. It compares the sequence number,
// so it is applied once at most, and an attempt that etcd gets late is not applied after a
// later transaction.
func (j *Journal) commit(ctx context.Context, t *transaction) error {
	// One that is large needs longer to arrive.
	longer := time.Duration(t.size) * time.Second / slowNetwork
	ctx, cancel := context.WithTimeoutCause(ctx, j.options.commitLimit()+longer, ErrUnconfirmed)
	defer cancel()
	response, err := j.transact(ctx, j.options.patience()+longer, j.writes(t))
	if err == nil {
		err = j.wrote(response)
	}
	if err != nil {
		if over := j.lasts(); over != nil {
			return over // a process that was frozen finds the limit of the commit passed as well
		}
		return fmt.Errorf("etcd: %w", err)
	}
	j.sequence++
	j.database.wrote(t.size, response.Header.Revision)
	return nil
}

// written is the error for a key that only the active process writes, and that has changed.
func written(key []byte) error {
	return fmt.Errorf("another program has written the key %q of etcd; %w: stop that program, because only the "+
		"processes of this store may write below its prefix",
		key, ErrForeignData)
}

const (
	// minCommitLimit is the least that Options.commitLimit can be.
	minCommitLimit = 5 * time.Second
	// slowNetwork is the rate of the slowest network that is good enough, in bytes a second.
	slowNetwork = 4 << 20
)

// Close implements [statestore.Journal]. It resigns, so that another process takes over at
// once. If etcd cannot be reached within resignLimit, the error says so, and another process
// takes over as after a crash. Close may be called several times.
func (j *Journal) Close() error {
	j.closing.Do(func() {
		j.over(ErrClosed) // before etcd knows
		j.stop()
		j.tasks.Wait()
		j.claim = j.claim.resign(j.span.Load().left(j.clock()))
		ctx, cancel := context.WithTimeoutCause(context.Background(), resignLimit, errors.New("etcd did not answer in time"))
		defer cancel()
		if _, err := j.transact(ctx, j.options.patience(), j.resigns()); err != nil {
			j.closed = fmt.Errorf("resign: %w; another process takes over as after a crash", err)
		}
		j.candidate.resigned(j)
	})
	return j.closed
}

const resignLimit = 2 * time.Second
