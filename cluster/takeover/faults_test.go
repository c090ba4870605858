//go:build unix

package takeover_test

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/server/crashtest"
	"github.com/tenurelock/tenure/statestore"
)

// Faults that only a store of several processes can have.
const (
	deposedWriter crashtest.Fault = "deposed writer not refused"
	deposedReader crashtest.Fault = "deposed process answers"
)

// alwaysStanding goes on as if it had not been deposed. What it then commits is not kept.
type alwaysStanding struct{ *cluster.Journal }

func (alwaysStanding) Standing() error { return nil }

func (a alwaysStanding) Commit(ctx context.Context, batch []statestore.Group) error {
	if err := a.Journal.Commit(ctx, batch); a.Journal.Err() == nil {
		return err
	}
	return nil
}

// Done and Err hide that it was deposed.
func (alwaysStanding) Done() <-chan struct{} { return nil }
func (alwaysStanding) Err() error            { return nil }

// unfenced writes to etcd without a comparison.
type unfenced struct {
	alwaysStanding
	client  *clientv3.Client
	records string
}

func newUnfenced(journal *cluster.Journal, endpoints []string) (*unfenced, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	return &unfenced{alwaysStanding{journal}, client, cluster.DefaultPrefix + "r/"}, err
}

func (u *unfenced) Commit(ctx context.Context, batch []statestore.Group) error {
	for _, group := range batch {
		var operations []clientv3.Op
		for _, record := range group {
			if record.Value == nil {
				operations = append(operations, clientv3.OpDelete(u.records+string(record.ID)))
			} else {
				operations = append(operations, clientv3.OpPut(u.records+string(record.ID), string(record.Value)))
			}
		}
		if _, err := u.client.Txn(ctx).Then(operations...).Commit(); err != nil {
			return err
		}
	}
	return nil
}

func (u *unfenced) Close() error { return errors.Join(u.client.Close(), u.Journal.Close()) }
