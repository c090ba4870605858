package terminal

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	enter = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leave = "\x1b[?25h\x1b[?1049l"
	// A terminal that knows synchronized updates shows a whole frame; others ignore it.
	beginFrame = "\x1b[?2026h\x1b[H"
	endFrame   = "\x1b[J\x1b[?2026l"
	endLine    = "\x1b[K"

	// keyPoll is how often the reader of keys looks whether it should end.
	keyPoll = 100 * time.Millisecond
	ctrlC   = 3
	ctrlD   = 4
)

// ErrNoTerminal is the error of Show on an output that is no terminal.
var ErrNoTerminal = errors.New("the output is not a terminal")

// Show takes over the terminal and draws what frame returns, every interval, until ctx ends, or the user
// presses q, Ctrl-C or Ctrl-D on in; in may be no terminal, then no key ends it. frame gets the present
// size, and returns clean lines, in colors perhaps; what does not fit is cut. It is called from one
// goroutine. When Show returns, the terminal is as before.
//
// The error is nil after a key, ErrNoTerminal, an error of the terminal, or the cause of ctx.
func (o *Output) Show(ctx context.Context, in *os.File, interval time.Duration, frame func(columns, rows int) []string) (err error) {
	if !o.isTerminal {
		return ErrNoTerminal
	}
	ctx, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	if input := int(in.Fd()); term.IsTerminal(input) {
		before, failed := term.MakeRaw(input)
		if failed != nil {
			return failed
		}
		var keys sync.WaitGroup
		keys.Go(func() { quit(awaitQuit(ctx, in)) })
		defer func() {
			quit(nil)
			keys.Wait() // before the terminal is as it was
			err = errors.Join(err, term.Restore(input, before))
		}()
	}
	if _, err := io.WriteString(o, enter); err != nil {
		return err
	}
	defer func() {
		_, failed := io.WriteString(o, leave)
		err = errors.Join(err, failed)
	}()
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		columns, rows := o.size()
		if err := o.draw(frame(columns, rows), rows); err != nil {
			return err
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errQuit) {
				return cause
			}
			return nil
		}
	}
}

// draw writes one frame in one piece: each line over what was there before, so that nothing flickers.
func (o *Output) draw(lines []string, rows int) error {
	var b strings.Builder
	b.WriteString(beginFrame)
	for i, line := range lines[:min(len(lines), rows)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
		b.WriteString(endLine)
	}
	b.WriteString(endFrame)
	_, err := io.WriteString(o, b.String())
	return err
}

// errQuit says that the user ended the screen.
var errQuit = errors.New("the user ended it")

// awaitQuit reads keys until one of them ends the screen, or ctx ends.
func awaitQuit(ctx context.Context, in *os.File) error {
	keys := make([]byte, 64)
	for ctx.Err() == nil {
		// A read would not end with ctx.
		ready, err := readable(in, keyPoll)
		if err != nil {
			return err
		}
		if !ready {
			continue
		}
		n, err := in.Read(keys)
		if err != nil { // the terminal is gone
			return err
		}
		for _, key := range keys[:n] {
			switch key {
			case 'q', 'Q', ctrlC, ctrlD:
				return errQuit
			}
		}
	}
	return ctx.Err()
}
