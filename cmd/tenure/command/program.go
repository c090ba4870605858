// Package command is what the commands tenure and tenure-cluster have in common: nearly all of
// them. It exists for these two, and for the benchmarks of this repository, and is no interface to
// build on.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/cmd/tenure/internal/supervise"
	"github.com/tenurelock/tenure/internal/optionerror"
)

// Program is a command with all that a store on one machine needs, and with what a larger one adds.
type Program struct {
	Name          string
	Serve, Attach Replication       // of the stores of these commands; nil: none
	Commands      []*cobra.Command  // further ones
	OptionFlags   map[string]string // further ones, in the form of optionFlags
}

// optionFlags has the flag of each option that a package may refuse, without its first dashes.
var optionFlags = map[string]string{
	"server.MaxMemory":                    "max-memory",
	"server.MaxClients":                   "max-clients",
	"server.MaxPacketSize":                "max-packet-size",
	"server.PacketTimeout":                "packet-timeout",
	"server.PasswordChecks":               "password-checks",
	"server.MaxUnauthenticated":           "max-unauthenticated",
	"server.MaxUnauthenticatedPerAddress": "max-unauthenticated-per-address",
	"server.Store.DedupWindow":            "dedup-window",
	"server.Limits.SessionMessages":       "max-session-messages",
	"server.Limits.SessionsPerUser":       "max-sessions-per-user",
	"server.Limits.Subscriptions":         "max-subscriptions",
	"attach.MaxClients":                   "max-clients",
	"attach.TLS":                          "tls-ca, --tls-cert or --tls-key",
	"transport.ClientID":                  "client-id",
	"transport.PasswordFile":              "password-file",
	"transport.TLS":                       "tls-ca, --tls-cert or --tls-key",
	"transport.TLS.CAFile":                "tls-ca",
	"transport.TLS.CertFile":              "tls-cert",
	"transport.TLS.KeyFile":               "tls-key",
	"lease.TTL":                           "ttl",
	"election.Rank":                       "rank",
}

// Main runs the command with the arguments of the process until it ends or SIGINT or SIGTERM
// comes. After an error it says why on standard error. "help exit-codes" lists the exit codes.
func (p Program) Main() {
	supervise.Intercept()
	ctx, stop := untilSignal(context.Background())
	defer stop()
	code, text, err := p.execute(ctx, p.Command())
	if text != "" {
		stderr := logwriter.New(os.Stderr, logQueue) // its reader may have stopped
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, text)
		stderr.Close(logFlush)
	}
	if code != 0 {
		stop()
		var exit *exitError
		if code == exitInterrupt && !errors.As(err, &exit) {
			var child *childInterrupted
			supervise.EndByInterrupt(errors.As(err, &child) && child.byKey)
		}
		os.Exit(code)
	}
}

// untilSignal returns a context that ends with SIGINT or SIGTERM, and then has an
// *interruptedError as its cause. stop ends it, and lets signals end the process again.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case s := <-signals:
			cancel(&interruptedError{s})
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		waiting.Wait()
	}
}

// execute runs a command. It returns the exit code, what to print on standard error, and the error.
func (p Program) execute(ctx context.Context, root *cobra.Command) (code int, text string, err error) {
	checkTopics(root)
	entered := false
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		err := bindSettings(cmd)
		entered = err == nil
		return err
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0, "", nil
	}
	err = nameFlag(err, p.OptionFlags)
	if written := (*fs.PathError)(nil); !entered && !(errors.As(err, &written) && written.Op == "write") {
		err = usage(err) // found while the arguments were read, and not while help was written
	}
	if code = exitCode(err); code == exitFailure && ctx.Err() != nil {
		code = exitCode(signalCause(ctx, err)) // the signal is why
	}
	text = err.Error()
	if entered {
		text = oneLine(text)
	}
	text = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(text), "transport: "), "lease: ")
	return code, output.CleanLines(settings.Explain(cmd.Flags(), text)), err
}

// nameFlag returns err with the name of a flag, if a package has refused the option of one. more adds to
// optionFlags.
func nameFlag(err error, more map[string]string) error {
	var refused *optionerror.Error
	if !errors.As(err, &refused) {
		return err
	}
	option := refused.Package + "." + refused.Field
	flag := cmp.Or(optionFlags[option], more[option])
	if flag == "" {
		return err
	}
	return usage(errors.New(refused.Text("--" + flag)))
}

