package command

import (
	"context"
	"errors"
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
	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
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

	page string    // the address of the page
	told sync.Once // where the page is
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

// Run runs a further command of a Program that goes on until it is interrupted. It logs without waiting for the reader
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

const adminHelp = `--admin serves a status page over HTTP, with JSON (/api/state), metrics for
Prometheus (/metrics) and probes (/healthz, /readyz). It has no encryption and no
login, so it listens on this machine only unless --admin-insecure is given.`

// statusHelp is the text of --admin of the commands that ask a status page.
const statusHelp = "address of a status page, as serve and attach have in the same flag, such as 127.0.0.1:8080 or http://127.0.0.1:8080"

// adminFlags are the flags of the status page.
type adminFlags struct {
	addr     string
	hosts    []string
	insecure bool
	values   bool
}

func (a *adminFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&a.addr, "admin", "", "TCP address for the status page, such as 127.0.0.1:8080 or http://127.0.0.1:8080; port 0 takes a free one; default: no page")
	flags.StringSliceVar(&a.hosts, "admin-host", nil, "name, beside localhost and IP addresses, for which the status page answers; may be repeated")
	flags.BoolVar(&a.insecure, "admin-insecure", false, "let other machines read the status page")
	flags.BoolVar(&a.values, "admin-values", false, "show the values of leases on the status page; they contain what holders chose to tell")
}

// check refuses flags that do nothing, and addresses that others reach. It leaves host:port in addr.
func (a *adminFlags) check() error {
	if a.addr == "" && (len(a.hosts) > 0 || a.insecure || a.values) {
		return errors.New("--admin-host, --admin-insecure and --admin-values are about the status page; give --admin too")
	}
	if a.addr == "" {
		return nil
	}
	addr, err := adminclient.ListenAddress(a.addr)
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	a.addr = addr
	return admin.CheckAddress(a.addr, a.insecure)
}

// start begins to serve the page. stop ends it: the last thing that a process does,
// so that the page shows that it stops.
func (a *adminFlags) start(cmd *cobra.Command, process *process, mode string) (stop func(), err error) {
	if err := a.check(); err != nil || a.addr == "" {
		return func() {}, usage(err)
	}
	version, commit, modified := programVersion()
	listening, err := admin.Listen(admin.Options{
		Addr: a.addr, AllowInsecure: a.insecure, Hosts: a.hosts, Node: process.node, Logger: process.logger,
		About: admin.About{Mode: mode, Version: version, Commit: commit + modified, Values: a.values},
	})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w; choose another with --admin (port 0 takes a free one), or stop the program that uses it", err)
	case err != nil:
		return nil, err
	}
	process.page = listening.URL()
	stopping := context.AfterFunc(cmd.Context(), process.node.Stop)
	ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if err := listening.Serve(ctx); err != nil {
			process.logger.Error("the store goes on without its status page", "error", err)
		}
	})
	return func() {
		stopping()
		cancel()
		tasks.Wait()
	}, nil
}
