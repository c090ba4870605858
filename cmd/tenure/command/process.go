package command

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
)

const (
	// logQueue is how many bytes of the log may wait for the program that reads it.
	logQueue = 1 << 20
	// logFlush bounds how long the process waits at its end for the log to be read.
	logFlush = time.Second
)

// A process holds what a long-running command does besides its work: it logs without waiting
// for the reader of the log, and survives SIGHUP.
type process struct {
	logger  *slog.Logger
	level   *slog.LevelVar // of logger
	hangups chan os.Signal
}

// startProcess sets the streams of cmd and catches signals. The log has level and above, or
// everything with verbose. The caller calls stop at the end.
func startProcess(cmd *cobra.Command, level slog.Level, verbose bool) (p *process, stop func()) {
	stdout, stderr := logwriter.New(cmd.OutOrStdout(), logQueue), logwriter.New(cmd.ErrOrStderr(), logQueue)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	variable := new(slog.LevelVar)
	variable.Set(level)
	if verbose {
		variable.Set(slog.LevelDebug)
	}
	p = &process{
		logger:  slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: variable})),
		level:   variable,
		hangups: make(chan os.Signal, 1),
	}
	// The process goes on after its terminal closed. Its log may have no reader then: with
	// SIGPIPE ignored, a line that cannot be written is lost and does not end the process.
	signal.Ignore(syscall.SIGPIPE)
	signal.Notify(p.hangups, syscall.SIGHUP)
	return p, func() {
		signal.Stop(p.hangups)
		for _, writer := range []*logwriter.Writer{stderr, stdout} {
			writer.Close(logFlush)
		}
	}
}

// A reload reads a file again. On an error the content read before stays in force.
type reload struct {
	flag string // the flag that names the file
	read func() error
}

// run calls work, and reads the files again on SIGHUP meanwhile. The context of work ends with ctx.
func (p *process) run(ctx context.Context, reloads []reload, work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { p.reloadOnHangup(ctx, reloads) })
	err := work(ctx)
	cancel()
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
