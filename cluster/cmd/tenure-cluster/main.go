// Command tenure-cluster is the command tenure with etcd inside: serve and attach can share the
// data of a store among several processes, of which one is active (--etcd), and serve can run a
// member of etcd in its own process (--member). A witness is a member alone.
//
// It is a program of its own because etcd makes it twice as large, and so that building tenure
// and its tests does not compile etcd.
package main

import (
	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/command"
)

// optionFlags has the flags of the options of packages cluster and member that have other names than their fields.
var optionFlags = map[string]string{
	"cluster.Endpoints":          "etcd",
	"cluster.TLS":                "etcd-ca or --etcd-cert",
	"cluster.Prefix":             "etcd-prefix",
	"cluster.Address":            "advertise",
	"cluster.TTL":                "etcd-ttl",
	"member.Name":                "member",
	"member.Dir":                 "data",
	"member.PeerTLS":             "peer-ca, --peer-cert and --peer-key",
	"member.PeerTLS.CA":          "peer-ca",
	"member.PeerTLS.Certificate": "peer-cert",
	"member.ClientURL":           "serve-etcd",
	"member.MaxDatabase":         "max-database",
	"member.Election":            "election-timeout",
}

func program() command.Program {
	return command.Program{
		Name: "tenure-cluster", Serve: &replication{member: new(memberFlags)}, Attach: new(replication),
		Commands: []*cobra.Command{witnessCommand(), replaceCommand()}, OptionFlags: optionFlags,
	}
}

func main() { program().Main() }
