package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/cmd/tenure/internal/doctor"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
)

// maxBurst bounds --burst: such a burst has about 20 MB.
const maxBurst = 60_000

// doctorFlags are the flags of doctor.
type doctorFlags struct {
	connection
	readOnly bool
	prefix   string
	status   string
	burst    int
	asJSON   bool
}

func (f *doctorFlags) register(flags *pflag.FlagSet) {
	f.connection.register(flags)
	flags.BoolVar(&f.readOnly, "read-only", false, "set and delete no key")
	flags.StringVar(&f.prefix, "prefix", "tenure-doctor", "what the key begins with that is set and deleted; name keys that this client may use")
	flags.StringVar(&f.status, "admin", "", statusHelp+"; it says how the store keeps its data")
	flags.IntVar(&f.burst, "burst", 5000, "how many messages of 256 bytes this client sends itself, to find out whether a broker beside the store loses requests; 0: none")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
}

func doctorCommand() *cobra.Command {
	var f doctorFlags
	examine := &cobra.Command{
		Use:   "doctor",
		Short: "Find out why a client cannot use a store",
		Long: `Go the way of a request, step by step, and say what to do about what is wrong: the
name in DNS, TCP, TLS with its certificates, MQTT 5, the credentials, the store and
its identity, the clocks, the time of 20 round trips, the rights of this client, and
the queue of a broker beside the store.

A key of the command's own is set, watched and deleted; it expires within a minute if
that fails. --read-only sets none, and sends no burst of messages. To find out the
clock of the store it sends a timestamp that the store refuses.

A broker that makes the user name the client id (use_username_as_clientid of
mosquitto) ends the connection of a program that has the same user. Give this
command a user of its own there.

The first failed step decides the exit code: 67 if no broker or no store can be
reached, 68 for credentials, rights and refusals, 2 for a flag or a file that it
names, 1 for anything else, such as a clock.
A warning changes no exit code. --timeout bounds each step.

` + connectionHelp,
		Example: `  tenure doctor
  tenure doctor --broker mqtts://broker:8883 --tls-ca ca.pem --username press-7 --password-file secret
  tenure doctor --json | jq -r '.steps[] | select(.status == "failed") | .cure'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(examine.Flags())
	return examine
}

// run examines and prints.
func (f *doctorFlags) run(cmd *cobra.Command) error {
	process, stop := startClient(cmd, slog.LevelWarn)
	defer stop()
	address, client, err := f.options(process)
	if err != nil {
		return err
	}
	prefix := strings.TrimSuffix(f.prefix, "/")
	if prefix == "" {
		return usage(errors.New("--prefix is empty: the key needs a name of its own"))
	}
	if f.burst < 0 || f.burst > maxBurst {
		return usage(fmt.Errorf("--burst %d: choose from 0 to %d", f.burst, maxBurst))
	}
	options := doctor.Options{
		Address: address, Client: client, Timeout: f.timeout, ReadOnly: f.readOnly, Burst: f.burst, Prefix: prefix,
	}
	if f.status != "" {
		page, err := adminclient.New(f.status)
		if err != nil {
			return usage(fmt.Errorf("--admin: %w", err))
		}
		defer page.Close()
		options.Mode = func(ctx context.Context) (string, error) {
			state, err := page.State(ctx)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("it runs as %s (%s) and keeps its data in %s", state.Info.Mode, state.Info.Role, state.Info.Data), nil
		}
	}
	out := terminal.On(cmd.OutOrStdout())
	var failed error // of the output
	if !f.asJSON {
		options.OnStep = func(step doctor.Step) {
			if _, err := fmt.Fprintln(out, stepText(step, out.Style)); err != nil && failed == nil {
				failed = err
			}
		}
	}
	began := time.Now()
	ctx := cmd.Context()
	report := doctor.Run(ctx, options)
	if ctx.Err() != nil {
		return signalCause(ctx, errors.New("not all steps were done"))
	}
	if f.asJSON {
		failed = output.JSON(cmd.OutOrStdout(), report)
	}
	if failed != nil {
		return failed
	}
	failure := report.FirstFailure()
	if failure == nil {
		if !f.asJSON {
			_, failed = fmt.Fprintf(out, "\nThe store can be used; %s, in %v.\n", count(report.Warnings(), "warning"), time.Since(began).Round(time.Millisecond))
		}
		return failed
	}
	code := exitFailure
	switch failure.Kind {
	case doctor.Unreachable:
		code = exitUnreachable
	case doctor.Refused:
		code = exitRefused
	case doctor.Usage:
		code = exitUsage
	}
	return exitWith(code, fmt.Errorf("%s: %s", failure.Name, terminal.Clean(failure.Found)))
}

// count returns a number and a noun.
func count(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun + "s"
	case 1:
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// stepText shows a step, with its cure in a line below.
func stepText(step doctor.Step, style terminal.Style) string {
	mark, color := "ok", terminal.Green
	switch step.Status {
	case doctor.Failed:
		mark, color = "FAILED", terminal.Red
	case doctor.Warning:
		mark, color = "warning", terminal.Yellow
	case doctor.Skipped:
		mark, color = "-", ""
	}
	mark = fmt.Sprintf("%-8s", mark)
	if color != "" {
		mark = style.Paint(color, mark)
	}
	text := fmt.Sprintf("%s%-13s%s", mark, step.Name, terminal.Clean(step.Found))
	if step.Cure != "" {
		text += fmt.Sprintf("\n%21s%s", "", style.Paint(terminal.Bold, "do: "+terminal.Clean(step.Cure)))
	}
	return text
}
