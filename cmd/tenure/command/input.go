package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// maxLine bounds a line that a command reads, in bytes.
const maxLine = 1 << 10

// fromInput returns what read reads from standard input, or the cause of ctx when that ends. The goroutine
// that reads stays blocked then, because a read from a terminal cannot be cancelled; the process ends next.
func fromInput[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		content T
		err     error
	}
	done := make(chan result, 1)
	go func() {
		content, err := read()
		done <- result{content, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return r.content, fmt.Errorf("standard input: %w", r.err)
		}
		return r.content, nil
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// readLine reads the first line, with its line break if it has one. An endless line is cut at maxLine
// bytes.
func readLine(r io.Reader) ([]byte, error) {
	line, err := bufio.NewReader(io.LimitReader(r, maxLine)).ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return line, err
}

// exactly accepts one argument for each name, and says which is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		line := cmd.Root().Name() + " " + cmd.Use
		switch {
		case len(arguments) < len(names):
			return fmt.Errorf("give %s: %s", names[len(arguments)], line)
		case len(arguments) > len(names):
			return fmt.Errorf("%q is one argument too many: %s", arguments[len(names)], line)
		}
		if i := slices.Index(arguments, ""); i >= 0 {
			return fmt.Errorf("an argument is empty: give %s: %s", names[i], line)
		}
		return nil
	}
}

// explainDashes makes the errors of a command about an unknown flag say what goes after --.
func explainDashes(cmd *cobra.Command, what, arguments string) {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			return fmt.Errorf("%w; %s goes after --: %s %s", err, what, cmd.CommandPath(), arguments)
		}
		return err
	})
}
