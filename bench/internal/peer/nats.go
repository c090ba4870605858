package peer

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func natsPeer() *Peer {
	return &Peer{
		Name: "NATS KV",
		About: "A bucket in memory with a TTL, one connection. NATS has no locks: a name is created and deleted, and a " +
			"waiter watches it. A renewal and the guarded write are an update with the last revision, which only a later " +
			"write to the same key makes stale.",
		Serve: func(ctx context.Context, h *Host) (*Server, error) { return h.child(ctx, "nats") },
		Lock:  dialNATS,
	}
}

// serveNATS runs a server with JetStream:
// https://docs.nats.io/running-a-nats-service/configuration/resource_management
func serveNATS(ctx context.Context, dir string, said func(address string)) error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: dir, NoSigs: true})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(startPatience) {
		return errors.New("the NATS server does not accept connections")
	}
	said(s.ClientURL())
	<-ctx.Done()
	return nil
}

// natsLocker is a client with two buckets. Creating, updating with a revision, and watching are
// from https://docs.nats.io/nats-concepts/jetstream/key-value-store
type natsLocker struct {
	conn  *nats.Conn
	locks jetstream.KeyValue // the names: keys that expire
	data  jetstream.KeyValue // what guarded writes change
	id    []byte
}

// natsHeld is a name with the revision of its key.
type natsHeld struct {
	name     string
	revision uint64
}

func dialNATS(ctx context.Context, server *Server, id string) (Locker, error) {
	conn, err := nats.Connect(server.Address, nats.Name(id))
	if err != nil {
		return nil, err
	}
	stream, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	l := &natsLocker{conn: conn, id: []byte(id)}
	// Memory is the storage that is not slowed down by a disk, as for our server in memory.
	l.locks, err = stream.CreateOrUpdateKeyValue(ctx,
		jetstream.KeyValueConfig{Bucket: "locks", TTL: TTL, Storage: jetstream.MemoryStorage})
	if err == nil {
		l.data, err = stream.CreateOrUpdateKeyValue(ctx,
			jetstream.KeyValueConfig{Bucket: "data", Storage: jetstream.MemoryStorage})
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

func (l *natsLocker) TryObtain(ctx context.Context, name string) (Held, error) {
	revision, err := l.locks.Create(ctx, name, l.id)
	// Create reads the key after a refusal. A key that was deleted in between is its last error.
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return nil, ErrHeld
	}
	return &natsHeld{name, revision}, err
}

// Obtain watches the key, and tries again when it is deleted. A key that expires is not announced,
// so it also tries once in a TTL.
func (l *natsLocker) Obtain(ctx context.Context, name string) (Held, error) {
	if held, err := l.TryObtain(ctx, name); !errors.Is(err, ErrHeld) {
		return held, err
	}
	watcher, err := l.locks.Watch(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = watcher.Stop() }()
	expired := time.NewTicker(TTL)
	defer expired.Stop()
	for {
		select {
		case entry, open := <-watcher.Updates():
			if !open {
				return nil, errors.New("the watch of the key ended")
			}
			if entry != nil && entry.Operation() == jetstream.KeyValuePut {
				continue
			}
		case <-expired.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if held, err := l.TryObtain(ctx, name); !errors.Is(err, ErrHeld) {
			return held, err
		}
	}
}

func (l *natsLocker) Release(ctx context.Context, held Held) error {
	h := held.(*natsHeld)
	return l.locks.Delete(ctx, h.name, jetstream.LastRevision(h.revision))
}

func (l *natsLocker) Renewal(_ context.Context, held Held) (func(context.Context) error, error) {
	h := held.(*natsHeld)
	return func(ctx context.Context) (err error) {
		revision, err := l.locks.Update(ctx, h.name, l.id, h.revision)
		if err == nil {
			h.revision = revision
		}
		return err
	}, nil
}

func (l *natsLocker) Writer(ctx context.Context, _ Held, key string) (func(context.Context, []byte) error, error) {
	revision := uint64(0) // a key that does not exist
	entry, err := l.data.Get(ctx, key)
	switch {
	case err == nil:
		revision = entry.Revision()
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return nil, err
	}
	return func(ctx context.Context, value []byte) error {
		next, err := l.data.Update(ctx, key, value, revision)
		if errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.Is(err, jetstream.ErrKeyExists) {
			return ErrStale
		}
		if err == nil {
			revision = next
		}
		return err
	}, nil
}

func (l *natsLocker) Close() { l.conn.Close() }
