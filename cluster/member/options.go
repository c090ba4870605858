package member

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/optionerror"
)

// Options configure a Member. Name, Cluster and Dir are required.
type Options struct {
	// Name is the name of this member in Cluster.
	Name string
	// Cluster has the names of all members and the URLs at which they serve each other:
	// "a=https://host-a:2380,b=https://host-b:2380,c=https://host-c:2380". It must be the same
	// for all members of a new cluster. A member that was started once knows its cluster
	// from its data.
	Cluster string
	// Join is for a new member in an existing cluster, announced with Replace. Dir is empty then.
	Join bool
	// Dir is where the data is kept. It is created with mode 0700.
	Dir string
	// PeerTLS is for the connections between members. It is required unless all URLs of
	// Cluster are http on loopback addresses, for tests on one machine. Both ends of a connection
	// have certificates.
	PeerTLS TLS
	// ClientURL is where this member also serves other processes, such as etcdctl or stores on
	// other machines. It is https://…, with the files of PeerTLS, and clients need a certificate of its CA; or
	// http:// on a loopback address, which all users of the machine can open. Default: none; the own process uses
	// a socket in Dir.
	ClientURL string
	// MaxDatabase is how large the database may become before the store beside this member refuses
	// what needs more space, in bytes; see cluster.Options.MaxDatabase. Default 1 GiB.
	MaxDatabase int64
	// Quota is etcd's own quota, in bytes. Where a member's file is larger, etcd refuses the writes of
	// all members, and no store can become the active one. So it is at least twice MaxDatabase, which
	// leaves space for what is free in the file. Default 8 GiB, or twice MaxDatabase if that is more.
	Quota int64
	// Election is how long the members wait for the leader before they elect another, up to twice as long;
	// ten times as often it shows that it is there. All members need the same. It must be a
	// multiple of what a round trip between the members and a write to their disks take. From 50 ms to 50 s. Default
	// DefaultElection, for machines of one site.
	Election time.Duration
	// Witness says that no store runs beside this member. If it is elected as the leader of the
	// cluster, it hands that to another member at once.
	Witness bool
	// Logger gets etcd's warnings and errors, and the rest at debug level. Default: no logs.
	Logger *slog.Logger
	// Flush is called after the line that says why etcd ends the process: a disk is full or has
	// failed. If Logger writes later, it returns when the line is written. Default: none.
	Flush func() `json:"-"`
}

// TLS are the names of PEM files. etcd reads certificates and keys again for each connection, so
// they can be renewed while the member runs.
type TLS struct{ CA, Certificate, Key string }

// Defaults of Options.
const (
	DefaultElection    = 500 * time.Millisecond
	DefaultMaxDatabase = 1 << 30 // bytes
)

const (
	minDatabase     = 64 << 20 // what is being written and not compacted yet may take half of it
	defaultQuota    = 8 << 30
	maxSocketName   = 100 // bytes; the least that systems allow is 104
	clientSocket    = "client.sock"
	compactionAfter = "5m"
)

// OptionError says which field of [Options] makes no sense, and what would do.
type OptionError = optionerror.Error

func refuse(field string, value any, problem string) error {
	return &OptionError{Package: "member", Field: field, Value: value, Problem: problem}
}

func refuseFor(field string, cause error) error {
	return &OptionError{Package: "member", Field: field, Err: cause}
}

// config returns etcd's configuration. While quiet is set it logs nothing.
func (o *Options) config(quiet *atomic.Bool) (*embed.Config, error) {
	switch {
	case o.Name == "":
		return nil, refuse("Name", nil, "is required: the name of this member")
	case o.Cluster == "":
		return nil, refuse("Cluster", nil,
			"is required: the names and URLs of all members, like a=https://a:2380,b=https://b:2380,c=https://c:2380")
	case o.Dir == "":
		return nil, refuse("Dir", nil, "is required")
	}
	peers, err := o.peers()
	if err != nil {
		return nil, err
	}
	own, ok := peers[o.Name]
	if !ok {
		return nil, refuse("Name", o.Name, "is none of the names of the members: "+o.Cluster)
	}
	socket, err := o.socket()
	if err != nil {
		return nil, err
	}
	c := embed.NewConfig()
	c.Name, c.Dir = o.Name, filepath.Join(o.Dir, "etcd")
	c.InitialCluster, c.InitialClusterToken = o.Cluster, "tenure"
	if o.Join {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	c.AdvertisePeerUrls, c.ListenPeerUrls = []url.URL{own}, nil // see peers
	// The advertised URL is informative; etcd demands one.
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{socket}, []url.URL{own}
	if c.PeerTLSInfo, err = o.PeerTLS.info(own); err != nil {
		return nil, err
	}
	if o.ClientURL != "" {
		client, err := checkURL(o.ClientURL)
		if err != nil {
			return nil, refuseFor("ClientURL", err)
		}
		if client.Scheme == "http" && !isLoopback(client) {
			return nil, refuse("ClientURL", o.ClientURL,
				"would serve the network without TLS; write https and give certificates")
		}
		c.ListenClientUrls = append(c.ListenClientUrls, listener(client))
		c.AdvertiseClientUrls = []url.URL{client}
		if client.Scheme == "https" {
			if c.ClientTLSInfo, err = o.PeerTLS.info(client); err != nil {
				return nil, err
			}
		}
	}
	election := cmp.Or(o.Election, DefaultElection)
	if election < 50*time.Millisecond || election > 50*time.Second {
		return nil, refuse("Election", election, "must be from 50ms to 50s")
	}
	c.TickMs, c.ElectionMs = uint(election.Milliseconds()/10), uint(election.Milliseconds())
	o.MaxDatabase = cmp.Or(o.MaxDatabase, DefaultMaxDatabase)
	c.QuotaBackendBytes = cmp.Or(o.Quota, max(defaultQuota, 2*o.MaxDatabase))
	if o.MaxDatabase < minDatabase || o.MaxDatabase > c.QuotaBackendBytes/2 {
		return nil, refuse("MaxDatabase", o.MaxDatabase,
			fmt.Sprintf("must be at least %d, and at most half of etcd's own quota of %d", minDatabase, c.QuotaBackendBytes))
	}
	c.BootstrapDefragThresholdMegabytes = 256 // free in the file: a member that starts then writes it anew
	c.MaxTxnOps = cluster.MemberOperations
	// etcd keeps that many requests in memory and on disk for members that lag behind. Its own
	// numbers (10,000 and 5,000) are for small requests; these are batches.
	c.SnapshotCount, c.SnapshotCatchUpEntries = 500, 500
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, compactionAfter
	c.EnableGRPCGateway = false
	c.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration // only etcd's flags set it
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapLogger(o.Logger, o.Flush, quiet))
	return c, nil
}

