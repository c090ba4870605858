package command

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// A holderReport is what holder and leader print as JSON.
type holderReport struct {
	Time    string `json:"time,omitempty"` // of --watch
	Name    string `json:"name"`
	Held    bool   `json:"held"`
	Holder  string `json:"holder,omitempty"`
	Value   string `json:"value,omitempty"`
	Version string `json:"version,omitempty"`
}

func reportHolder(name string, holder lease.Holder) holderReport {
	return holderReport{Name: name, Held: holder.Held, Holder: holder.Name, Value: holder.Value, Version: versionOf(holder.Version)}
}

// holderFlags are the flags of holder and leader.
type holderFlags struct {
	connection
	asJSON bool
}

func (h *holderFlags) register(flags *pflag.FlagSet) {
	h.connection.register(flags)
	flags.BoolVar(&h.asJSON, "json", false, "print JSON")
}

func holderCommand() *cobra.Command {
	var h holderFlags
	holder := &cobra.Command{
		Use:   "holder NAME",
		Short: "Print which holder a lease has",
		Long: `Print the name of the holder that a lease has at this moment. By default that is
the MQTT client id of the process that acquired it. If no process holds it, the
exit code is 69.

` + connectionHelp,
		Example: `  tenure holder press-7/active
  tenure holder press-7/active --json | jq -r .version`,
		Args: exactly("the name of the lease"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return h.with(cmd, arguments[0], func(ctx context.Context, l *lease.Lease) error {
				return h.print(ctx, cmd, l)
			})
		},
	}
	h.register(holder.Flags())
	return holder
}

func leaderCommand() *cobra.Command {
	var h holderFlags
	var watch bool
	leader := &cobra.Command{
		Use:   "leader NAME",
		Short: "Print which candidate leads, and with --watch each change",
		Long: `Print the name of the candidate that leads in an election, which is the holder
of the lease with that name. If none leads, the exit code is 69.

With --watch it prints a line with the time and the leader, and another at each
change, until SIGINT or SIGTERM; "none" means that none leads. A new term of the
same leader is a change. While the store does not answer, the log says so.

` + connectionHelp,
		Example: `  tenure leader press-7/active
  tenure leader press-7/active --watch
  tenure leader press-7/active --watch --json | jq --unbuffered -r .holder`,
		Args: exactly("the name of the election"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return h.with(cmd, arguments[0], func(ctx context.Context, l *lease.Lease) error {
				if watch {
					return h.watch(ctx, cmd, l)
				}
				return h.print(ctx, cmd, l)
			})
		},
	}
	h.register(leader.Flags())
	leader.Flags().BoolVar(&watch, "watch", false, "go on, and print each change")
	return leader
}

// with connects, and calls do with the lease of this name.
func (h *holderFlags) with(cmd *cobra.Command, name string, do func(context.Context, *lease.Lease) error) error {
	return h.connection.with(cmd, func(ctx context.Context, client *transport.Client) error {
		l, err := lease.New(client, name, lease.Options{})
		if err != nil {
			return err
		}
		return do(ctx, l)
	})
}

// print prints the present holder.
func (h *holderFlags) print(ctx context.Context, cmd *cobra.Command, l *lease.Lease) error {
	holder, err := l.Holder(ctx)
	if err != nil {
		return err
	}
	switch {
	case h.asJSON:
		if err := printJSON(cmd.OutOrStdout(), reportHolder(l.Name(), holder)); err != nil {
			return err
		}
		if !holder.Held {
			return exitWith(exitMissing, nil)
		}
		return nil
	case !holder.Held:
		return exitWith(exitMissing, fmt.Errorf("no process holds %q", l.Name()))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), holder.Name)
	return err
}

// watch prints each change until ctx ends.
func (h *holderFlags) watch(ctx context.Context, cmd *cobra.Command, l *lease.Lease) error {
	if _, err := l.Holder(ctx); err != nil {
		return err // Observe would wait for a store that is not there
	}
	for holder, err := range l.Observe(ctx) {
		if err != nil {
			if errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionTakenOver) {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: the leader is not known: %v\n", cmd.Root().Name(), err)
			continue
		}
		if err := h.printChange(cmd.OutOrStdout(), l.Name(), holder); err != nil {
			return err
		}
	}
	return nil
}

func (h *holderFlags) printChange(w io.Writer, name string, holder lease.Holder) error {
	now := time.Now().Format(timeLayout)
	if h.asJSON {
		report := reportHolder(name, holder)
		report.Time = now
		return printJSON(w, report)
	}
	_, err := fmt.Fprintln(w, now, holder) // "none" if the lease is free
	return err
}

// leaseFlags are the flags for the durations of a lease.
type leaseFlags struct{ lease.Options }

// leaseOptionFlags are the options that package lease may refuse, each followed by its flag.
var leaseOptionFlags = []string{
	"RequestTimeout", "--request-timeout",
	"RenewEvery", "--renew-every",
	"RetryAfter", "--retry-after",
	"AcquireDelay", "--acquire-delay",
	"GracePeriod", "--grace",
	"Margin", "--margin",
	"Jitter", "--jitter",
	"TTL", "--ttl",
}

