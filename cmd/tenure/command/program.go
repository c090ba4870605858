// Package command is what the commands tenure and tenure-cluster have in common: nearly all of
// them. It exists for these two, and for the benchmarks of this repository, and is no interface to
// build on.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/cmd/tenure/internal/supervise"
	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/server"
)

// Program is a command with all that a store on one machine needs, and with what a larger one adds.
type Program struct {
	Name          string
	Serve, Attach Replication       // of the stores of these commands; nil: none
	Commands      []*cobra.Command  // further ones
	OptionFlags   map[string]string // further ones, in the form of optionFlags
}

// optionFlags has the flags of the options whose flags have other names than their fields, without the first dashes.
var optionFlags = map[string]string{
	"attach.TLS":             "tls-ca, --tls-cert or --tls-key",
	"transport.KeepAlive":    "instant, for two thirds of --ttl:",
	"transport.TLS":          "tls-ca, --tls-cert or --tls-key",
	"transport.TLS.CAFile":   "tls-ca",
	"transport.TLS.CertFile": "tls-cert",
	"transport.TLS.KeyFile":  "tls-key",
}

// words matches where a word of a field's name begins.
var words = regexp.MustCompile(`([a-z])([A-Z])`)

// Main runs the command with the arguments of the process until it ends or SIGINT or SIGTERM
// comes. After an error it says why on standard error. "help exit-codes" lists the exit codes.
func (p Program) Main() {
	supervise.Intercept()
	ctx, stop := untilSignal(context.Background())
	code, text, err := p.execute(ctx, p.Command())
	if text != "" {
		stderr := logwriter.New(os.Stderr, logQueue) // its reader may have stopped
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, text)
		stderr.Close(logFlush)
	}
	stop()
	if code != 0 {
		if interrupted := (*interruptedError)(nil); code == exitInterrupt && errors.As(err, &interrupted) {
			supervise.EndByInterrupt(interrupted.byKey)
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
		if s, caught := <-signals; caught {
			cancel(&interruptedError{signal: s.(syscall.Signal)})
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		waiting.Wait()
		cancel(nil)
	}
}

// execute runs a command. It returns the exit code, what to print on standard error, and the error.
func (p Program) execute(ctx context.Context, root *cobra.Command) (code int, text string, err error) {
	// cobra v1.10.2: without this, "completion" with a wrong shell prints its help, which a shell would take for a
	// script, before it looks at its arguments.
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	completion.Run = func(cmd *cobra.Command, _ []string) { _ = cmd.Help() }
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
	if errors.As(err, new(*pflag.NotExistError)) {
		err = fmt.Errorf("%w; usage: %s", err, cmd.UseLine()) // a flag of the child goes after --
	}
	err = afterSignal(ctx, explain(err))
	if text = err.Error(); entered {
		text = oneLine(text)
	} else {
		err = Usage(err)
	}
	text = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(text), "transport: "), "lease: ")
	return exitCode(err), output.CleanLines(settings.Explain(cmd.Flags(), text)), err
}

// explain returns err with what to do about it in terms of the command, and with the name of a flag, if a package has
// refused the option of one: MaxClients is --max-clients.
func explain(err error) error {
	refused := (*optionerror.Error)(nil)
	switch {
	case errors.Is(err, server.ErrInsecure):
		return usagef("%w; give --tls-cert and --tls-key with --auth or --client-ca, or say --insecure", err)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w by another process: stop that, or give another address", err)
	case errors.As(err, &refused):
		field := refused.Field[strings.LastIndexByte(refused.Field, '.')+1:]
		flag := strings.ToLower(words.ReplaceAllString(field, "$1-$2"))
		return usagef("%s", refused.Text("--"+cmp.Or(optionFlags[refused.Package+"."+refused.Field], flag)))
	}
	return err
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
		Long: "Leases, fencing tokens and a state store over MQTT 5.\n\n" +
			"A flag that is not given has the value of its variable, such as TENURE_BROKER for\n" +
			"--broker, or else of its key in the file of --config (TENURE_CONFIG):\n\n" + settings.Example,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version: fmt.Sprintf("%s (commit %s, %s, %s/%s)", programVersion(), cmp.Or(commit, "unknown"),
			runtime.Version(), runtime.GOOS, runtime.GOARCH),
	}
	maps.Copy(optionFlags, p.OptionFlags)
	settings.Register(root)
	registerLogFlags(root.PersistentFlags())
	root.AddCommand(
		serveCommand(p.Serve), attachCommand(p.Attach), passwordCommand(),
		getCommand(), setCommand(), delCommand(), vdelCommand(),
		runCommand(), electCommand(), lockCommand(), holderCommand(), topCommand(), switchoverCommand(), releaseCommand(),
		doctorCommand(), healthCommand(),
		checkCommand(), backupCommand(), restoreCommand(), exportCommand(),
		&cobra.Command{Use: "exit-codes", Short: "What the exit code of a command says", Long: exitHelp},
	)
	root.AddCommand(p.Commands...)
	for _, cmd := range root.Commands() {
		if cmd.Example != "" {
			line := "\n  " + p.Name + " "
			cmd.Example = line[1:] + strings.ReplaceAll(cmd.Example, "\n", line)
		}
	}
	return root
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
	logger := newLogger(cmd, cmd.ErrOrStderr(), slog.LevelWarn)
	for _, sentence := range settings.Unused(cmd) {
		logger.Warn(sentence)
	}
	return nil
}

// Arguments takes those that the use of a command names, like KEY and VALUE. Only the last of several may be
// empty. The error does not repeat them: a URL may have a password.
func Arguments(cmd *cobra.Command, arguments []string) error {
	names := strings.Fields(cmd.Use)[1:]
	for i := range max(len(names), len(arguments)) {
		if len(arguments) != len(names) || arguments[i] == "" && (i == 0 || i < len(names)-1) {
			return fmt.Errorf("usage: %s", cmd.UseLine())
		}
	}
	return nil
}

// version and commit are for releases, which set them with
// -ldflags "-X github.com/tenurelock/tenure/cmd/tenure/command.version=v1.2.3". Otherwise the
// toolchain says what was built.
var version, commit string

// programVersion returns the version. A build that is no release has its commit in that.
func programVersion() string {
	info, _ := debug.ReadBuildInfo()
	return cmp.Or(version, cmp.Or(info, new(debug.BuildInfo)).Main.Version, "(devel)")
}