// socket returns the URL of the socket in Dir.
func (o *Options) socket() (url.URL, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return url.URL{}, err
	}
	name := filepath.Join(dir, clientSocket)
	if len(name) > maxSocketName {
		return url.URL{}, refuse("Dir", nil, fmt.Sprintf("is too long: the socket %q has more than %d bytes",
			name, maxSocketName))
	}
	return url.URL{Scheme: "unix", Path: filepath.ToSlash(name)}, nil
}

// peers returns the URL of each member.
func (o *Options) peers() (map[string]url.URL, error) {
	peers := make(map[string]url.URL)
	for part := range strings.SplitSeq(o.Cluster, ",") {
		name, address, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || name == "" {
			return nil, refuse("Cluster", part, "does not have the form name=https://host:2380")
		}
		u, err := checkURL(address)
		if err != nil {
			return nil, refuseFor("Cluster", err)
		}
		if u.Scheme == "http" && !isLoopback(u) {
			return nil, refuse("Cluster", address,
				"lets everything on the network change the data; write https and give certificates")
		}
		peers[name] = u
	}
	return peers, nil
}

func checkURL(address string) (url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" ||
		u.Path != "" || u.User != nil {
		return url.URL{}, fmt.Errorf("%q does not have the form https://host:2380", address)
	}
	return *u, nil
}

func isLoopback(u url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// listener returns where to listen for u: at its address if that is an IP address, else on all
// addresses of the machine.
func listener(u url.URL) url.URL {
	if net.ParseIP(u.Hostname()) == nil && u.Hostname() != "localhost" {
		u.Host = net.JoinHostPort("0.0.0.0", u.Port()) // net.Listen serves IPv6 there too
	}
	return u
}

// info returns etcd's settings for the connections to u, a URL of this member.
func (t TLS) info(u url.URL) (transport.TLSInfo, error) {
	switch {
	case t == TLS{} && u.Scheme != "https":
		return transport.TLSInfo{}, nil
	case t == TLS{}:
		return transport.TLSInfo{}, refuseFor("PeerTLS", fmt.Errorf("%s needs certificates", u.String()))
	case u.Scheme != "https":
		return transport.TLSInfo{}, refuseFor("PeerTLS",
			fmt.Errorf("certificates are given, and %s does not encrypt: write https", u.String()))
	}
	if t.CA == "" || t.Certificate == "" || t.Key == "" {
		return transport.TLSInfo{}, refuse("PeerTLS", nil, "must all be given: the authority, the certificate and its key")
	}
	var policy tls.Config
	mqtt.RestrictTLS(&policy)
	return transport.TLSInfo{
		TrustedCAFile: t.CA, CertFile: t.Certificate, KeyFile: t.Key, ClientCertAuth: true,
		MinVersion: policy.MinVersion, CipherSuites: policy.CipherSuites,
	}, t.check(u.Hostname())
}

// check reads the files, which etcd reads for each connection, and refuses a certificate that the
// other end would refuse: etcd would only repeat that it cannot connect. Whether the certificate
// is valid now is left to the other end, because the clock of a machine that starts may be wrong.
func (t TLS) check(host string) error {
	pool, err := mqtt.ReadCertPool(t.CA)
	if err != nil {
		return refuseFor("PeerTLS.CA", err)
	}
	pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return refuseFor("PeerTLS.Certificate", err)
	}
	intermediates := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if certificate, err := x509.ParseCertificate(der); err == nil { // else the chain has a gap
			intermediates.AddCert(certificate)
		}
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, Intermediates: intermediates,
			KeyUsages: []x509.ExtKeyUsage{use}})
		var invalid x509.CertificateInvalidError
		if err != nil && !(errors.As(err, &invalid) && invalid.Reason == x509.Expired) {
			return refuseFor("PeerTLS.Certificate",
				fmt.Errorf("%s: %w; the authority of the members must issue it, for servers and for clients", t.Certificate, err))
		}
	}
	if err := pair.Leaf.VerifyHostname(host); err != nil {
		return refuseFor("PeerTLS.Certificate", fmt.Errorf(
			"%s: %w; it needs %s as a subject alternative name, because the URL of this member has that",
			t.Certificate, err, host))
	}
	return nil
}
