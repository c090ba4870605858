package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/cmd/tenure/command"
)

// replication are the flags of a store that several processes share.
type replication struct {
	etcd   etcdFlags
	member *memberFlags // nil: attach, which runs no member
}

var _ command.Replication = (*replication)(nil)

// Register implements command.Replication.
func (r *replication) Register(cmd *cobra.Command) {
	cmd.Long += `

With --etcd the data is in etcd, and any number of processes share it: one is
active, and another takes over with all keys, leases and fences when it is gone.`
	r.etcd.register(cmd.Flags())
	if r.member == nil {
		cmd.Long += " All of them attach to one broker."
		cmd.Example += "\nattach mqtt://localhost:1883 --etcd https://a:2379,https://b:2379,https://c:2379 --etcd-ca ca.pem"
		return
	}
	cmd.Long += `
With --member the process runs a member of etcd itself, with its data below
--data; three members outlive the loss of one. docs/pair.md shows it.
A process that stands by sends its clients to the address of --advertise of the
active one; give clients the addresses of all.`
	cmd.Example += `
serve --etcd https://a:2379,https://b:2379,https://c:2379 --etcd-ca ca.pem
serve --member a --cluster a=https://a:2380,b=https://b:2380,c=https://c:2380 --peer-ca ca.pem --peer-cert a.pem --peer-key a.key`
	r.member.register(cmd.Flags())
}

// Chosen implements command.Replication.
func (r *replication) Chosen() (bool, error) {
	withMember, withEtcd := r.KeepsData(), len(r.etcd.endpoints) > 0
	switch {
	case withMember && withEtcd:
		return false, errors.New("--etcd uses an etcd that runs already, and --member runs one; give one of them")
	case !withMember && r.member != nil && r.member.given() != "":
		return false, fmt.Errorf("--%s needs --member with the name of the member", r.member.given())
	case !withEtcd && r.etcd.given() != "":
		return false, fmt.Errorf("--%s needs --etcd with the URLs of etcd", r.etcd.given())
	case withMember:
		return true, r.member.check()
	case withEtcd:
		return true, r.etcd.check()
	case r.etcd.flags.Changed("standing"):
		return false, errors.New("--standing needs --member or --etcd")
	}
	return false, nil
}

// KeepsData implements command.Replication.
func (r *replication) KeepsData() bool { return r.member != nil && r.member.name != "" }

// Start implements command.Replication.
func (r *replication) Start(_ context.Context, settings command.ReplicaSettings) (command.Candidate, error) {
	options := cluster.Options{
		Address: settings.Address, TTL: r.etcd.ttl, Standing: r.etcd.standing, Logger: settings.Logger,
	}
	c := &candidate{logger: settings.Logger}
	if r.KeepsData() {
		m, where, err := r.member.start(settings.Dir, settings.Logger, settings.Flush)
		if err != nil {
			return nil, err
		}
		c.member, c.where = m, where
		options = m.Configure(options)
		c.tasks.Go(func() {
			<-m.Done()
			if err := m.Err(); err != nil {
				settings.Fail(err)
			}
		})
	} else {
		config, err := r.etcd.tls()
		if err != nil {
			return nil, command.Usage(err) // a file that a flag names
		}
		options.Endpoints, options.TLS, options.Prefix = r.etcd.endpoints, config, r.etcd.prefix
		c.where = fmt.Sprintf("etcd at %s below %s", strings.Join(r.etcd.endpoints, ","), r.etcd.prefix)
	}
	c.options = options
	if settings.PacketSize > cluster.MaxPacketSize {
		_ = c.Close()
		return nil, command.Usage(fmt.Errorf("--max-packet-size %d: a transaction of etcd has room for %d bytes; "+
			"choose that or less", settings.PacketSize, cluster.MaxPacketSize))
	}
	return c, nil
}

// etcdFlags are the flags for an etcd that runs already.
type etcdFlags struct {
	flags         *pflag.FlagSet
	endpoints     []string
	ca, cert, key string
	prefix        string
	ttl, standing time.Duration
}

func (e *etcdFlags) register(flags *pflag.FlagSet) {
	e.flags = flags
	flags.StringSliceVar(&e.endpoints, "etcd", nil,
		"URLs of the members of an etcd that has the data, like https://host:2379, with commas in between")
	flags.StringVar(&e.ca, "etcd-ca", "",
		"file with the authorities to trust for etcd's certificates, in PEM; default: the system's")
	flags.StringVar(&e.cert, "etcd-cert", "", "file with the certificate to show etcd, in PEM")
	flags.StringVar(&e.key, "etcd-key", "", "file with its private key, in PEM")
	flags.StringVar(&e.prefix, "etcd-prefix", cluster.DefaultPrefix,
		"how all keys in etcd begin; stores with different prefixes are independent")
	flags.DurationVar(&e.ttl, "etcd-ttl", cluster.DefaultTTL,
		"how long after the unclean end of the active process another one may take over, in whole seconds")
	flags.DurationVar(&e.standing, "standing", 0,
		"how long the active process may answer after it began to ask etcd whether it still is the active one; "+
			"a process that takes over waits as long; 0: 0.8 of --election-timeout with --member, "+
			"and half of --etcd-ttl with --etcd")
}

