package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// maxLine bounds a line that a command reads, in bytes.
const maxLine = 1 << 10

// fromInput returns what read reads from standard input, or the cause of ctx when that ends. The goroutine
// that reads stays blocked then, because a read from a terminal cannot be cancelled; the process ends next.
func fromInput(ctx context.Context, read func() ([]byte, error)) (content []byte, err error) {
	done := make(chan struct{})
	var got []byte
	var failure error
	go func() {
		defer close(done)
		got, failure = read()
	}()
	select {
	case <-done:
		if failure != nil {
			return nil, fmt.Errorf("standard input: %w", failure)
		}
		return got, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// readLine reads the first line of standard input, with its line break if it has one. An endless line is cut at
// maxLine bytes.
func readLine(cmd *cobra.Command) ([]byte, error) {
	return fromInput(cmd.Context(), func() ([]byte, error) {
		line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), maxLine)).ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return line, err
	})
}

// readValue returns the value that an argument names: itself, or standard input for "-".
func readValue(cmd *cobra.Command, argument string) ([]byte, error) {
	if argument != "-" {
		return []byte(argument), nil
	}
	return fromInput(cmd.Context(), func() ([]byte, error) {
		content, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxValue+1))
		if err == nil && len(content) > maxValue {
			return nil, fmt.Errorf("it has more than %d bytes, and no store takes such a value", maxValue)
		}
		return content, err
	})
}
