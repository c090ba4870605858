package cluster

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

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

// revoke ends a lease, and with it the key that is under it.
func revoke(ctx context.Context, endpoints *endpoints, patience time.Duration, id clientv3.LeaseID) error {
	_, err := do(ctx, endpoints, patience, func(ctx context.Context, client *clientv3.Client) (*clientv3.LeaseRevokeResponse, error) {
		response, err := client.Revoke(ctx, id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil, nil
		}
		return response, err
	})
	return err
}
