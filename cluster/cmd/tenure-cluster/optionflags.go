package main

// optionFlags are the options of packages cluster and member, each followed by its flag, as for
// command.NameFlags. No flag sets MaxOperations and MaxTransactionBytes.
var optionFlags = []string{
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
	", and at most half of Options.Quota", ", and at most half of etcd's own quota",
	"Options.MaxDatabase", "--max-database",
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
	"Options.Standing", "--standing",
	"Options.Heartbeat", "--heartbeat-interval",
	"Options.Election", "--election-timeout",
}