// oneLine returns the text of an error as one line that a terminal can show: a broker or a store may
// have chosen parts of it, and must not forge the line of another command.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return output.Clean(strings.ReplaceAll(strings.Join(lines, "; "), "\t", " "))
}

// Command returns the command, which runs once.
func (p Program) Command() *cobra.Command {
	root := &cobra.Command{
		Use:   p.Name,
		Short: "Leases, fencing tokens and a state store over MQTT 5",
		Long: `Leases, fencing tokens and a state store over MQTT 5.

A flag that is not given has the value of its variable, such as TENURE_BROKER
for --broker, or else of its key in the file of --config (TENURE_CONFIG):

` + settings.Example + `
A list in a variable has commas between its values.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       versionText(),
	}
	settings.Register(root)
	registerLogFlags(root.PersistentFlags())
	root.AddCommand(
		serveCommand(p.Serve), attachCommand(p.Attach), passwordCommand(),
		getCommand(), setCommand(), delCommand(), vdelCommand(), watchCommand(),
		runCommand(), lockCommand(), holderCommand(), switchoverCommand(), releaseCommand(),
		doctorCommand(), topCommand(), healthCommand(),
		checkCommand(), backupCommand(), restoreCommand(), exportCommand(),
		exitCodesTopic(),
	)
	root.AddCommand(p.Commands...)
	for _, cmd := range root.Commands() {
		cmd.Example = withName(p.Name, cmd.Example)
	}
	return root
}

// withName returns examples, which begin with the name of a command, as lines for a shell. A line that
// begins with a space goes on with the one before.
func withName(program, examples string) string {
	if examples == "" {
		return ""
	}
	lines := strings.Split(examples, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, " ") {
			lines[i] = "  " + program + " " + line
		}
	}
	return strings.Join(lines, "\n")
}

// checkTopics makes the commands that cobra adds refuse arguments that they do not know. cobra v1.10.2:
// left alone, both end with 0, and a shell would take the help of completion for a script.
func checkTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(cmd *cobra.Command, topic []string) error {
				if _, rest, err := root.Find(topic); err != nil {
					return err
				} else if len(rest) > 0 {
					return fmt.Errorf("unknown help topic %q; %s lists the commands", strings.Join(topic, " "), cmd.CommandPath())
				}
				return nil
			}
		case "completion":
			// Without a function, a command prints its help before it looks at its arguments.
			cmd.Run = func(cmd *cobra.Command, _ []string) { _ = cmd.Help() }
		}
	}
}

// bindSettings gives flags the values of the environment and of the configuration file, and warns of
// variables that are no settings. The commands that cobra adds (help, completion) have none.
func bindSettings(cmd *cobra.Command) error {
	if cmd.RunE == nil || cmd.Parent() != cmd.Root() {
		return nil
	}
	if err := settings.Bind(cmd); err != nil {
		return err
	}
	level := slog.LevelWarn
	if cmd.Name() == "health" {
		level = probeLevel
	}
	logger, _ := newLogger(cmd, cmd.ErrOrStderr(), level)
	for _, sentence := range settings.Unused(cmd) {
		logger.Warn(sentence)
	}
	return nil
}

// version and commit are for releases, which set them with
// -ldflags "-X github.com/tenurelock/tenure/cmd/tenure/command.version=v1.2.3". Otherwise the
// toolchain says what was built.
var version, commit string

// programVersion returns the version, the commit, and a text that says whether files were changed
// since that.
func programVersion() (release, revision, modified string) {
	release, revision = version, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		release = cmp.Or(release, info.Main.Version)
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "vcs.revision":
				revision = cmp.Or(revision, setting.Value)
			case setting.Key == "vcs.modified" && setting.Value == "true" && commit == "":
				modified = ", modified"
			}
		}
	}
	return cmp.Or(release, "(devel)"), revision, modified
}

// versionText is what --version prints after the name of the program.
func versionText() string {
	release, revision, modified := programVersion()
	return fmt.Sprintf("%s (commit %s%s, %s, %s/%s)", release, cmp.Or(revision, "unknown"), modified,
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
