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
	"github.com/tenurelock/tenure/cmd/tenure/internal/memory"
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
	flush   func() // waits a moment until the log is written
	hangups chan os.Signal
	manager *systemd.Manager
	node    *admin.Node // what this process does, for the status page and the watchdog
	page    string      // the address of the page; empty: there is none, or standard output has it
}

// startProcess sets the streams of cmd and catches signals. The flags decide the level of the
// log, or else level. The caller calls stop at the end.
func startProcess(cmd *cobra.Command, level slog.Level) (p *process, stop func()) {
	stdout := logwriter.New(cmd.OutOrStdout(), logQueue)
	cmd.SetOut(stdout)
	logger, flush, stopLog := startLog(cmd, level)
	p = &process{logger: logger, flush: flush, node: admin.NewNode(), hangups: make(chan os.Signal, 1)}
	// The process goes on after its terminal closed. Its log may have no reader then: with
	// SIGPIPE ignored, a line that cannot be written is lost and does not end the process.
	signal.Ignore(syscall.SIGPIPE)
	signal.Notify(p.hangups, syscall.SIGHUP)
	p.manager = systemd.FromEnvironment(p.logger)
	return p, func() {
		signal.Stop(p.hangups)
		p.manager.Close()
		stopLog()
		stdout.Close(logFlush)
	}
}

// ready says on standard output and to systemd what the process does from now on, and where its status page is.
func (p *process) ready(cmd *cobra.Command, what string) {
	fmt.Fprintln(cmd.OutOrStdout(), what)
	if p.page != "" {
		fmt.Fprintf(cmd.OutOrStdout(), "status page on %s\n", p.page)
		p.page = ""
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
func Run(
	cmd *cobra.Command, run func(_ context.Context, _ *slog.Logger, flush func(), ready func(what string)) error,
) error {
	process, stop := startProcess(cmd, slog.LevelWarn)
	defer stop()
	ready := func(what string) { process.ready(cmd, what) }
	return process.run(cmd.Context(), nil, func(ctx context.Context) error {
		return run(ctx, process.logger, process.flush, ready)
	})
}

// A reload reads a file again. On an error the content read before stays in force.
type reload struct {
	flag string // the flag that names the file
	read func() error
}

// run calls work. Meanwhile it reads the files again on SIGHUP, and returns unused memory to the system. The context
// of work ends with ctx.
// The watchdog of systemd hears of the process until work has returned.
func (p *process) run(ctx context.Context, reloads []reload, work func(context.Context) error) error {
	working, cancel := context.WithCancel(ctx)
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx)) // what hangs while it stops hangs too
	var tasks sync.WaitGroup
	tasks.Go(func() { memory.Release(working) })
	tasks.Go(func() { p.reloadOnHangup(working, reloads) })
	tasks.Go(func() { p.manager.Watch(watching, p.node.Probe) })
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

// registerLogFlags adds the flags of the log to all commands.
func registerLogFlags(flags *pflag.FlagSet) {
	settings.Choice(flags, new(string), "log-level", []string{"debug", "info", "warn", "error"},
		"what to log on standard error; debug has every request and connection; default: what the command needs")
	format := "text"
	settings.Choice(flags, &format, "log-format", []string{format, "json"}, "how to write the log; text is key=value")
}

// startLog returns a logger that does not wait for the reader of standard error. flush waits a moment until
// that has read everything, and stop does so for the last time.
func startLog(cmd *cobra.Command, level slog.Level) (logger *slog.Logger, flush, stop func()) {
	stderr := logwriter.New(cmd.ErrOrStderr(), logQueue)
	return newLogger(cmd, stderr, level), func() { stderr.Flush(logFlush) }, func() { stderr.Close(logFlush) }
}

// newLogger returns a logger to w, as the flags say. level is for a command without --log-level.
func newLogger(cmd *cobra.Command, w io.Writer, level slog.Level) *slog.Logger {
	if name := cmd.Flag("log-level").Value.String(); name != "" {
		_ = level.UnmarshalText([]byte(name)) // the flag takes no other names
	}
	options := &slog.HandlerOptions{Level: level}
	if cmd.Flag("log-format").Value.String() == "json" {
		return slog.New(slog.NewJSONHandler(output.Printable(w), options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// pageFlags are the flags of the status page of serve and attach.
type pageFlags struct {
	addr     string
	hosts    []string
	insecure bool
}

func (f *pageFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "admin", "", "TCP address for a status page with metrics and probes, such as 127.0.0.1:8080")
	flags.StringSliceVar(&f.hosts, "admin-host", nil, "name, beside localhost, for which the status page answers")
	flags.BoolVar(&f.insecure, "admin-insecure", false, "let other machines read the status page, which has no login")
}

// start begins to serve the page. stop ends it: the last thing that a process does,
// so that the page shows that it stops.
func (f *pageFlags) start(cmd *cobra.Command, process *process, mode string) (stop func(), err error) {
	if f.addr == "" {
		return func() {}, nil
	}
	if err := admin.CheckAddress(f.addr, f.insecure); err != nil {
		return nil, Usage(err)
	}
	listening, err := admin.Listen(admin.Options{
		Addr: f.addr, Hosts: f.hosts, Node: process.node, Logger: process.logger,
		About: admin.About{Mode: mode, Version: programVersion(), Commit: commit},
	})
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
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
