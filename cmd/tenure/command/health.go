package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
)

// adminHelp is the text of --admin of the commands that ask a status page.
const adminHelp = "address of the status page of serve or attach, such as 127.0.0.1:8080"

// healthFlags are the flags of health.
type healthFlags struct {
	admin           string
	timeout         time.Duration
	standbyOK, live bool
}

func healthCommand() *cobra.Command {
	var h healthFlags
	health := &cobra.Command{
		Use:   "health",
		Short: "Ask a status page whether its store answers: a probe for supervisors",
		Long: `Ask the status page of serve or attach whether the process answers requests, and end with 0
if it does and 103 if it does not.`,
		Example: "health --admin 127.0.0.1:8080",
		Args:    Arguments,
		RunE:    h.run,
	}
	flags := health.Flags()
	flags.StringVar(&h.admin, "admin", "", adminHelp)
	flags.DurationVar(&h.timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	flags.BoolVar(&h.standbyOK, "standby-ok", false, "a process that stands by is healthy, too")
	flags.BoolVar(&h.live, "live", false, "ask only whether the process works, loading and standing by included")
	return health
}

func (h *healthFlags) run(cmd *cobra.Command, _ []string) error {
	probe := "/readyz"
	switch {
	case h.live: // of both, the one that asks for less
		probe = "/healthz"
	case h.standbyOK:
		probe = "/readyz?standby=ok"
	}
	ctx, cancel := within(cmd.Context(), "timeout", h.timeout)
	defer cancel()
	yes, line, err := adminclient.Ask(ctx, h.admin, probe)
	if err == nil && !yes {
		err = errors.New(line)
	}
	if err != nil {
		return noPage(err)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), output.Clean(line))
	return err
}

// noPage says why a status page does not answer, or not as it should.
func noPage(err error) error {
	if errors.Is(err, adminclient.ErrAddress) {
		return usagef("--admin: %w", err)
	}
	return exitWith(exitUnreachable, err)
}
