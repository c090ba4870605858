package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"
	"unicode"

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
	force, yes, asJSON bool
	reason             string
}

func releaseCommand() *cobra.Command {
	var r releaseFlags
	release := &cobra.Command{
		Use:   "release NAME --force",
		Short: "Take a lease from its holder",
		Long: `Take a lease from the process that holds it. The command shows the holder and
asks, unless --yes says yes. The next process may acquire the lease at once, while
the holder goes on until its next answer of the store, at the latest until its
deadline. Only work that carries its fencing token is refused meanwhile. So stop the
holder first if it can be reached.

If another process has acquired the lease since it was shown, nothing changes, and
the exit code is 69. A store of Tenure logs the release with the client, its user,
its address and the text of --reason.

` + connectionHelp,
		Example: `release press-7/active --force
release press-7/active --force --yes --reason "gateway-a lost its disk"`,
		Args: exactly("the name of the lease"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if !r.force {
				return usage(errors.New("release takes a lease from a process that may be working: give --force"))
			}
			if !r.yes && !output.IsTerminal(cmd.InOrStdin()) {
				return usage(errors.New("standard input is no terminal to ask at: give --yes"))
			}
			return r.with(cmd, func(ctx context.Context, client *transport.Client) error {
				return r.run(ctx, cmd, client, arguments[0])
			})
		},
	}
	flags := release.Flags()
	r.connection.register(flags)
	flags.BoolVar(&r.force, "force", false, "say that the lease is to be taken from its holder")
	flags.BoolVar(&r.yes, "yes", false, "do not ask")
	flags.StringVar(&r.reason, "reason", "", "why, for the log of the store; default: the user and the host of this command")
	flags.BoolVar(&r.asJSON, "json", false, "print the holder that had the lease as JSON")
	settings.CommandLineOnly(flags, "force", "yes", "reason")
	return release
}

// run shows the holder of a lease, asks, and deletes what was shown.
func (r *releaseFlags) run(ctx context.Context, cmd *cobra.Command, client *transport.Client, name string) error {
	l, err := lease.New(client, name, lease.Options{})
	if err != nil {
		return err
	}
	holder, err := l.Holder(ctx)
	if err != nil {
		return err
	}
	if !holder.Held {
		return exitWith(exitMissing, fmt.Errorf("no process holds %q", name))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), `%q is held by %q (value %q, last renewed %s).
Its tenure ends with "%v", as soon as it notices.
Another process may acquire the lease at once. Only work that carries its fencing token is refused meanwhile.
`, name, holder.Name, holder.Value, renewed(holder), lease.ErrDeleted)
	if !r.yes {
		if err := confirm(ctx, cmd, fmt.Sprintf("Take the lease from %q? [y/N] ", holder.Name)); err != nil {
			return err
		}
	}
	deleted, err := client.VDel(ctx, name, []byte(holder.Value), transport.DelOptions{Forced: cmp.Or(forcedText(r.reason), forcedText(requester()))})
	switch {
	case errors.Is(err, transport.ErrConditionFailed):
		return exitWith(exitMissing, fmt.Errorf("%q has another holder since; nothing was released", name))
	case errors.Is(err, transport.ErrLockRule):
		return fmt.Errorf("%q is under a --lock-prefix of a strict store, which lets only the holder release it; stop the holder, and the lease ends with its TTL (%w)", name, err)
	case err != nil:
		return err
	case !deleted:
		return exitWith(exitMissing, fmt.Errorf("%q is free already: the holder released it, or it expired", name))
	case r.asJSON:
		return output.JSON(cmd.OutOrStdout(), reportHolder(name, holder))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "released %s, which %s held\n", output.Clean(name), output.Clean(holder.Name))
	return err
}

// renewed says when a lease was renewed last, by the clock of the store.
func renewed(holder lease.Holder) string {
	if holder.Version.IsZero() {
		return "at an unknown time"
	}
	return "at " + time.UnixMilli(holder.Version.Wall).Format(timeLayout)
}

// requester is the user and the host of this process.
func requester() string {
	name := cmp.Or(os.Getenv("USER"), os.Getenv("USERNAME"), "an unknown user")
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return "tenure release, by " + name + " on " + host
}

// forcedText returns text as transport.DelOptions.Forced accepts it.
func forcedText(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	return strings.ToValidUTF8(text[:min(len(text), protocol.MaxForced)], "") // without half a character
}

// confirm asks on standard error, and reads a line. The error says that the answer was not yes.
func confirm(ctx context.Context, cmd *cobra.Command, question string) error {
	fmt.Fprint(cmd.ErrOrStderr(), question)
	answer, err := fromInput(ctx, func() ([]byte, error) { return readLine(cmd.InOrStdin()) }) // an end without an answer is no
	if err != nil {
		fmt.Fprintln(cmd.ErrOrStderr())
		return err
	}
	switch strings.ToLower(strings.TrimSpace(string(answer))) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was released")
}
