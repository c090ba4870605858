package command

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/lease"
)

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
	flags.DurationVar(&l.RenewEvery, "renew-every", 0, "time between two renewals; 0 means a sixth of --ttl")
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
	var outage time.Duration
	budget := &cobra.Command{
		Use:   "budget",
		Short: "Work out what the durations of a lease mean when something fails",
		Long: `Print what a TTL and the other durations of a lease mean: how long, at worst, a
lease has no holder after a crash, a lost network or a hand-over, how long the
store may be away, as in a takeover of a pair, and how many renewals may go
unanswered. With --outage it finds the shortest TTL for which the store may be
away that long. It needs no broker. It supposes at least one process that waits;
a round trip comes on top.

Durations that contradict each other are refused, with the sum.`,
		Example: `  tenure budget --ttl 2s
  tenure budget --ttl 10s --grace 3s --json
  tenure budget --outage 2.5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cmd.Flags().Changed("outage") {
				l.TTL, err = l.TTLFor(outage)
			}
			b := lease.Budget{}
			if err == nil {
				b, err = l.Budget()
			}
			if err != nil {
				return usage(errors.New(strings.NewReplacer(leaseOptionFlags...).Replace(strings.TrimPrefix(err.Error(), "lease: "))))
			}
			if asJSON {
				millis := func(d time.Duration) output.Millis { return output.Millis{Duration: d} }
				return output.JSON(cmd.OutOrStdout(), budgetReport{
					TTL: millis(b.TTL), Crash: millis(b.Crash), CutOff: millis(b.Crash), Unheld: millis(b.Unheld),
					HandOver: millis(b.HandOver), HandOverUnheard: millis(b.Crash), Outage: millis(b.Outage), UnansweredRenewals: max(b.Renewals-1, 0),
				})
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), b)
			return err
		},
	}
	l.register(budget.Flags())
	budget.Flags().DurationVar(&outage, "outage", 0, "find the shortest --ttl that keeps a lease while the store is away that long")
	budget.MarkFlagsMutuallyExclusive("ttl", "outage")
	budget.Flags().BoolVar(&asJSON, "json", false, "print JSON, with durations in milliseconds")
	return budget
}

// A budgetReport is what budget prints as JSON.
type budgetReport struct {
	TTL                output.Millis `json:"ttlMillis"`
	Crash              output.Millis `json:"crashMillis"`
	CutOff             output.Millis `json:"cutOffMillis"`
	Unheld             output.Millis `json:"unheldMillis"`
	HandOver           output.Millis `json:"handOverMillis"`
	HandOverUnheard    output.Millis `json:"handOverUnheardMillis"`
	Outage             output.Millis `json:"outageMillis"`
	UnansweredRenewals int           `json:"unansweredRenewals"`
}
