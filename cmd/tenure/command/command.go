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
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/flagvalue"
	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/cmd/tenure/internal/supervise"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
)

// Main runs a command with the arguments of the process until it ends or SIGINT or SIGTERM
// comes. After an error it says why on standard error. "help exit-codes" lists the exit codes.
func Main(root *cobra.Command) {
	supervise.Intercept()
	ctx, stop := untilSignal(context.Background())
	defer stop()
	code, text, err := execute(ctx, root)
	if text != "" {
		stderr := logwriter.New(os.Stderr, logQueue) // its reader may have stopped
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), text)
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
func execute(ctx context.Context, root *cobra.Command) (code int, text string, err error) {
	checkTopics(root)
	entered := false
	for _, cmd := range root.Commands() {
		if run := cmd.RunE; run != nil {
			cmd.RunE = func(cmd *cobra.Command, arguments []string) error {
				entered = true
				return run(cmd, arguments)
			}
		}
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0, "", nil
	}
	if written := (*fs.PathError)(nil); !entered && !(errors.As(err, &written) && written.Op == "write") {
		err = usage(err) // found while the arguments were read, and not while help or a completion was written
	}
	if code = exitCode(err); code == exitFailure && ctx.Err() != nil {
		code = exitCode(signalCause(ctx, err)) // the signal is why
	}
	text = err.Error()
	if entered {
		text = oneLine(text)
	}
	text = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(text), "transport: "), "lease: ")
	return code, terminal.CleanLines(settings.Explain(cmd.Flags(), withName(root, text))), err
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

// oneLine returns the text of an error as one line that a terminal can show: a broker or a store may
// have chosen parts of it, and must not forge the line of another command.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return terminal.Clean(strings.ReplaceAll(strings.Join(lines, "; "), "\t", " "))
}

// New returns the command of this name, with all that a store on one machine needs. serve and
// attach replicate the stores of the commands serve and attach; nil means that they cannot.
func New(name string, serve, attach Replication) *cobra.Command {
	root := &cobra.Command{
		Use:   name,
		Short: "Leases, fencing tokens and a state store over MQTT 5",
		Long: `Leases, fencing tokens and a state store over MQTT 5.

A flag that is not given has the value of its variable, such as TENURE_BROKER
for --broker, or else of its key in the file of --config (TENURE_CONFIG):

  broker: mqtts://broker:8883    # for each command that has the flag
  log-format: json
  serve:                         # for one command; it goes before a key above
    addr: :8883
    lock-prefix: [locks/, jobs/]

A key that no flag has is an error. A list in a variable has commas between its
values.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		Version:           versionText(),
		PersistentPreRunE: bindSettings,
	}
	settings.Register(root)
	registerLogFlags(root.PersistentFlags())
	root.AddCommand(
		serveCommand(serve),
		attachCommand(attach),
		getCommand(),
		setCommand(),
		delCommand(),
		vdelCommand(),
		watchCommand(),
		holderCommand(),
		leaderCommand(),
		switchoverCommand(),
		releaseCommand(),
		doctorCommand(),
		topCommand(),
		passwordCommand(),
		checkCommand(),
		backupCommand(),
		restoreCommand(),
		exportCommand(),
		runCommand(),
		lockCommand(),
		healthCommand(),
		exitCodesTopic(),
	)
	NameFlags(root, optionFlags...)
	for _, cmd := range root.Commands() {
		if hint := afterDashes[cmd.Name()]; hint != "" {
			explainDashes(cmd, withName(root, hint))
		}
		cmd.Long, cmd.Example = withName(root, cmd.Long), withName(root, cmd.Example)
		cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = withName(root, f.Usage) })
	}
	return root
}

// bindSettings gives flags the values of the environment and of the configuration file, and warns of
// variables that are no settings. The commands that cobra adds (help, completion) have none.
func bindSettings(cmd *cobra.Command, _ []string) error {
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

// withName returns a text with the commands of the program root. All texts are written for the program
// tenure, and a machine may have tenure-cluster only.
func withName(root *cobra.Command, text string) string {
	if root.Name() == "tenure" {
		return text
	}
	names := []string{"help", "completion"} // which cobra adds
	for _, cmd := range root.Commands() {
		names = append(names, regexp.QuoteMeta(cmd.Name()))
	}
	return regexp.MustCompile(`\btenure (`+strings.Join(names, "|")+`)\b`).ReplaceAllString(text, root.Name()+" $1")
}

// Usage marks err as a mistake of the caller, such as flags that contradict each other: Main ends with 2
// then, after which a service manager need not start the command again. nil stays nil.
func Usage(err error) error { return usage(err) }

// Run runs a command that goes on until it is interrupted. It logs without waiting for the reader
// of the log, and survives the end of its terminal. The log has warnings and errors, unless
// --log-level says otherwise. flush waits a moment until the log is written, for the last line of a
// process that does not return.
//
// run calls ready when the command does its work, to say on standard output and to systemd what
// that is.
func Run(cmd *cobra.Command, run func(_ context.Context, _ *slog.Logger, flush func(), ready func(what string)) error) error {
	process, stop := startProcess(cmd, slog.LevelWarn)
	defer stop()
	ready := func(what string) { process.ready(cmd, what) }
	return process.run(cmd.Context(), nil, func(ctx context.Context) error {
		return run(ctx, process.logger, process.flush, ready)
	})
}

// BytesFlag adds a flag for a number of bytes, like 512MiB. What is at the pointer is the default.
func BytesFlag(flags *pflag.FlagSet, at *int64, name, usage string) {
	flagvalue.Bytes(flags, at, name, usage)
}

// DirectoryFlag adds the flag --data, for Directory. usage says what is in the directory.
func DirectoryFlag(flags *pflag.FlagSet, dir *string, usage string) {
	directoryFlag(flags, dir, usage, serveFolder)
}

// Directory returns where a store keeps its data: dir, or the default if that is empty.
func Directory(dir string) (string, error) {
	return (&dataFlags{dir: dir}).directory(serveFolder)
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
			switch setting.Key {
			case "vcs.revision":
				revision = cmp.Or(revision, setting.Value)
			case "vcs.modified":
				if setting.Value == "true" && commit == "" {
					modified = ", modified"
				}
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