// given returns a flag that was given, or an empty string.
func (e *etcdFlags) given() string {
	return changed(e.flags, "etcd-ca", "etcd-cert", "etcd-key", "etcd-prefix", "etcd-ttl")
}

// changed returns the first of some flags that was given, or an empty string.
func changed(flags *pflag.FlagSet, names ...string) string {
	for _, name := range names {
		if flags.Changed(name) {
			return name
		}
	}
	return ""
}

func (e *etcdFlags) check() error {
	if (e.cert == "") != (e.key == "") {
		return errors.New("--etcd-cert and --etcd-key belong together")
	}
	return nil
}

// tls returns the configuration for connections to etcd, or nil if no flag asks for one.
func (e *etcdFlags) tls() (*tls.Config, error) {
	var certificate func() (*tls.Certificate, error)
	if e.cert != "" {
		certificate = func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(e.cert, e.key)
			if err != nil {
				return nil, fmt.Errorf("--etcd-cert, --etcd-key: %w", err)
			}
			return &pair, nil
		}
	}
	return command.ClientTLS("--etcd-ca", e.ca, certificate)
}

// memberFlags are the flags of a member that serve or witness runs.
type memberFlags struct {
	flags         *pflag.FlagSet
	name, cluster string
	join          bool
	ca, cert, key string
	serve         string
	heartbeat     time.Duration
	election      time.Duration
	witness       bool // no flag: the process is one
	maxDatabase   int64
}

func (m *memberFlags) register(flags *pflag.FlagSet) {
	m.flags = flags
	flags.StringVar(&m.name, "member", "", "name of the member of etcd that this process runs, one of --cluster")
	flags.StringVar(&m.cluster, "cluster", "",
		"names and URLs of all members, like a=https://a:2380,b=https://b:2380,c=https://c:2380")
	flags.BoolVar(&m.join, "join", false,
		"the member is new in a cluster that runs already, and the command replace has announced it; for its first start")
	flags.StringVar(&m.ca, "peer-ca", "", "file with the authority that issues the certificates of all members, in PEM")
	flags.StringVar(&m.cert, "peer-cert", "",
		"file with the certificate of this member, for both ends of connections, in PEM")
	flags.StringVar(&m.key, "peer-key", "", "file with its private key, in PEM")
	flags.DurationVar(&m.heartbeat, "heartbeat-interval", member.DefaultHeartbeat,
		"how often etcd's leader shows the other members that it is there; the same for all members")
	flags.DurationVar(&m.election, "election-timeout", member.DefaultElection,
		"how long the members wait for etcd's leader before they elect another; "+
			"several times what a round trip between them and a write to their disks take; the same for all members")
	flags.StringVar(&m.serve, "serve-etcd", "",
		"URL at which the member also serves other processes, such as attached stores, with the certificates of --peer-*")
	m.maxDatabase = member.DefaultMaxDatabase
	command.BytesFlag(flags, &m.maxDatabase, "max-database",
		"how large the database of a member may become before the store refuses what needs more room; "+
			"a member needs the same room on its disk and in memory")
}

// given returns a flag that was given, or an empty string.
func (m *memberFlags) given() string {
	return changed(m.flags, "cluster", "join", "peer-ca", "peer-cert", "peer-key", "serve-etcd",
		"heartbeat-interval", "election-timeout", "max-database")
}

func (m *memberFlags) check() error {
	switch {
	case m.name == "":
		return errors.New("give --member with the name of this member")
	case m.cluster == "":
		return errors.New("--member needs --cluster with the names and URLs of all members: " +
			"a=https://a:2380,b=https://b:2380,c=https://c:2380")
	}
	return nil
}

// options returns the options of the member. dir is the directory above its data.
func (m *memberFlags) options(dir string) member.Options {
	return member.Options{Name: m.name, Cluster: m.cluster, Join: m.join, Dir: dir, ClientURL: m.serve,
		PeerTLS:   member.TLS{CA: m.ca, Certificate: m.cert, Key: m.key},
		Heartbeat: m.heartbeat, Election: m.election, Witness: m.witness, MaxDatabase: m.maxDatabase}
}
