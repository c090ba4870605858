package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/transport"
)

// healthTimeout is how long a probe waits by default: less than a supervisor usually does.
const healthTimeout = 5 * time.Second

// probeLevel is the level of the log of a probe by default: a supervisor runs it every few seconds.
const probeLevel = slog.LevelError

// healthSettings are the flags of health.
type healthSettings struct {
	connection connection
	admin      string
	standbyOK  bool
	live       bool
	asJSON     bool
}

// healthReport is what health prints as JSON.
type healthReport struct {
	Healthy bool `json:"healthy"`
	// Answer says why, in words.
	Answer string `json:"answer"`
}

// healthCommand returns the command health.
func healthCommand() *cobra.Command {
	var settings healthSettings
	health := &cobra.Command{
		Use:   "health",
		Short: "Ask whether a store answers: a probe for supervisors",
		Long: `Ask whether a store answers, and say so with the exit code: 0 if it does, 67 if
it does not. For supervisors that run a command as a probe.

With --admin it asks the status page of serve or attach for /readyz. A process that
stands by does not answer requests; with --standby-ok it counts as healthy. With
--live it asks for /healthz: only whether the process works. Without --admin it
reads a key that does not exist, as a client of --broker.

` + connectionHelp,
		Example: `health --admin 127.0.0.1:8080
health --admin 127.0.0.1:8080 --standby-ok
health --broker mqtt://localhost:1883`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return settings.run(cmd) },
	}
	flags := health.Flags()
	settings.connection.register(flags)
	settings.connection.timeout = healthTimeout
	flags.Lookup("timeout").DefValue = healthTimeout.String()
	flags.StringVar(&settings.admin, "admin", "", statusHelp+"; default: connect to --broker")
	flags.BoolVar(&settings.standbyOK, "standby-ok", false, "a process that stands by is healthy; needs --admin")
	flags.BoolVar(&settings.live, "live", false, "ask only whether the process works, loading and standing by included; needs --admin")
	flags.BoolVar(&settings.asJSON, "json", false, "print JSON")
	return health
}

func (s *healthSettings) run(cmd *cobra.Command) error {
	switch {
	case s.connection.timeout <= 0:
		return usage(fmt.Errorf("--timeout %v is not positive", s.connection.timeout))
	case s.admin == "" && (s.standbyOK || s.live):
		return usage(errors.New("--standby-ok and --live need --admin: without it health is a client of the store"))
	case s.standbyOK && s.live:
		return usage(errors.New("--live does not ask for the role, so --standby-ok says nothing more; give one of them"))
	}
	process, stop := startClient(cmd, probeLevel)
	defer stop()
	// One bound for all steps: a supervisor kills a probe that takes too long.
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), s.connection.timeout, fmt.Errorf("no answer within --timeout %v", s.connection.timeout))
	defer cancel()
	var answer string
	var err error
	if s.admin != "" {
		answer, err = s.askPage(ctx)
	} else {
		answer, err = s.askStore(ctx, cmd, process)
	}
	switch {
	case s.asJSON && err != nil && exitCode(err) != exitUsage:
		_ = output.JSON(cmd.OutOrStdout(), healthReport{Answer: err.Error()}) // the exit code says it too
		return err
	case err != nil:
		return err
	case s.asJSON:
		return output.JSON(cmd.OutOrStdout(), healthReport{Healthy: true, Answer: answer})
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), output.Clean(answer))
	return err
}

// askPage asks the status page, and returns its answer if that is good.
func (s *healthSettings) askPage(ctx context.Context) (string, error) {
	page, err := adminclient.New(s.admin)
	if err != nil {
		return "", usage(fmt.Errorf("--admin: %w", err))
	}
	defer page.Close()
	probe := adminclient.Ready
	switch {
	case s.standbyOK:
		probe = adminclient.ReadyOrStandby
	case s.live:
		probe = adminclient.Live
	}
	yes, line, err := page.Ask(ctx, probe)
	switch {
	case err != nil:
		return "", exitWith(exitUnreachable, fmt.Errorf("the status page does not answer: %w", err))
	case !yes:
		return "", exitWith(exitUnreachable, errors.New(line))
	}
	return line, nil
}

// healthKey is the key that a probe reads. It need not exist.
const healthKey = "tenure/health"

// askStore asks the store behind a broker, and returns its answer if that is good.
func (s *healthSettings) askStore(ctx context.Context, cmd *cobra.Command, process *process) (string, error) {
	address, options, err := s.connection.options(process)
	if err != nil {
		return "", err
	}
	client, err := s.connection.dial(cmd.Context(), address, options, false) // within --timeout too
	if err != nil {
		return "", err
	}
	defer client.Close()
	var refused *transport.RefusedError
	_, err = client.Get(ctx, healthKey)
	switch {
	case errors.As(err, &refused): // that is an answer too
	case cmd.Context().Err() == nil && ctx.Err() != nil:
		return "", exitWith(exitUnreachable, fmt.Errorf("the store does not answer: %w", err))
	case err != nil:
		return "", err
	}
	return "ready: the store answers", nil
}
