package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurelock/tenure/internal/loglimit"
)

// probe waits until etcd answers, and checks that it can keep the store: its version, the
// prefix and its limits.
func (c *Candidate) probe(ctx context.Context) error {
	var reasons loglimit.Limiter // the members have different ones
	_, err := do(ctx, c.endpoints, c.options.requestLimit(),
		func(ctx context.Context, client *clientv3.Client) (struct{}, error) {
			err := c.probeMember(ctx, client)
			if err != nil && ctx.Err() == nil && !isFinal(err) && reasons.Due(err.Error(), time.Now()) {
				c.options.Logger.Warn("waiting for etcd", slog.Any("reason", err))
			}
			return struct{}{}, err
		})
	return err
}

func (c *Candidate) probeMember(ctx context.Context, client *clientv3.Client) error {
	endpoint := client.Endpoints()[0]
	// etcd's own Status opens a connection for each call, and waits while that fails.
	status, err := pb.NewMaintenanceClient(client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return rpctypes.Error(err)
	}
	if !isSupported(status.Version) {
		return final{fmt.Errorf("%s has version %s, which may answer a linearizable read with an old value after a pause "+
			"(etcd issue 20418); use 3.5.28 or later, and of 3.6 use 3.6.9 or later", endpoint, status.Version)}
	}
	return c.probePrefix(ctx, client)
}

// isSupported reports whether linearizable reads of a version of etcd stay linearizable after a pause.
func isSupported(version string) bool {
	var major, minor, patch int
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch) // what is missing is 0
	return major > 3 || major == 3 && (minor > 6 || minor == 6 && patch >= 9 || minor == 5 && patch >= 28)
}

// probePrefix refuses a prefix that holds keys of something else.
func (c *Candidate) probePrefix(ctx context.Context, client *clientv3.Client) error {
	all := clientv3.WithRange(clientv3.GetPrefixRangeEnd(c.options.Prefix))
	response, err := client.Txn(ctx).Then(
		clientv3.OpGet(c.keys.format),
		clientv3.OpGet(c.options.Prefix, all, clientv3.WithLimit(1), clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return err
	}
	found := response.Responses[0].GetResponseRange().GetKvs()
	some := response.Responses[1].GetResponseRange().GetKvs()
	switch {
	case len(found) == 0 && len(some) == 0:
		return nil
	case len(found) == 0:
		return final{fmt.Errorf("%w: below the prefix %q another program has the key %q, and no store is there, which "+
			"would have %q; give another prefix",
			ErrForeignData, c.options.Prefix, some[0].Key, c.keys.format)}
	case string(found[0].Value) != format:
		return final{fmt.Errorf("%w: %q is %q, and this release knows %q; use the release that wrote it, or give another "+
			"prefix",
			ErrForeignData, c.keys.format, found[0].Value, format)}
	}
	return nil
}
