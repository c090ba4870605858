package command

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/doctor"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
)

// doctorFlags are the flags of doctor.
type doctorFlags struct {
	connection
	readOnly bool
	prefix   string
	asJSON   bool
}

func doctorCommand() *cobra.Command {
	var f doctorFlags
	examine := &cobra.Command{
		Use:   "doctor",
		Short: "Find out why a client cannot use a store",
		Long: `Go the way of a request, step by step, and say what to do about what is wrong: the
name in DNS, TCP, TLS with its certificate, MQTT 5, the credentials, the store and
its identity, the time of 20 round trips, the rights of this client, and the clocks.

A key of the command's own is set, watched and deleted; it expires within a minute if
that fails. --read-only sets none.

The first failed step decides the exit code: 67 if no broker or no store can be
reached, 68 for credentials, rights and refusals, 2 for a flag or a file that it
names, 1 for anything else, such as a clock. A warning changes no exit code.
--timeout bounds each step.

` + connectionHelp,
		Example: `doctor --broker mqtts://broker:8883 --tls-ca ca.pem --username press-7 --password-file secret
doctor --json | jq -r '.steps[] | select(.status == "failed") | .cure'`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := examine.Flags()
	f.connection.register(flags)
	flags.BoolVar(&f.readOnly, "read-only", false, "set and delete no key")
	flags.StringVar(&f.prefix, "prefix", "tenure-doctor", "what the key begins with that is set and deleted; name keys that this client may use")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	return examine
}

// run examines and prints.
func (f *doctorFlags) run(cmd *cobra.Command) error {
	process, stop := startClient(cmd, slog.LevelWarn)
	defer stop()
	options := doctor.Options{Timeout: f.timeout, ReadOnly: f.readOnly, Prefix: strings.TrimSuffix(f.prefix, "/"), Named: func(err error) error { return nameFlag(err, nil) }}
	var err error
	if options.Address, options.Client, err = f.options(process); err != nil {
		return err
	}
	if options.Prefix == "" {
		return usage(errors.New("--prefix is empty: the key needs a name of its own"))
	}
	w := cmd.OutOrStdout()
	var failed error // of the output
	if !f.asJSON {
		options.OnStep = func(step doctor.Step) { failed = errors.Join(failed, printStep(w, step)) }
	}
	began, ctx := time.Now(), cmd.Context()
	report := doctor.Run(ctx, options)
	if ctx.Err() != nil {
		return signalCause(ctx, errors.New("not all steps were done"))
	}
	failure := report.FirstFailure()
	switch {
	case f.asJSON:
		failed = output.JSON(w, report)
	case failure == nil:
		_, err := fmt.Fprintf(w, "\nThe store can be used; warnings: %d, in %v.\n", report.Warnings(), time.Since(began).Round(time.Millisecond))
		failed = errors.Join(failed, err)
	}
	if failed != nil || failure == nil {
		return failed
	}
	code := map[doctor.Kind]int{
		doctor.Unreachable: exitUnreachable, doctor.Refused: exitRefused, doctor.Usage: exitUsage, doctor.Wrong: exitFailure,
	}[failure.Kind]
	return exitWith(code, fmt.Errorf("%s: %s", failure.Name, output.Clean(failure.Found)))
}

// printStep prints a step, with its cure in a line below.
func printStep(w io.Writer, step doctor.Step) error {
	mark := map[doctor.Status]string{doctor.OK: "ok", doctor.Failed: "FAILED", doctor.Warning: "warning", doctor.Skipped: "-"}[step.Status]
	text := fmt.Sprintf("%-8s%-13s%s\n", mark, step.Name, output.Clean(step.Found))
	if step.Cure != "" {
		text += fmt.Sprintf("%21sdo: %s\n", "", output.Clean(step.Cure))
	}
	_, err := io.WriteString(w, text)
	return err
}
