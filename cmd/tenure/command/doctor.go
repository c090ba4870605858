package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

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
		Long: `Go the way of a request, from DNS to the rights of this client and the clocks, and say what to
do about what is wrong. A key of its own is set, watched and deleted.`,
		Example: "doctor --broker mqtts://broker:8883 --tls-ca ca.pem --username press-7 --password-file secret",
		Args:    Arguments,
		RunE:    f.run,
	}
	flags := examine.Flags()
	f.connection.register(flags)
	flags.BoolVar(&f.readOnly, "read-only", false, "set and delete no key")
	flags.StringVar(&f.prefix, "prefix", "tenure-doctor", "what the key begins with; name keys that this client may use")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	return examine
}

// run examines and prints.
func (f *doctorFlags) run(cmd *cobra.Command, _ []string) (err error) {
	logger, _, stop := startLog(cmd, slog.LevelWarn)
	defer stop()
	options := doctor.Options{
		Timeout: f.timeout, ReadOnly: f.readOnly, Prefix: strings.TrimSuffix(f.prefix, "/"),
		Named: explain,
	}
	if options.Address, options.Client, err = f.options(logger); err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if !f.asJSON {
		options.OnStep = func(step doctor.Step) { printStep(w, step) }
	}
	report := doctor.Run(cmd.Context(), options)
	if cmd.Context().Err() != nil {
		return errors.New("not all steps were done")
	}
	failure := report.FirstFailure()
	switch {
	case f.asJSON:
		err = output.JSON(w, report)
	case failure == nil:
		_, err = fmt.Fprintf(w, "\nThe store can be used; warnings: %d.\n", report.Warnings())
	}
	if err != nil || failure == nil {
		return err
	}
	code := map[doctor.Kind]int{
		doctor.Unreachable: exitUnreachable, doctor.Refused: exitRefused, doctor.Usage: exitUsage, doctor.Wrong: exitFailure,
	}[failure.Kind]
	return exitWith(code, fmt.Errorf("%s: %s", failure.Name, output.Clean(failure.Found)))
}

// printStep prints a step, with its cure in a line below.
func printStep(w io.Writer, step doctor.Step) {
	mark := map[doctor.Status]string{doctor.Failed: "FAILED", doctor.Skipped: "-"}[step.Status]
	fmt.Fprintf(w, "%-8s%-13s%s\n", cmp.Or(mark, string(step.Status)), step.Name, output.Clean(step.Found))
	if step.Cure != "" {
		fmt.Fprintf(w, "%21sdo: %s\n", "", output.Clean(step.Cure))
	}
}
