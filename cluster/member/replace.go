package member

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

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
	for {
		// A change that was under way when the leader was taken out gets no answer.
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		cluster, err = replace(attempt, client, name, peerURL)
		cancel()
		if err == nil {
			return cluster, nil
		}
		if errors.Is(err, errItself) || !sleep.For(ctx, time.Second) {
			return "", fmt.Errorf("member: replace %q at %s: %w", name, socket.Path, err)
		}
	}
}

var errItself = errors.New("this is the member itself; give the directory of another one that runs")

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
			return "", errItself
		}
		if _, err := client.MemberRemove(ctx, m.ID); err != nil {
			return "", fmt.Errorf("take the old one out: %w", err)
		}
	}
	added, err := client.MemberAdd(ctx, []string{peerURL})
	// etcd (v3.6.14) makes the id from the URL and the time in seconds, and does not find a member
	// whose id was taken out in the same second.
	if err != nil {
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
