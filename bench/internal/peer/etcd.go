package peer

import (
	"context"
	"errors"
	"net/url"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

func etcdPeer() *Peer {
	return &Peer{
		Name: "etcd",
		About: "client/v3/concurrency with one session for each client, on one member of etcd 3.6, which commits each " +
			"write to the disk. The guarded write is a transaction under `Mutex.IsOwner`. A renewal is `KeepAliveOnce`; the " +
			"library's own renewals share a stream.",
		Serve: func(ctx context.Context, h *Host) (*Server, error) { return h.child(ctx, "etcd") },
		Lock:  dialEtcd,
	}
}

// serveEtcd runs one member with the defaults, which "should work well for installations on a local
// network": https://etcd.io/docs/v3.6/tuning/
func serveEtcd(ctx context.Context, dir string, said func(address string)) error {
	config := embed.NewConfig()
	config.Dir, config.LogLevel = dir, "error"
	free := []url.URL{{Scheme: "http", Host: loopback}}
	config.ListenClientUrls, config.AdvertiseClientUrls = free, free
	config.ListenPeerUrls, config.AdvertisePeerUrls = free, free
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	// Only etcd's flags set it. Without it every slow request is logged.
	config.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer etcd.Close()
	select {
	case <-etcd.Server.ReadyNotify():
	case err := <-etcd.Err():
		return err
	case <-ctx.Done():
		return nil
	}
	said("http://" + etcd.Clients[0].Addr().String())
	select {
	case err := <-etcd.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}

// etcdLocker is a client of etcd with one session, as in
// https://pkg.go.dev/go.etcd.io/etcd/client/v3/concurrency#example-Mutex.Lock
type etcdLocker struct {
	client  *clientv3.Client
	session *concurrency.Session
}

func dialEtcd(ctx context.Context, server *Server, _ string) (Locker, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{server.Address}, DialTimeout: startPatience, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	granted, err := client.Grant(ctx, int64(TTL/time.Second))
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(TTL/time.Second)),
		concurrency.WithLease(granted.ID))
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &etcdLocker{client, session}, nil
}

func (l *etcdLocker) TryObtain(ctx context.Context, name string) (Held, error) {
	mutex := concurrency.NewMutex(l.session, name)
	err := mutex.TryLock(ctx)
	if errors.Is(err, concurrency.ErrLocked) {
		return nil, ErrHeld
	}
	return mutex, err
}

func (l *etcdLocker) Obtain(ctx context.Context, name string) (Held, error) {
	mutex := concurrency.NewMutex(l.session, name)
	return mutex, mutex.Lock(ctx)
}

func (l *etcdLocker) Release(ctx context.Context, held Held) error {
	return held.(*concurrency.Mutex).Unlock(ctx)
}

func (l *etcdLocker) Renewal(context.Context, Held) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		_, err := l.client.KeepAliveOnce(ctx, l.session.Lease())
		return err
	}, nil
}

func (l *etcdLocker) Writer(_ context.Context, held Held, key string) (func(context.Context, []byte) error, error) {
	owner := held.(*concurrency.Mutex).IsOwner()
	return func(ctx context.Context, value []byte) error {
		response, err := l.client.Txn(ctx).If(owner).Then(clientv3.OpPut(key, string(value))).Commit()
		if err == nil && !response.Succeeded {
			return ErrStale
		}
		return err
	}, nil
}

func (l *etcdLocker) Close() {
	_ = l.session.Close() // bounded by its TTL
	_ = l.client.Close()
}
