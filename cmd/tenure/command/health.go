package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/transport"
)

// healthTimeout is how long a probe waits by default: less than a supervisor usually does.
const healthTimeout = 5 * time.Second

// healthFlags are the flags of health.
type healthFlags struct {
	connection
	admin           string
	standbyOK, live bool
}

func healthCommand() *cobra.Command {
	var h healthFlags
	health := clientCommand(&cobra.Command{
		Use:   "health",
		Short: "Ask whether a store answers: a probe for supervisors",
		Long: `Ask whether a store answers, and end with 0 if it does and 103 if it does not: as a client
of --broker, or with --admin on the status page of serve or attach.`,
		Example: "health --admin 127.0.0.1:8080",
	}, &h.connection, h.askStore)
	asClient := health.RunE
	health.RunE = func(cmd *cobra.Command, arguments []string) error {
		// One bound for all steps: a supervisor kills a probe that takes too long.
		ctx, cancel := within(cmd.Context(), "timeout", h.timeout)
		defer cancel()
		cmd.SetContext(ctx)
		switch {
		case h.standbyOK && h.live, h.admin == "" && (h.standbyOK || h.live):
			return usagef("--standby-ok and --live need --admin, and exclude each other")
		case h.admin != "":
			return h.askPage(cmd)
		}
		return asClient(cmd, arguments)
	}
	flags := health.Flags()
	flags.StringVar(&h.admin, "admin", "", statusHelp)
	flags.BoolVar(&h.standbyOK, "standby-ok", false, "a process that stands by is healthy, too")
	flags.BoolVar(&h.live, "live", false, "ask only whether the process works, loading and standing by included")
	flags.Lookup("timeout").DefValue, h.timeout = healthTimeout.String(), healthTimeout
	return health
}

// askPage asks the status page.
func (h *healthFlags) askPage(cmd *cobra.Command) error {
	page, err := statusPage(h.admin)
	if err != nil {
		return err
	}
	defer page.Close()
	probe := adminclient.Ready
	if h.standbyOK {
		probe = adminclient.ReadyOrStandby
	} else if h.live {
		probe = adminclient.Live
	}
	yes, line, err := page.Ask(cmd.Context(), probe)
	switch {
	case err != nil:
		return noPage(err)
	case !yes:
		return exitWith(exitUnreachable, errors.New(line))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), output.Clean(line))
	return err
}

// healthKey is the key that a probe reads. It need not exist.
const healthKey = "tenure/health"

// askStore asks the store behind a broker. A refusal is an answer, too.
func (h *healthFlags) askStore(cmd *cobra.Command, client *transport.Client, _ []string) error {
	if _, err := client.Get(cmd.Context(), healthKey); err != nil && !errors.As(err, new(*transport.RefusedError)) {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("the store does not answer: %w", err)
		}
		return err
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), "ready: the store answers")
	return err
}
