package command

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/statestore"
)

// storeFlags are the flags that serve and attach share: the rules, the limits and the data of the store.
type storeFlags struct {
	statestore.Options
	dialect string
	data    dataFlags
}

const strictHelp = `--strict closes gaps that the protocol leaves open: the fence of a protected
key survives its deletion and expiry, a fencing token above every version that
was issued is refused, and keys under a --lock-prefix need an expiry and a
value that is the client id, a colon and a text without a colon.`

// dialects are the names of the dialects, in the order of their values; the first one is the default.
var dialects = []string{statestore.Auto.String(), statestore.Deployed.String(), statestore.Documented.String()}

// register adds the flags. noLimit is what the zero of --max-keys and --max-bytes means; folder is
// where the data is by default, in the user's directory for state.
func (s *storeFlags) register(flags *pflag.FlagSet, noLimit, folder string) {
	s.data.register(flags, folder)
	s.dialect = dialects[0]
	flags.BoolVar(&s.Strict, "strict", false, "refuse requests that weaken fences, see above")
	flags.StringSliceVar(&s.LockPrefixes, "lock-prefix", nil, "prefix of the keys that are locks, with --strict; may be repeated")
	flags.DurationVar(&s.HoldOff, "hold-off", 0, "how long a store that starts without data, or from a restored backup, grants no lease, so that leases of the previous store expire first; give it the longest TTL in use")
	flags.IntVar(&s.MaxKeys, "max-keys", 0, "how many keys the store may hold; 0 means "+noLimit)
	settings.Bytes(flags, &s.MaxBytes, "max-bytes", "how many bytes keys, values and fencing tokens may have together; 0 means "+noLimit)
	flags.IntVar(&s.MaxValue, "max-value", 0, "how many bytes a value may have; 0 means only the limit of packets applies")
	flags.IntVar(&s.MaxWatches, "max-watches", 10_000, "how many keys a client may watch")
	flags.IntVar(&s.DedupWindow, "dedup-window", statestore.DefaultDedupWindow, "how many of its last requests are kept for each client, so that none is applied twice")
	settings.Choice(flags, &s.dialect, "dialect", dialects, "how to write replies where deployed stores differ from their documentation; auto: as each client does")
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
	const forgets = "the store is in memory: a restart forgets every key, lease and fence"
	switch {
	case !s.data.memory:
	case s.HoldOff > 0:
		logger.Warn(forgets+"; it grants no lease during the hold-off", "hold-off", s.HoldOff)
	default:
		logger.Warn(forgets + ", and may then grant a lease before its previous holder has stopped; " +
			"--hold-off with the longest TTL in use prevents that, and so does --data")
	}
}
