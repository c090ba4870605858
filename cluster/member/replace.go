package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/internal/sleep"
)

// Replace takes the member name out of the cluster to which the member with the data in dir
// belongs, and announces a new one of the same name that serves its peers at peerURL. It
// needs the majority of the members, and that the member in dir runs on this machine under the
// same user. If name was taken out before, it is only announced. A member that was announced
// and has never started is announced anew. A name that no member has, in a cluster that lacks none,
// and a URL of another member are refused. So is a member that is alive, unless evenAlive is set: a
// mistaken name would cost the cluster a member.
//
// It returns the value of Options.Cluster with which the new member starts, with Options.Join.
func Replace(ctx context.Context, dir, name, peerURL string, evenAlive bool) (cluster string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("member: replace %q: %w", name, err)
		}
	}()
	if _, err := checkURL(peerURL); err != nil {
		return "", err
	}
	socket, err := (&Options{Dir: dir}).socket()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(socket.Path); err != nil {
		return "", fmt.Errorf("no member with its data in %s runs on this machine: %w", dir, err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{socket.String()}, Logger: zap.NewNop(), Context: ctx})
	if err != nil {
		return "", err
	}
	defer client.Close()
	for {
		// A change that was under way when the leader was taken out gets no answer.
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		cluster, err = replace(attempt, client, name, peerURL, evenAlive)
		cancel()
		if err == nil || errors.Is(err, errMistaken) || !sleep.For(ctx, time.Second) {
			return cluster, err
		}
	}
}

// ErrAlive is the error of Replace for a member that is alive.
var ErrAlive = fmt.Errorf("%w: the member is alive: its address accepts connections; stop it, or replace it all the "+
	"same (--yes)", errMistaken)

// isAlive reports whether a member accepts connections.
func isAlive(ctx context.Context, m *etcdserverpb.Member) bool {
	dialer := net.Dialer{Timeout: askTimeout}
	for _, address := range m.PeerURLs {
		if u, err := checkURL(address); err == nil {
			if conn, err := dialer.DialContext(ctx, "tcp", u.Host); err == nil {
				_ = conn.Close()
				return true
			}
		}
	}
	return false
}

// errMistaken is in the errors that no repetition changes.
var errMistaken = errors.New("nothing was changed")

// lost returns the members to take out for a new one: those with its name, and those that were
// announced and have never started. The error matches errMistaken if the new one cannot replace any.
func lost(members []*etcdserverpb.Member, name, peerURL string) (old []*etcdserverpb.Member, err error) {
	var others []string
	for _, m := range members {
		switch {
		case m.Name == name || m.Name == "":
			old = append(old, m)
		case slices.Contains(m.PeerURLs, peerURL):
			return nil, fmt.Errorf("%w: member %q has %s; give the URL of the new member", errMistaken, m.Name, peerURL)
		default:
			others = append(others, fmt.Sprintf("%q", m.Name))
		}
	}
	// A cluster has an odd number of members. Where none is missing, a new one would be one more:
	// the majority would be larger, and the loss of one member could stop the store.
	if len(old) == 0 && len(members)%2 == 1 {
		return nil, fmt.Errorf("%w: no member has that name; the members are %s", errMistaken, strings.Join(others, ", "))
	}
	return old, nil
}

func replace(ctx context.Context, client *clientv3.Client, name, peerURL string,
	evenAlive bool) (cluster string, err error) {
	listed, err := client.MemberList(ctx)
	if err != nil {
		return "", err
	}
	old, err := lost(listed.Members, name, peerURL)
	if err != nil {
		return "", err
	}
	for _, m := range old {
		if m.ID == listed.Header.MemberId {
			return "", fmt.Errorf("%w: this is the member itself; give the directory of another one that runs", errMistaken)
		}
		if m.Name == name && !evenAlive && isAlive(ctx, m) {
			return "", ErrAlive
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
