package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// flagNames has the options of packages cluster and member as their errors name them, each
// followed by the flag that sets it. Where one begins another, the longer one comes first. No flag
// sets MaxOperations and MaxTransactionBytes.
var flagNames = []string{
	", or lower Options.MaxOperations", "",
	", or lower Options.MaxTransactionBytes", "",
	"lower the server's MaxPacketSize, or raise Options.MaxTransactionBytes and --max-request-bytes of etcd", "lower --max-packet-size",
	"Options.PeerTLS.CA", "--peer-ca",
	"Options.PeerTLS.Certificate", "--peer-cert",
	"Options.PeerTLS.Key", "--peer-key",
	"Options.PeerTLS", "--peer-ca, --peer-cert and --peer-key",
	"Options.ClientTLS.CA", "--peer-ca",
	"Options.ClientTLS.Certificate", "--peer-cert",
	"Options.ClientTLS.Key", "--peer-key",
	"Options.ClientTLS", "--peer-ca, --peer-cert and --peer-key",
	"Options.ClientURL", "--serve-etcd",
	"Options.Cluster", "--cluster",
	"Options.Name", "--member",
	"Options.Join", "--join",
	"Options.Dir", "--data",
	"Options.Endpoints", "--etcd",
	"Options.TLS", "--etcd-ca or --etcd-cert",
	"Options.Prefix", "--etcd-prefix",
	"Options.Address", "--advertise",
	"Options.TTL", "--etcd-ttl",
}

var toFlags = strings.NewReplacer(flagNames...)

// flagError is an error that names flags where its cause names options of a package.
type flagError struct {
	error
	text string
}

// Error returns the text with flags.
func (e *flagError) Error() string { return e.text }

// Unwrap returns the cause.
func (e *flagError) Unwrap() error { return e.error }

// nameFlags makes the errors of the commands below root name flags.
func nameFlags(root *cobra.Command) {
	for _, command := range root.Commands() {
		run := command.RunE
		command.RunE = func(cmd *cobra.Command, arguments []string) error {
			err := run(cmd, arguments)
			if err == nil {
				return nil
			}
			return &flagError{err, toFlags.Replace(err.Error())}
		}
	}
}
