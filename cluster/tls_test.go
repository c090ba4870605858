package cluster_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
)

// clientTLS returns the settings of a client with a certificate of this name.
func clientTLS(t *testing.T, a *etcdtest.Authority, name string) *tls.Config {
	t.Helper()
	a.Issue(t, name)
	files := a.TLS(name)
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

func TestAStoreOnAnEtcdWithTLSAndUsers(t *testing.T) {
	a := etcdtest.NewAuthority(t)
	a.Issue(t, "member")
	e := startEtcdWith(t, t.Cleanup, func(o *member.Options) {
		o.Cluster = strings.ReplaceAll(o.Cluster, "http:", "https:")
		o.ClientURL = strings.Replace(o.ClientURL, "http:", "https:", 1)
		o.PeerTLS, o.ClientTLS = a.TLS("member"), a.TLS("member")
	})
	for i := range e.urls {
		e.urls[i] = strings.Replace(e.urls[i], "http:", "https:", 1)
	}
	options := e.candidateOptions(t, "a")
	options.Prefix = "stores/press-7/"
	options.TLS = clientTLS(t, a, "tenure")
	// Before etcd requires users, each certificate of the authority will do.
	journal := campaign(t, open(t, options))
	load(t, journal)
	commit(t, journal, group("a", "1"))

	root, err := clientv3.New(clientv3.Config{Endpoints: e.urls, TLS: clientTLS(t, a, "root"), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx := bounded(t)
	for _, step := range []func() error{
		func() error {
			_, err := root.UserAddWithOptions(ctx, "root", "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		},
		func() error { _, err := root.UserGrantRole(ctx, "root", "root"); return err },
		func() error {
			_, err := root.UserAddWithOptions(ctx, "tenure", "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		},
		func() error {
			_, err := root.UserAddWithOptions(ctx, "other", "", &clientv3.UserAddOptions{NoPassword: true})
			return err
		},
		func() error { _, err := root.RoleAdd(ctx, "store"); return err },
		func() error {
			_, err := root.RoleGrantPermission(ctx, "store", options.Prefix, clientv3.GetPrefixRangeEnd(options.Prefix), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserGrantRole(ctx, "tenure", "store"); return err },
		func() error { _, err := root.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	// The store goes on, with the rights that it needs and no more.
	commit(t, journal, group("b", "2"))
	next := open(t, options)
	if err := journal.Close(); err != nil {
		t.Error(err)
	}
	if records := load(t, campaign(t, next)); len(records) != 2 {
		t.Errorf("the records are %q", records)
	}

	options.TLS = clientTLS(t, a, "other")
	if _, err := cluster.Open(bounded(t), options); err == nil || !strings.Contains(err.Error(), "grant the user") {
		t.Errorf("Open by another user: %v", err)
	}
	options.TLS = &tls.Config{RootCAs: options.TLS.RootCAs}
	// In TLS 1.3 a client may write before it learns why it was refused, and not learn it then.
	if _, err := cluster.Open(short(t), options); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open without a certificate: %v", err)
	}
	strangers := etcdtest.NewAuthority(t)
	options.TLS = clientTLS(t, strangers, "tenure")
	eventually(t, "Open with a certificate of another authority says why it is refused", func() bool {
		_, err := cluster.Open(short(t), options) // on a busy machine it may end before the handshake
		if err == nil {
			t.Fatal("Open with a certificate of another authority succeeded")
		}
		return strings.Contains(err.Error(), "certificate")
	})
}

func TestALogSaysOfAPortWhereNothingListensWhatToCheck(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var log logbuffer.Buffer
	var opening sync.WaitGroup
	opening.Go(func() {
		_, _ = cluster.Open(ctx, cluster.Options{
			Endpoints: []string{"http://" + address}, Name: "a", Address: "mqtt://a", Logger: log.Logger(),
		})
	})
	await.Until(func() bool { return strings.Contains(log.String(), "waiting for etcd") })
	cancel()
	await.Done(opening.Wait)
	got, want := log.String(), "connection refused by "+address+": does etcd run there?"
	if !strings.Contains(got, want) || strings.Contains(got, "rpc error") {
		t.Errorf("the log has\n%s", got)
	}
}
