package command

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/flagvalue"
	"github.com/tenurelock/tenure/statestore"
)

// storeFlags are the flags that serve and attach share: the rules and limits of the store.
type storeFlags struct {
	statestore.Options
	dialect string
	data    dataFlags
}

const strictHelp = `--strict closes gaps that the protocol leaves open: the fence of a protected
key survives its deletion and expiry, a fencing token above every version that
was issued is refused, and keys under a --lock-prefix need an expiry and a
value that is the client id, a colon and a text without a colon.`

// register adds the flags. noLimit is what the zero of --max-keys and --max-bytes means; folder is
// where the data is by default, in the user's directory for state.
func (s *storeFlags) register(flags *pflag.FlagSet, noLimit, folder string) {
	s.data.register(flags, folder)
	flags.BoolVar(&s.Strict, "strict", false, "refuse requests that weaken fences, see above")
	flags.StringSliceVar(&s.LockPrefixes, "lock-prefix", nil, "prefix of the keys that are locks, with --strict; may be repeated")
	flags.DurationVar(&s.HoldOff, "hold-off", 0, "how long a store that starts without data, or from a restored backup, grants no lease, so that leases of the previous store expire first; give it the longest TTL in use")
	flags.IntVar(&s.MaxKeys, "max-keys", 0, "how many keys the store may hold; 0 means "+noLimit)
	flagvalue.Bytes(flags, &s.MaxBytes, "max-bytes", "how many bytes keys, values and fencing tokens may have together; 0 means "+noLimit)
	flags.IntVar(&s.MaxValue, "max-value", 0, "how many bytes a value may have; 0 means only the limit of packets applies")
	flags.IntVar(&s.MaxWatches, "max-watches", 10_000, "how many keys a client may watch")
	flags.IntVar(&s.DedupWindow, "dedup-window", statestore.DefaultDedupWindow, "how many of its last requests are kept for each client, so that none is applied twice")
	flagvalue.Choice(flags, &s.dialect, "dialect", dialects, "how to write replies where deployed stores differ from their documentation; auto: as each client does")
}

// check refuses values that no flag type refuses.
func (s *storeFlags) check() error {
	if s.HoldOff < 0 {
		return usage(fmt.Errorf("--hold-off %v is negative; 0 means none", s.HoldOff))
	}
	for name, value := range map[string]int{"max-keys": s.MaxKeys, "max-value": s.MaxValue, "max-watches": s.MaxWatches} {
		if value < 0 {
			return usage(fmt.Errorf("--%s %d is negative; 0 means no limit", name, value))
		}
	}
	if len(s.LockPrefixes) > 0 && !s.Strict {
		return usage(errors.New("--lock-prefix needs --strict"))
	}
	return usage(s.data.check())
}

// options returns what the flags say.
func (s *storeFlags) options() statestore.Options {
	options := s.Options
	options.Dialect = statestore.Dialect(slices.Index(dialects, s.dialect))
	return options
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

// dialects are the names of the dialects, in the order of their values; the first one is the default.
var dialects = []string{statestore.Auto.String(), statestore.Deployed.String(), statestore.Documented.String()}

// afterDashes says, for commands of which an argument may begin with a dash, where that goes.
var afterDashes = map[string]string{
	"run":  "the child's own flags go after --: tenure run NAME -- COMMAND",
	"lock": "the child's own flags go after --: tenure lock NAME -- COMMAND",
	"set":  "a value that begins with a dash goes after --: tenure set KEY -- VALUE",
	"vdel": "a value that begins with a dash goes after --: tenure vdel KEY -- VALUE",
}

// explainDashes makes the errors of a command say what goes after --.
func explainDashes(cmd *cobra.Command, hint string) {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			return fmt.Errorf("%w; %s", err, hint)
		}
		return err
	})
}

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
	"attach-cert": "--tls-cert", "attach-key": "--tls-key",
}

// replicatedFlags are the flags of serve and attach that only tenure-cluster has.
var replicatedFlags = []string{"etcd", "etcd-ca", "etcd-cert", "etcd-key", "etcd-prefix", "etcd-ttl", "standing", "advertise",
	"member", "cluster", "join", "peer-ca", "peer-cert", "peer-key", "serve-etcd", "heartbeat-interval", "election-timeout", "max-database"}

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

// oneURL accepts one argument at most, the URL of a broker.
func oneURL(_ *cobra.Command, arguments []string) error {
	if len(arguments) > 1 {
		return fmt.Errorf("give one URL, not %d arguments: one store serves one broker", len(arguments))
	}
	return nil
}

// optionFlags are the options that packages server, attach, load and transport may refuse, each followed
// by its flag, as for NameFlags. The last two have options of which tenure-cluster has others by the same
// name, so their pairs begin with the package. Other flags of limits refuse what makes no sense
// themselves.
var optionFlags = []string{
	"Options.MaxMemory", "--max-memory",
	"Options.MaxClients", "--max-clients",
	"Options.MaxPacketSize", "--max-packet-size",
	"Options.PacketTimeout", "--packet-timeout",
	"Options.PasswordChecks", "--password-checks",
	"Options.MaxUnauthenticatedPerAddress", "--max-unauthenticated-per-address",
	"Options.MaxUnauthenticated", "--max-unauthenticated",
	"Options.Store.DedupWindow", "--dedup-window",
	"Options.Limits.SessionMessages", "--max-session-messages",
	"Options.Limits.Subscriptions", "--max-subscriptions",
	"Options.Limits.SessionsPerUser", "--max-sessions-per-user",
	"Options.Limits.RetainedMessages", "--max-retained",
	"transport: Options.ClientID", "--client-id",
	"transport: Options.PasswordFile", "--password-file",
	"transport: Options.TLS needs CertFile and KeyFile together: set both or neither", "--tls-cert and --tls-key belong together: give both or neither",
	"transport: Options.TLS is set", "flags of TLS are given",
	"attach: Options.TLS is set", "flags of TLS are given",
	"transport: Options.TLS.CAFile", "--tls-ca",
	"transport: Options.TLS.CertFile", "--tls-cert",
	"transport: Options.TLS.KeyFile", "--tls-key",
}

// NameFlags makes the errors of the commands below root name flags in place of the options of
// packages. optionFlags has the options as errors name them, each followed by the flag that sets
// it; where one begins another, the longer one comes first.
func NameFlags(root *cobra.Command, optionFlags ...string) {
	replacer := strings.NewReplacer(optionFlags...)
	for _, command := range root.Commands() {
		run := command.RunE
		if run == nil {
			continue // a topic of help
		}
		command.RunE = func(cmd *cobra.Command, arguments []string) error {
			err := run(cmd, arguments)
			if err == nil {
				return nil
			}
			text := err.Error()
			if named := replacer.Replace(text); named != text {
				return usage(&flagError{err, named}) // a package refuses what a flag says
			}
			return err
		}
	}
}

// flagError is an error that names flags where its cause names options of a package.
type flagError struct {
	error
	text string
}

// Error returns the text with flags.
func (e *flagError) Error() string { return e.text }

// Unwrap returns the cause.
func (e *flagError) Unwrap() error { return e.error }
