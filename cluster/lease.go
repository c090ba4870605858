package cluster

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/internal/sleep"
)

// grant gets a lease for the key that says that this process lives. If the outcome of an attempt is
// unknown, a lease that nothing uses expires.
func (j *Journal) grant(ctx context.Context) error {
	granted, err := do(ctx, j.endpoints, j.options.patience(),
		func(ctx context.Context, client *clientv3.Client) (*clientv3.LeaseGrantResponse, error) {
			return client.Grant(ctx, int64(j.options.TTL/time.Second))
		})
	if err != nil {
		return fmt.Errorf("grant a lease: %w", err)
	}
	j.lease = granted.ID
	return nil
}

// keepAlive renews the lease until ctx or the standing ends. Nothing depends on it but when
// another process may begin to take over.
func (j *Journal) keepAlive(ctx context.Context) {
	ctx, cancel := j.living(ctx)
	defer cancel()
	for sleep.For(ctx, j.options.TTL/4) {
		ttl, err := do(ctx, j.endpoints, j.options.patience(),
			func(ctx context.Context, client *clientv3.Client) (time.Duration, error) {
				return keepAlive(ctx, client, j.lease)
			})
		switch {
		case err != nil && ctx.Err() == nil:
			j.over(fmt.Errorf("etcd: %w", err)) // refused
		case err == nil && ttl <= 0:
			j.over(fmt.Errorf("%w: its lease has expired", ErrDeposed))
		}
	}
}

// keepAlive renews a lease once and returns what is left of it; 0 means that it has expired.
// etcd's own KeepAliveOnce (v3.6.14) repeats a request that fails, without a pause.
func keepAlive(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) (ttl time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	stream, err := pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return 0, rpctypes.Error(err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return 0, rpctypes.Error(err)
	}
	response, err := stream.Recv()
	if err != nil {
		return 0, rpctypes.Error(err)
	}
	return time.Duration(response.TTL) * time.Second, nil
}
