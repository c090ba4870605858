package command

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// releaseFlags are the flags of release.
type releaseFlags struct {
	connection
	yes    bool
	reason string
}

func releaseCommand() *cobra.Command {
	var r releaseFlags
	release := clientCommand(&cobra.Command{
		Use:   "release NAME",
		Short: "Take a lease from its holder",
		Long: `Take a lease from its holder, after showing it and asking. The holder goes on until it
notices: stop it first if it can be reached.`,
		Example: `release press-7/active --reason "gateway-a lost its disk"`,
	}, &r.connection, r.run)
	release.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case !r.yes && !output.IsTerminal(cmd.InOrStdin()):
			return usagef("standard input is no terminal to ask at: give --yes")
		case len(output.Clean(r.reason)) > protocol.MaxForced:
			return usagef("--reason is longer than %d bytes", protocol.MaxForced)
		}
		return nil
	}
	flags := release.Flags()
	flags.BoolVar(&r.yes, "yes", false, "do not ask")
	flags.StringVar(&r.reason, "reason", "", "why, for the log of the store")
	settings.CommandLineOnly(flags, "yes", "reason")
	return release
}

// run shows the holder of a lease, asks, and deletes what was shown.
func (r *releaseFlags) run(cmd *cobra.Command, client *transport.Client, arguments []string) error {
	ctx, name := cmd.Context(), arguments[0]
	l, err := lease.New(client, name, lease.Options{})
	if err != nil {
		return err
	}
	holder, err := l.Holder(ctx)
	switch {
	case err != nil:
		return err
	case !holder.Held:
		return exitWith(exitMissing, fmt.Errorf("no process holds %q", name))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), `%q is held by %q (value %q, last renewed at %s).
Its tenure ends with "%v", as soon as it notices.
Another process may acquire the lease at once. Only work that carries its fencing token is refused meanwhile.
`, name, holder.Name, holder.Value, time.UnixMilli(holder.Version.Wall).Format(timeLayout), lease.ErrDeleted)
	if !r.yes {
		fmt.Fprintf(cmd.ErrOrStderr(), "Take the lease from %q? [y/N] ", holder.Name)
		answer, err := readLine(cmd) // an end without an answer is no
		if err != nil {
			return err
		}
		if text := strings.ToLower(strings.TrimSpace(string(answer))); text != "y" && text != "yes" {
			return errors.New("nothing was released")
		}
	}
	options := transport.DelOptions{Forced: output.Clean(cmp.Or(r.reason, "tenure release"))}
	deleted, err := client.VDel(ctx, name, []byte(holder.Value), options)
	switch {
	case errors.Is(err, transport.ErrConditionFailed), err == nil && !deleted:
		return exitWith(exitMissing, fmt.Errorf("%q has another holder since, or none; nothing was released", name))
	case errors.Is(err, transport.ErrLockRule):
		return fmt.Errorf("%q is under a --lock-prefix of a strict store, which lets only the holder release it; "+
			"stop the holder, and the lease ends with its TTL (%w)", name, err)
	case err != nil:
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "released %s, which %s held\n", output.Clean(name), output.Clean(holder.Name))
	return err
}
