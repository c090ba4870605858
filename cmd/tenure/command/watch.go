package command

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/transport"
)

func watchCommand() *cobra.Command {
	var k keyFlags
	watch := &cobra.Command{
		Use:   "watch KEY",
		Short: "Print a key and then each change of it, until interrupted",
		Long: `Print what a key holds and then each change, a line each, until SIGINT or
SIGTERM: the time, "set" and the value as a quoted string, or "missing". When the
connection was lost, the line says "missed": changes may lie before it.

` + connectionHelp,
		Example: `watch recipe --json | jq --unbuffered .value`,
		Args:    exactly("the key"),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return k.withKey(cmd, arguments[0], func(ctx context.Context, client *transport.Client, key string) error {
				if _, err := client.Get(ctx, key); err != nil {
					return err // a watch would wait for a store that is not there
				}
				return k.watch(ctx, cmd, client, key)
			})
		},
	}
	k.register(watch.Flags(), "print values in hexadecimal digits")
	return watch
}

// watch prints changes until ctx ends.
func (k *keyFlags) watch(ctx context.Context, cmd *cobra.Command, client *transport.Client, key string) error {
	watch, err := client.Watch(key)
	if err != nil {
		return err
	}
	defer watch.Close()
	for {
		select {
		case <-ctx.Done():
			return nil // it was to go on until then
		case change, open := <-watch.Changes():
			if !open {
				return watch.Err()
			}
			if err := k.printChange(cmd.OutOrStdout(), key, change); err != nil {
				return err
			}
		}
	}
}

func (k *keyFlags) printChange(w io.Writer, key string, change transport.Change) error {
	now := time.Now().Format(timeLayout)
	if k.asJSON {
		report := reportOf(key).with(change.Entry)
		report.Time, report.Missed = now, change.Missed
		return output.JSON(w, report)
	}
	line := now + " missing"
	switch {
	case change.Exists && k.hexValue:
		line = fmt.Sprintf("%s set %x", now, change.Value)
	case change.Exists:
		line = fmt.Sprintf("%s set %q", now, change.Value)
	}
	if change.Missed {
		line += " (missed: there may have been other changes before)"
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
