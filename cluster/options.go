package cluster

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/lease"
)

// Options configure a Candidate. Endpoints is required.
type Options struct {
	// Endpoints are the URLs at which members of etcd serve clients: https://host:2379, or
	// unix:///file for a socket. Each is one member, not a proxy or load balancer for several:
	// see "What is guaranteed" in the package comment. One that does not answer costs a
	// timeout, and another is asked.
	Endpoints []string
	// TLS is for endpoints with https. Nil trusts the certificate authorities of the system. A
	// MinVersion or CipherSuites that is not set gets the project's rule.
	// If etcd requires users, the common name of the client certificate is the user.
	TLS *tls.Config
	// Prefix begins all keys. Stores with different prefixes are independent. It ends with
	// a slash, which is added if it is missing. Default DefaultPrefix.
	Prefix string
	// Address is where clients reach this process when it is active, as MQTT's Server
	// Reference: host or host:port, several of them separated by spaces. The other
	// candidates refer clients to it. It may be empty.
	Address string
	// Member is the member of etcd in this process, which Endpoints lead to. With it a process
	// becomes the active one when its member leads etcd, which allows MemberOperations in a
	// transaction and serves this store only: the active process compacts it as its old values grow, so a
	// store that is written to all day does not fill it. Nil: etcd runs elsewhere, and a process
	// may become the active one when a lease of the one before has expired, after TTL.
	Member Leadership
	// TTL is how long etcd waits for a process that ended uncleanly before another may take
	// over, without Member. Whole seconds, from 2 s to 1 min. etcd makes it longer if it is
	// shorter than one and a half of etcd's election timeouts. Default DefaultTTL. With and without
	// Member, a request about the election that is not answered within TTL is repeated.
	TTL time.Duration
	// Standing is how long the active process may answer after it began to ask etcd whether it
	// still is the active one, and got that answer. It asks five times as often. A process that
	// takes over waits for it, so a short one makes takeovers fast, and one that is shorter than
	// what etcd takes to elect a leader ends the standing then. From 100 ms to 30 s. The processes
	// may have different ones. Default TTL/2.
	Standing time.Duration
	// MaxDatabase is how large etcd's database may become, in bytes. From there on the store refuses
	// what needs more space, and etcd never comes to its own quota, after which no process could
	// become the active one. Default 80 % of etcd's quota; releases before 3.6 do not say what
	// that is, and then there is no limit.
	MaxDatabase int64
	// Clock measures deadlines. Default lease.SystemClock.
	Clock func() time.Duration
	// Logger gets a line for each change of standing, and for each new reason why etcd
	// cannot be used. Default: no logs.
	Logger *slog.Logger
}

// The bounds of Options.TTL and Options.Standing.
const (
	MinTTL      = 2 * time.Second
	MaxTTL      = time.Minute
	MinStanding = 100 * time.Millisecond
	MaxStanding = 30 * time.Second
)

// Defaults of Options.
const (
	DefaultPrefix = "tenure/"
	DefaultTTL    = 4 * time.Second
)

// Leadership is what a Candidate needs of the member of etcd in its own process. Member of
// package member implements it. Its methods are safe for concurrent use and do not wait.
type Leadership interface {
	// Leads reports whether the member leads etcd, and returns a channel that is closed when
	// that may have changed.
	Leads() (leads bool, changed <-chan struct{})
	// SetEligible says whether this process could serve, or does. While it cannot, its member hands
	// leadership to another one.
	SetEligible(can bool)
}

// MaxPacketSize is the largest server.Options.MaxPacketSize with which each command fits into one
// transaction. A server with a larger one must not be given the journal: one SET could end it.
const MaxPacketSize = maxTransactionBytes - groupOverhead

const (
	// maxTransactionBytes is how large etcd lets a transaction be by default (--max-request-bytes).
	maxTransactionBytes = 3 << 19
	// groupOverhead is more than a group has besides the bytes of its packet: the client id
	// (64 KiB), identifiers of 1,100 bytes, and what etcd adds. Groups of many records only
	// remove some, or have short values.
	groupOverhead = 128 << 10
	maxPrefix     = 256
	maxAddress    = 1 << 10
	// MemberOperations is the --max-txn-ops of a member that runs in the process of a store. A member of its own
	// has defaultOperations.
	MemberOperations, defaultOperations = 4096, 128
)

// OptionError says which field of [Options] makes no sense, and what would do.
type OptionError = optionerror.Error

func refuse(field string, value any, problem string, arguments ...any) error {
	return &OptionError{Package: "cluster", Field: field, Value: value, Problem: fmt.Sprintf(problem, arguments...)}
}

func (o *Options) setDefaults() error {
	if len(o.Endpoints) == 0 {
		return refuse("Endpoints", nil, "is empty; name the members of etcd: https://host:2379")
	}
	for _, endpoint := range o.Endpoints {
		if err := checkEndpoint(endpoint, o.TLS != nil); err != nil {
			return err
		}
	}
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	if !strings.HasSuffix(o.Prefix, "/") {
		o.Prefix += "/"
	}
	for _, text := range []struct {
		field, value string
		most         int
	}{{"Prefix", o.Prefix, maxPrefix}, {"Address", o.Address, maxAddress}} {
		if len(text.value) > text.most {
			return refuse(text.field, nil, "has %d bytes; at most %d are allowed", len(text.value), text.most)
		}
	}
	o.TTL = cmp.Or(o.TTL, DefaultTTL)
	o.Standing = cmp.Or(o.Standing, o.TTL/2)
	switch {
	case o.TTL < MinTTL || o.TTL > MaxTTL || o.TTL%time.Second != 0:
		return refuse("TTL", o.TTL, "must be whole seconds, from %v to %v", MinTTL, MaxTTL)
	case o.Standing < MinStanding || o.Standing > MaxStanding:
		return refuse("Standing", o.Standing, "must be from %v to %v", MinStanding, MaxStanding)
	case o.MaxDatabase < 0:
		return refuse("MaxDatabase", o.MaxDatabase, "is negative")
	}
	if o.TLS != nil {
		o.TLS = o.TLS.Clone()
		mqtt.RestrictTLS(o.TLS)
	}
	if o.Clock == nil {
		o.Clock = lease.SystemClock
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return nil
}

// operations is how many there can be in a transaction.
func (o *Options) operations() int {
	if o.Member != nil {
		return MemberOperations
	}
	return defaultOperations
}

// requestLimit bounds a request about the election, which is repeated then, and the pause between two looks at
// the election key.
func (o *Options) requestLimit() time.Duration { return o.TTL }

// patience is how long a request may be silent before another member is asked: while etcd elects a leader,
// some are asked in vain.
func (o *Options) patience() time.Duration { return min(o.requestLimit()/8, time.Second/2) }

// commitLimit is how long a commit may take while etcd answers reads: longer than etcd takes to elect a leader.
// That takes two and a half of the default Standing beside a member.
func (o *Options) commitLimit() time.Duration { return max(minCommitLimit, 3*o.Standing) }

func checkEndpoint(endpoint string, hasTLS bool) error {
	u, err := url.Parse(endpoint)
	switch {
	case err == nil && u.Scheme == "unix" && strings.HasPrefix(u.Path, "/") && u.Host == "":
	case err != nil || u.Host == "" || u.Port() == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https":
		return refuse("Endpoints", endpoint, "is not the URL of a member of etcd; it has the form https://host:2379")
	case u.Scheme == "http" && hasTLS:
		return refuse("Endpoints", endpoint, "would be used without TLS, but files for TLS are given; write https")
	}
	return nil
}
