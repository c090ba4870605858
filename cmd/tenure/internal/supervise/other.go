//go:build !unix

package supervise

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
)

// errOther: the guard needs signals, process groups and sockets that pass descriptors.
var errOther = errors.New("run and lock need Linux or another Unix; on this system let a program hold its lease with the library: docs/embed.md")

// Shell is what runs the command line of Check.
const Shell = "a shell"

// Intercept does nothing.
func Intercept() {}

// CanSupervise returns an error: no program can be supervised on this system.
func CanSupervise() error { return errOther }

// Run returns the error of CanSupervise.
func Run(context.Context, Lease, Options) (Status, error) { return Status{}, errOther }

// Check returns the error of CanSupervise.
func Check(context.Context, string, string, []string) error { return errOther }

// Lock returns the error of CanSupervise.
func Lock(string) (io.Closer, error) { return nil, errOther }

// Adopt does nothing.
func Adopt() (stop func()) { return func() {} }

// CatchSignals returns a channel that gets what ends this process, until stop closes it.
func CatchSignals() (caught <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	return signals, func() {
		signal.Stop(signals)
		close(signals)
	}
}

// IsEnd returns true.
func IsEnd(os.Signal) bool { return true }

// IsHangup returns false.
func IsHangup(os.Signal) bool { return false }

// HasTerminal returns false.
func HasTerminal() bool { return false }

// EndByInterrupt does nothing: a process ends with a code here.
func EndByInterrupt(bool) {}
