package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/cmd/tenure/internal/systemd"
)

const (
	// logQueue is how many bytes of the log may wait for the program that reads it.
	logQueue = 1 << 20
	// logFlush bounds how long the process waits at its end for the log to be read.
	logFlush = time.Second
)

// A process holds what a long-running command does besides its work: it logs without waiting
// for the reader of the log, survives SIGHUP, and tells systemd how it is.
type process struct {
	logger  *slog.Logger
	flush   func()         // waits a moment until the log is written
	level   *slog.LevelVar // of logger
	isGiven bool           // the level, by --log-level
	hangups chan os.Signal
	manager *systemd.Manager
	node    *admin.Node // what this process does, for the status page and the watchdog

	recorder *admin.Recorder // of the status page; nil: there is none
	page     string          // the address of the page
	told     sync.Once       // where the page is
}

// startProcess sets the streams of cmd and catches signals. The flags decide the level of the
// log, or else level. The caller calls stop at the end.
func startProcess(cmd *cobra.Command, level slog.Level) (p *process, stop func()) {
	stdout, stderr := logwriter.New(cmd.OutOrStdout(), logQueue), logwriter.New(cmd.ErrOrStderr(), logQueue)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	logger, variable := newLogger(cmd, stderr, level)
	flush := func() { stderr.Flush(logFlush) }
	p = &process{logger: logger, flush: flush, level: variable, isGiven: givenLevel(cmd) != "", node: admin.NewNode(), hangups: make(chan os.Signal, 1)}
	// The process goes on after its terminal closed. Its log may have no reader then: with
	// SIGPIPE ignored, a line that cannot be written is lost and does not end the process.
	signal.Ignore(syscall.SIGPIPE)
	signal.Notify(p.hangups, syscall.SIGHUP)
	p.manager = systemd.FromEnvironment(p.logger)
	return p, func() {
		signal.Stop(p.hangups)
		p.manager.Close()
		for _, writer := range []*logwriter.Writer{stderr, stdout} {
			writer.Close(logFlush)
		}
	}
}

// ready says on standard output and to systemd what the process does from now on, and where its status page is.
func (p *process) ready(cmd *cobra.Command, what string) {
	fmt.Fprintln(cmd.OutOrStdout(), what)
	if p.page != "" {
		p.told.Do(func() { fmt.Fprintf(cmd.OutOrStdout(), "status page on %s\n", p.page) })
	}
	p.manager.Ready(what)
}

// startClient is startProcess for a command that is a client: its output is written directly, and
// SIGHUP and SIGPIPE end it, unless it catches them as run and lock do.
func startClient(cmd *cobra.Command, level slog.Level) (p *process, stop func()) {
	stderr := logwriter.New(cmd.ErrOrStderr(), logQueue)
	logger, variable := newLogger(cmd, stderr, level)
	return &process{logger: logger, level: variable, node: admin.NewNode()}, func() { stderr.Close(logFlush) }
}

// A reload reads a file again. On an error the content read before stays in force.
type reload struct {
	flag string // the flag that names the file
	read func() error
}

// run calls work, and reads the files again on SIGHUP meanwhile. The context of work ends with ctx.
// The watchdog of systemd hears of the process until work has returned.
func (p *process) run(ctx context.Context, reloads []reload, work func(context.Context) error) error {
	working, cancel := context.WithCancel(ctx)
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx)) // what hangs while it stops hangs too
	var tasks sync.WaitGroup
	tasks.Go(func() { p.reloadOnHangup(working, reloads) })
	tasks.Go(func() { p.manager.Watch(watching, p.answers) })
	tasks.Go(func() {
		<-working.Done()
		if ctx.Err() != nil { // otherwise work has ended by itself, and may be called again
			p.manager.Stopping()
		}
	})
	err := work(working)
	cancel()
	unwatch()
	tasks.Wait()
	return err
}

// answers reports whether the process works, to the watchdog. If the locks of the store are held
// for ever, it does not return.
func (p *process) answers() bool {
	p.node.Probe()
	return true
}

// reloadOnHangup reads the files again on SIGHUP, until ctx ends.
func (p *process) reloadOnHangup(ctx context.Context, reloads []reload) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.hangups:
		}
		if len(reloads) == 0 {
			p.logger.Warn("SIGHUP: there is nothing to read again; SIGINT or SIGTERM stops this process")
		}
		for _, r := range reloads {
			if err := r.read(); err != nil {
				p.logger.Error("cannot read again; what was read before stays in force", "flag", r.flag, "error", err)
				continue
			}
			p.logger.Warn("read again", "flag", r.flag)
		}
	}
}

// logLevels and logFormats are the values of --log-level and --log-format.
var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"text", "json"}
)

// registerLogFlags adds the flags of the log to all commands.
func registerLogFlags(flags *pflag.FlagSet) {
	settings.Choice(flags, new(string), "log-level", logLevels, "what to log on standard error; debug has every request and connection; default: what the command needs")
	format := logFormats[0]
	settings.Choice(flags, &format, "log-format", logFormats, "how to write the log; text is key=value")
	flags.Bool("verbose", false, "the same as --log-level debug")
}

// givenLevel returns the value of --log-level, "" if it was not given.
func givenLevel(cmd *cobra.Command) string {
	if f := cmd.Flags().Lookup("log-level"); f != nil {
		return f.Value.String()
	}
	return ""
}

// newLogger returns a logger to w, and its level: what the flags say, or else otherwise.
func newLogger(cmd *cobra.Command, w io.Writer, otherwise slog.Level) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(otherwise)
	options := &slog.HandlerOptions{Level: level}
	flags := cmd.Flags()
	if verbose, err := flags.GetBool("verbose"); err == nil && verbose {
		level.Set(slog.LevelDebug)
	}
	if name := givenLevel(cmd); name != "" {
		_ = level.UnmarshalText([]byte(name)) // the flag takes no other names
	}
	if f := flags.Lookup("log-format"); f != nil && f.Value.String() == "json" {
		return slog.New(slog.NewJSONHandler(output.Printable(w), options)), level
	}
	return slog.New(slog.NewTextHandler(w, options)), level
}
