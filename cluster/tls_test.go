package cluster_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/member"
)

// authority issues certificates into a directory.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.certificate, a.key = a.issue(t, "ca")
	return a
}

// issue writes name.pem and name.key, for 127.0.0.1 and with the common name, signed by the
// authority, or by itself if there is none yet.
func (a *authority) issue(t *testing.T, name string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: a.certificate == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".pem", "CERTIFICATE", der)
	a.write(t, name+".key", "EC PRIVATE KEY", encoded)
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) files(name string) member.TLS {
	return member.TLS{CA: filepath.Join(a.dir, "ca.pem"), Certificate: filepath.Join(a.dir, name+".pem"), Key: filepath.Join(a.dir, name+".key")}
}

// client returns the settings of a client with a certificate of this name.
func (a *authority) client(t *testing.T, name string) *tls.Config {
	t.Helper()
	a.issue(t, name)
	files := a.files(name)
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

func TestAStoreOnAnEtcdWithTLSAndUsers(t *testing.T) {
	a := newAuthority(t)
	a.issue(t, "member")
	e := startEtcdWith(t, t.Cleanup, func(o *member.Options) {
		o.Cluster = strings.ReplaceAll(o.Cluster, "http:", "https:")
		o.ClientURL = strings.Replace(o.ClientURL, "http:", "https:", 1)
		o.PeerTLS, o.ClientTLS = a.files("member"), a.files("member")
	})
	for i := range e.urls {
		e.urls[i] = strings.Replace(e.urls[i], "http:", "https:", 1)
	}
	options := e.candidateOptions(t, "a")
	options.Prefix = "stores/press-7/"
	options.TLS = a.client(t, "tenure")
	// Before etcd requires users, each certificate of the authority will do.
	journal := campaign(t, open(t, options))
	load(t, journal)
	commit(t, journal, group("a", "1"))

	root, err := clientv3.New(clientv3.Config{Endpoints: e.urls, TLS: a.client(t, "root"), Logger: zap.NewNop()})
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

	options.TLS = a.client(t, "other")
	if _, err := cluster.Open(bounded(t), options); err == nil || !strings.Contains(err.Error(), "grant the user") {
		t.Errorf("Open by another user: %v", err)
	}
	options.TLS = &tls.Config{RootCAs: options.TLS.RootCAs}
	// In TLS 1.3 a client may write before it learns why it was refused, and not learn it then.
	if _, err := cluster.Open(short(t), options); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open without a certificate: %v", err)
	}
	strangers := newAuthority(t)
	options.TLS = strangers.client(t, "tenure")
	eventually(t, "Open with a certificate of another authority says why it is refused", func() bool {
		_, err := cluster.Open(short(t), options) // on a busy machine it may end before the handshake
		if err == nil {
			t.Fatal("Open with a certificate of another authority succeeded")
		}
		return strings.Contains(err.Error(), "certificate")
	})
}