func (l *leaseFlags) register(flags *pflag.FlagSet) {
	flags.DurationVar(&l.TTL, "ttl", 0, "how long the store keeps the lease after the last renewal; 0 means 10s")
	flags.DurationVar(&l.RenewEvery, "renew-every", 0, "time between two renewals; 0 means a third of --ttl")
	flags.DurationVar(&l.RequestTimeout, "request-timeout", 0, "how long a renewal waits for its answer; 0 means a sixth of --ttl")
	flags.DurationVar(&l.RetryAfter, "retry-after", 0, "pause after the first failed attempt; 0 means a fiftieth of --ttl")
	flags.DurationVar(&l.GracePeriod, "grace", 0, "how long before its deadline the holder is told to stop; 0 means a tenth of --ttl")
	flags.DurationVar(&l.Margin, "margin", 0, "how much earlier than the store the holder considers the lease over; 0 means a tenth of --ttl")
	flags.DurationVar(&l.Jitter, "jitter", 0, "longest random delay of a process that waits for the lease; 0 means a tenth of --ttl")
	flags.DurationVar(&l.AcquireDelay, "acquire-delay", 0, "how long a process that waits lets others go first")
}

func budgetCommand() *cobra.Command {
	var l leaseFlags
	var asJSON bool
	budget := &cobra.Command{
		Use:   "budget",
		Short: "Work out what the durations of a lease mean when something fails",
		Long: `Print what a TTL and the other durations of a lease mean: how long, at worst, a
lease has no holder after a crash, a lost network or a hand-over, and how many
renewals may go unanswered. It needs no broker. It supposes a store that answers
and at least one process that waits; a round trip comes on top.

Durations that contradict each other are refused, with the sum.`,
		Example: `  tenure budget --ttl 2s
  tenure budget --ttl 10s --grace 3s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := l.Budget()
			if err != nil {
				return usage(errors.New(strings.NewReplacer(leaseOptionFlags...).Replace(strings.TrimPrefix(err.Error(), "lease: "))))
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), budgetReport{
					milliseconds(b.TTL), milliseconds(b.Crash), milliseconds(b.CutOff), milliseconds(b.Unheld),
					milliseconds(b.HandOver), milliseconds(b.HandOverUnheard), max(b.Renewals-1, 0),
				})
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), b)
			return err
		},
	}
	l.register(budget.Flags())
	budget.Flags().BoolVar(&asJSON, "json", false, "print JSON, with durations in milliseconds")
	return budget
}

// A budgetReport is what budget prints as JSON.
type budgetReport struct {
	TTL                float64 `json:"ttl_ms"`
	Crash              float64 `json:"crash_ms"`
	CutOff             float64 `json:"cut_off_ms"`
	Unheld             float64 `json:"unheld_ms"`
	HandOver           float64 `json:"hand_over_ms"`
	HandOverUnheard    float64 `json:"hand_over_unheard_ms"`
	UnansweredRenewals int     `json:"unanswered_renewals"`
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

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
asks, unless --yes says yes. Then the tenure of the holder ends with
lease.ErrDeleted, and the next process may acquire the lease at once.

The holder notices at its next answer of the store, at the latest at its
deadline. Until then it may go on working. Only work that carries its fencing
token is refused. So stop the holder first if it can be reached.

Only the tenure that was shown is ended: if another process has acquired the
lease since, nothing changes, and the exit code is 69. A store of Tenure logs
the release with the client, its user, its address and the text of --reason.
A strict store lets only the holder release a lease under a --lock-prefix: stop
the holder there, and wait for the TTL.

` + connectionHelp,
		Example: `  tenure release press-7/active --force
  tenure release press-7/active --force --yes --reason "gateway-a lost its disk"`,
		Args: exactly("the name of the lease"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if !r.force {
				return usage(errors.New("release takes a lease from a process that may be working: give --force"))
			}
			if !r.yes && !isTerminal(cmd.InOrStdin()) {
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
		return printJSON(cmd.OutOrStdout(), reportHolder(name, holder))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "released %s, which %s held\n", name, holder.Name)
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
	const most = 256
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	return strings.ToValidUTF8(text[:min(len(text), most)], "") // without half a character
}

// confirm asks on standard error, and reads a line. The error says that the answer was not yes. When
// the command is interrupted, the reading goroutine stays blocked, because a read from a terminal
// cannot be cancelled; the process ends next.
func confirm(ctx context.Context, cmd *cobra.Command, question string) error {
	fmt.Fprint(cmd.ErrOrStderr(), question)
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 1<<10)).ReadString('\n') // an end without an answer is no
		answers <- line
	}()
	select {
	case answer := <-answers:
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		}
		return errors.New("nothing was released")
	case <-ctx.Done():
		fmt.Fprintln(cmd.ErrOrStderr())
		return context.Cause(ctx)
	}
}
