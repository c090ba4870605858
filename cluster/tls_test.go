package cluster_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
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
	t.Parallel() // it mostly waits
	a := etcdtest.NewAuthority(t)
	a.Issue(t, "member")
	e := startEtcdWith(t, t.Cleanup, func(o *member.Options) {
		o.Cluster = strings.ReplaceAll(o.Cluster, "http:", "https:")
		o.ClientURL = strings.Replace(o.ClientURL, "http:", "https:", 1)
		o.PeerTLS = a.TLS("member")
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
	end, readWrite := clientv3.GetPrefixRangeEnd(options.Prefix), clientv3.PermissionType(clientv3.PermReadWrite)
	failures := make([]error, 8)
	for i, user := range []string{"root", "tenure", "other"} {
		_, failures[i] = root.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
	}
	_, failures[3] = root.UserGrantRole(ctx, "root", "root")
	_, failures[4] = root.RoleAdd(ctx, "store")
	_, failures[5] = root.RoleGrantPermission(ctx, "store", options.Prefix, end, readWrite)
	_, failures[6] = root.UserGrantRole(ctx, "tenure", "store")
	_, failures[7] = root.AuthEnable(ctx)
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
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
}
