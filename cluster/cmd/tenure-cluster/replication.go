package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

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
serve --member a --cluster a=https://a:2380,b=https://b:2380,c=https://c:2380 ` +
		"--peer-ca ca.pem --peer-cert a.pem --peer-key a.key"
	r.member.register(cmd.Flags())
}

// Chosen implements command.Replication.
func (r *replication) Chosen() (bool, error) {
	withMember, withEtcd := r.KeepsData(), len(r.etcd.Endpoints) > 0
	ofMember, ofEtcd := "", given(r.etcd.flags)
	if r.member != nil {
		ofMember = given(r.member.flags)
	}
	switch {
	case withMember && withEtcd:
		return false, errors.New("--etcd uses an etcd that runs already, and --member runs one; give one of them")
	case !withMember && ofMember != "":
		return false, fmt.Errorf("--%s needs --member with the name of the member", ofMember)
	case !withEtcd && ofEtcd != "":
		return false, fmt.Errorf("--%s needs --etcd with the URLs of etcd", ofEtcd)
	case withEtcd && (r.etcd.cert == "") != (r.etcd.key == ""):
		return false, errors.New("--etcd-cert and --etcd-key belong together")
	}
	return withMember || withEtcd, nil
}

// KeepsData implements command.Replication.
func (r *replication) KeepsData() bool { return r.member != nil && r.member.Name != "" }

// Start implements command.Replication.
func (r *replication) Start(_ context.Context, settings command.ReplicaSettings) (command.Candidate, error) {
	if settings.PacketSize > cluster.MaxPacketSize {
		return nil, command.Usage(fmt.Errorf("--max-packet-size %d: a transaction of etcd has space for %d bytes; "+
			"choose that or less", settings.PacketSize, cluster.MaxPacketSize))
	}
	c := &candidate{logger: settings.Logger, options: r.etcd.Options}
	c.options.Address, c.options.Logger = settings.Address, settings.Logger
	if !r.KeepsData() {
		config, err := r.etcd.tls()
		if err != nil {
			return nil, command.Usage(err) // a file that a flag names
		}
		c.options.TLS = config
		c.where = fmt.Sprintf("etcd at %s below %s", strings.Join(c.options.Endpoints, ","), c.options.Prefix)
		return c, nil
	}
	m, where, err := r.member.start(settings.Dir, settings.Logger, settings.Flush)
	if err != nil {
		return nil, err
	}
	c.member, c.where, c.options = m, where, m.Configure(c.options)
	c.tasks.Go(func() {
		<-m.Done()
		if err := m.Err(); err != nil {
			settings.Fail(err)
		}
	})
	return c, nil
}

// given returns a flag of a set that was given, or an empty string.
func given(flags *pflag.FlagSet) (name string) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			name = flag.Name
		}
	})
	return name
}

// etcdFlags are the flags for an etcd that runs already.
type etcdFlags struct {
	cluster.Options
	flags         *pflag.FlagSet // but --etcd
	ca, cert, key string
}

func (e *etcdFlags) register(all *pflag.FlagSet) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.StringVar(&e.ca, "etcd-ca", "",
		"file with the authorities to trust for etcd's certificates, in PEM; default: the system's")
	flags.StringVar(&e.cert, "etcd-cert", "", "file with the certificate to show etcd, in PEM")
	flags.StringVar(&e.key, "etcd-key", "", "file with its private key, in PEM")
	flags.StringVar(&e.Prefix, "etcd-prefix", cluster.DefaultPrefix,
		"how all keys in etcd begin; stores with different prefixes are independent")
	flags.DurationVar(&e.TTL, "etcd-ttl", cluster.DefaultTTL,
		"how long after the unclean end of the active process another one may take over, in whole seconds")
	e.flags = flags
	all.AddFlagSet(flags)
	all.StringSliceVar(&e.Endpoints, "etcd", nil,
		"URLs of the members of an etcd that has the data, like https://host:2379, with commas in between")
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
	member.Options
	flags *pflag.FlagSet // but --member
}

func (m *memberFlags) register(all *pflag.FlagSet) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.StringVar(&m.Cluster, "cluster", "",
		"names and URLs of all members, like a=https://a:2380,b=https://b:2380,c=https://c:2380")
	flags.BoolVar(&m.Join, "join", false,
		"the member is new in a cluster that runs already, and the command replace has announced it; for its first start")
	flags.StringVar(&m.PeerTLS.CA, "peer-ca", "",
		"file with the authority that issues the certificates of all members, in PEM")
	flags.StringVar(&m.PeerTLS.Certificate, "peer-cert", "",
		"file with the certificate of this member, for both ends of connections, in PEM")
	flags.StringVar(&m.PeerTLS.Key, "peer-key", "", "file with its private key, in PEM")
	flags.DurationVar(&m.Election, "election-timeout", member.DefaultElection,
		"how long the members wait for etcd's leader before they elect another; several times what a round trip between "+
			"them and a write to their disks take; the same for all members")
	flags.StringVar(&m.ClientURL, "serve-etcd", "",
		"URL at which the member also serves other processes, such as attached stores, with the certificates of --peer-*")
	m.MaxDatabase = member.DefaultMaxDatabase
	command.BytesFlag(flags, &m.MaxDatabase, "max-database",
		"how large the database of a member may become before the store refuses what needs more space; "+
			"a member needs the same space on its disk and in memory")
	m.flags = flags
	all.AddFlagSet(flags)
	all.StringVar(&m.Name, "member", "", "name of the member of etcd that this process runs, one of --cluster")
}
