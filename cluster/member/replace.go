package member

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/internal/sleep"
)

// Replace takes the member name out of the cluster to which the member with the data in dir
// belongs, and announces a new one of the same name that serves its peers at peerURL. It
// needs the majority of the members, and that the member in dir runs on this machine under the
// same user. If name was taken out before, it is only announced. A member that was announced
// and has never started is announced anew.
//
// It returns the value of Options.Cluster with which the new member starts, with Options.Join.
func Replace(ctx context.Context, dir, name, peerURL string) (cluster string, err error) {
	if _, err := checkURL(peerURL); err != nil {
		return "", fmt.Errorf("member: replace %q: %w", name, err)
	}
	socket, err := (&Options{Dir: dir}).socket()
	if err != nil {
		return "", fmt.Errorf("member: replace %q: %w", name, err)
	}
	if _, err := os.Stat(socket.Path); err != nil {
		return "", fmt.Errorf("member: replace %q: no member with its data in %s runs on this machine: %w", name, dir, err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{socket.String()}, Logger: zap.NewNop(), Context: ctx})
	if err != nil {
		return "", fmt.Errorf("member: replace %q: %w", name, err)
	}
	defer client.Close()
	cluster, err = replace(ctx, client, name, peerURL)
	if err != nil {
		return "", fmt.Errorf("member: replace %q at %s: %w", name, socket.Path, err)
	}
	return cluster, nil
}

// untilHealthy repeats a change that etcd refuses while it has been connected to a majority for
// less than five seconds.
func untilHealthy(ctx context.Context, change func() error) error {
	for {
		err := change()
		if !errors.Is(err, rpctypes.ErrUnhealthy) || !sleep.For(ctx, time.Second) {
			return err
		}
	}
}

func replace(ctx context.Context, client *clientv3.Client, name, peerURL string) (cluster string, err error) {
	listed, err := client.MemberList(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range listed.Members {
		unstarted := m.Name == "" && len(m.PeerURLs) == 1 && m.PeerURLs[0] == peerURL
		if m.Name != name && !unstarted {
			continue
		}
		if m.ID == listed.Header.MemberId {
			return "", fmt.Errorf("this is the member itself; give the directory of another one that runs")
		}
		if err := untilHealthy(ctx, func() error {
			_, err := client.MemberRemove(ctx, m.ID)
			return err
		}); err != nil {
			return "", fmt.Errorf("take the old one out: %w", err)
		}
	}
	var added *clientv3.MemberAddResponse
	if err := untilHealthy(ctx, func() (err error) {
		added, err = client.MemberAdd(ctx, []string{peerURL})
		return err
	}); err != nil {
		return "", fmt.Errorf("announce the new one: %w", err)
	}
	for _, m := range added.Members {
		if m.ID == added.Member.ID {
			m.Name = name
		}
		for _, u := range m.PeerURLs {
			if cluster != "" {
				cluster += ","
			}
			cluster += m.Name + "=" + u
		}
	}
	return cluster, nil
}
