package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/transport"
)

// setFlags are the flags of set.
type setFlags struct {
	keyFlags
	ifMissing, ifMissingOrEqual, persist bool
	lifetime                             time.Duration
}

func setCommand() *cobra.Command {
	var s setFlags
	set := &cobra.Command{
		Use:   "set KEY VALUE",
		Short: "Set a key, and print its new version",
		Long: `Set a key to a value, and print the version that the store gave it. The value
"-" is what standard input has, byte for byte, 64 MiB at most; a newline at its
end is part of it. To set "-" itself, give it there. If the condition of --nx or
--nex is not met, nothing changes and the exit code is 69.

With --fence the key is protected: from then on the store refuses writes without
a token, or with an older one.

` + connectionHelp,
		Example: `set recipe 42
set recipe - < recipe.bin
set jobs/7 "$HOSTNAME" --nx --px 30s     # only if the key is free
set setpoint 21.5 --fence "$TENURE_TOKEN"`,
		Args: twoArguments("the key", "the value, which may be empty; - for standard input"),
		RunE: func(cmd *cobra.Command, arguments []string) error { return s.run(cmd, arguments) },
	}
	explainDashes(set, "a value that begins with a dash", "KEY -- VALUE")
	flags := set.Flags()
	s.register(flags, "VALUE, or standard input, is in hexadecimal digits")
	s.registerFence(flags)
	flags.BoolVar(&s.ifMissing, "nx", false, "set the key only if it does not exist")
	flags.BoolVar(&s.ifMissingOrEqual, "nex", false, "set the key only if it does not exist or holds VALUE already")
	flags.DurationVar(&s.lifetime, "px", 0, "how long the key lives, like 30s; by default it does not expire")
	flags.BoolVar(&s.persist, "persist", false, "ask the store to keep the key on disk (aio-persistence); a store of Tenure treats all keys alike")
	return set
}

func (s *setFlags) run(cmd *cobra.Command, arguments []string) error {
	options := transport.SetOptions{TTL: s.lifetime, Persist: s.persist}
	switch {
	case s.ifMissing && s.ifMissingOrEqual:
		return usage(errors.New("give --nx or --nex, not both"))
	case s.ifMissing:
		options.Condition = transport.IfMissing
	case s.ifMissingOrEqual:
		options.Condition = transport.IfMissingOrEqual
	}
	if cmd.Flags().Changed("px") && (s.lifetime < time.Millisecond || s.lifetime%time.Millisecond != 0) {
		return usage(fmt.Errorf("--px %v must be whole milliseconds, at least one; without it the key does not expire", s.lifetime))
	}
	key, value, token, err := s.arguments(cmd, arguments)
	if err != nil {
		return err
	}
	options.FencingToken = token
	return s.with(cmd, func(ctx context.Context, client *transport.Client) error {
		version, err := client.Set(ctx, key, value, options)
		switch {
		case errors.Is(err, transport.ErrConditionFailed):
			return exitWith(exitMissing, fmt.Errorf("%w (the key has version %s)", err, version))
		case err != nil:
			return err
		case s.asJSON:
			report := reportOf(key)
			report.Version = versionOf(version)
			return output.JSON(cmd.OutOrStdout(), report)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), output.Clean(version.String()))
		return err
	})
}
