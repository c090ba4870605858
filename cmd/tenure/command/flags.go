package command

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/statestore"
)

// storeFlags are the flags that serve and attach share: the rules and limits of the store,
// and how much is logged.
type storeFlags struct {
	statestore.Options
	dialect dialect
	data    dataFlags
	verbose bool
}

const strictHelp = `--strict closes gaps that the protocol leaves open: the fence of a protected
key survives its deletion and expiry, a fencing token that was never issued is
refused, and keys under a --lock-prefix need an expiry and a value that begins
with the client id and a colon.`

// register adds the flags. noLimit is what the zero of --max-keys and --max-bytes means; folder is
// where the data is by default, in the user's directory for state.
func (s *storeFlags) register(flags *pflag.FlagSet, noLimit, folder string) {
	s.data.register(flags, folder)
	flags.BoolVar(&s.Strict, "strict", false, "refuse requests that weaken fences, see above")
	flags.StringSliceVar(&s.LockPrefixes, "lock-prefix", nil, "prefix of the keys that are locks, with --strict; may be repeated")
	flags.DurationVar(&s.HoldOff, "hold-off", 0, "how long a store that starts without data, or from a restored backup, grants no lease, so that leases of the previous store expire first; give it the longest TTL in use")
	flags.IntVar(&s.MaxKeys, "max-keys", 0, "how many keys the store may hold; 0 means "+noLimit)
	byteSizeFlag(flags, &s.MaxBytes, "max-bytes", "how many bytes keys and values may have together; 0 means "+noLimit)
	flags.IntVar(&s.MaxValue, "max-value", 0, "how many bytes a value may have; 0 means only the limit of packets applies")
	flags.IntVar(&s.MaxWatches, "max-watches", 10_000, "how many keys a client may watch")
	flags.IntVar(&s.DedupWindow, "dedup-window", statestore.DefaultDedupWindow, "how many of its last requests are kept for each client, so that none is applied twice")
	flags.Var(&s.dialect, "dialect", "how to write replies where deployed stores differ from their documentation: deployed or documented")
	flags.BoolVar(&s.verbose, "verbose", false, "log every request and connection")
}

// check refuses values that no flag type refuses.
func (s *storeFlags) check() error {
	if s.HoldOff < 0 {
		return fmt.Errorf("--hold-off %v is negative; 0 means none", s.HoldOff)
	}
	if len(s.LockPrefixes) > 0 && !s.Strict {
		return errors.New("--lock-prefix needs --strict")
	}
	return s.data.check()
}

// warnOfMemory logs what a store does not promise, if it is in memory.
func (s *storeFlags) warnOfMemory(logger *slog.Logger) {
	if !s.data.memory {
		return
	}
	if s.HoldOff > 0 {
		logger.Warn("the store is in memory: a restart forgets every key, lease and fence; it grants no lease during the hold-off",
			"hold-off", s.HoldOff)
		return
	}
	logger.Warn("the store is in memory: a restart forgets every key, lease and fence, and may then grant a lease " +
		"before its previous holder has stopped; --hold-off with the longest TTL in use prevents that, and so does --data")
}

// A dialect is a flag for a statestore.Dialect.
type dialect statestore.Dialect

var _ pflag.Value = (*dialect)(nil)

// Set takes the name of a dialect.
func (d *dialect) Set(name string) error {
	switch name {
	case "deployed":
		*d = dialect(statestore.Deployed)
	case "documented":
		*d = dialect(statestore.Documented)
	default:
		return errors.New("choose deployed or documented")
	}
	return nil
}

// String returns the name of the dialect.
func (d *dialect) String() string {
	if statestore.Dialect(*d) == statestore.Documented {
		return "documented"
	}
	return "deployed"
}

// Type is the kind of value in --help.
func (d *dialect) Type() string { return "name" }

// explainFlags makes the errors of a command say where a flag belongs that another command
// takes, or that moved. replication is what the command was given, or nil.
func explainFlags(cmd *cobra.Command, replication Replication, explain func(name string) string) {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if !errors.As(err, &unknown) {
			return err
		}
		explanation := ""
		switch name := unknown.GetSpecifiedName(); {
		case name == "remembered":
			explanation = "it is --dedup-window now"
		case slices.Contains(replicatedFlags, name) && replication == nil:
			explanation = hasReplicated
		case slices.Contains(replicatedFlags, name):
			explanation = "it belongs to tenure serve: attach runs neither a broker nor a member of etcd"
		default:
			explanation = explain(name)
		}
		if explanation == "" {
			return err
		}
		return fmt.Errorf("%w; %s", err, explanation)
	})
}

// attachFlags gives the flags of attach that replace those that serve had.
var attachFlags = map[string]string{
	"attach-user": "--username", "attach-password-file": "--password-file", "attach-ca": "--tls-ca",
	"attach-cert": "--tls-cert", "attach-key": "--tls-key", "attach-probe": "--probe-messages",
}

// replicatedFlags are the flags of serve and attach that only tenure-cluster has.
var replicatedFlags = []string{"etcd", "etcd-ca", "etcd-cert", "etcd-key", "etcd-prefix", "etcd-ttl", "advertise",
	"member", "cluster", "join", "peer-ca", "peer-cert", "peer-key", "serve-etcd"}

// hasReplicated is what to say about replicatedFlags.
const hasReplicated = "the command tenure-cluster has it, which is tenure with etcd inside; docs/pair.md says how to build it"

// explainServeFlag explains why serve does not know a flag.
func explainServeFlag(name string) string {
	switch now := attachFlags[name]; {
	case name == "attach":
		return "attach is a command of its own: tenure attach URL"
	case now != "":
		return "tenure attach URL has it, as " + now
	case attachCommand(nil).Flags().Lookup(name) != nil:
		return "it belongs to tenure attach URL"
	}
	return ""
}

// explainAttachFlag explains why attach does not know a flag.
func explainAttachFlag(name string) string {
	switch now := attachFlags[name]; {
	case name == "attach":
		return "give the URL alone: tenure attach URL"
	case now != "":
		return "it is " + now + " now"
	case serveCommand(nil).Flags().Lookup(name) != nil:
		return "it belongs to the broker of tenure serve, and attach runs none; configure the broker at the URL instead"
	}
	return ""
}

// oneURL accepts one argument, the URL of a broker.
func oneURL(_ *cobra.Command, arguments []string) error {
	switch len(arguments) {
	case 0:
		return errors.New("give the URL of the broker, like mqtt://localhost:1883")
	case 1:
		return nil
	}
	return fmt.Errorf("give one URL, not %d arguments: one store serves one broker", len(arguments))
}
