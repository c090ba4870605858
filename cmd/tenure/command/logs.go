package command

import (
	"errors"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// registerLogFlags adds the flags of the log to all commands.
func registerLogFlags(flags *pflag.FlagSet) {
	flags.Var(new(logLevel), "log-level", "what to log on standard error: debug, info, warn or error; debug has every request and connection; default: what the command needs")
	format := logFormat("text")
	flags.Var(&format, "log-format", "how to write the log: text, as key=value, or json")
	flags.Bool("verbose", false, "the same as --log-level debug")
}

// logLevel is a flag for a level; nil: not given.
type logLevel struct{ level *slog.Level }

var _ pflag.Value = (*logLevel)(nil)

// Set takes the name of a level.
func (l *logLevel) Set(name string) error {
	var level slog.Level
	switch name {
	case "debug", "info", "warn", "error":
		l.level = &level
		return level.UnmarshalText([]byte(name))
	}
	return errors.New("choose debug, info, warn or error")
}

// String returns the name, or nothing if the flag is not given.
func (l *logLevel) String() string {
	if l.level == nil {
		return ""
	}
	return strings.ToLower(l.level.String())
}

// Type is the kind of value in --help.
func (l *logLevel) Type() string { return "level" }

// logFormat is a flag: text or json.
type logFormat string

var _ pflag.Value = (*logFormat)(nil)

// Set takes the name of a format.
func (f *logFormat) Set(name string) error {
	if name != "text" && name != "json" {
		return errors.New("choose text or json")
	}
	*f = logFormat(name)
	return nil
}

// String returns the name.
func (f *logFormat) String() string { return string(*f) }

// Type is the kind of value in --help.
func (f *logFormat) Type() string { return "format" }

// newLogger returns a logger to w, and its level: that of the flags, or else otherwise.
func newLogger(cmd *cobra.Command, w io.Writer, otherwise slog.Level) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(otherwise)
	options := &slog.HandlerOptions{Level: level}
	flags := cmd.Flags()
	if verbose, err := flags.GetBool("verbose"); err == nil && verbose {
		level.Set(slog.LevelDebug)
	}
	if f := flags.Lookup("log-level"); f != nil {
		if given := f.Value.(*logLevel).level; given != nil {
			level.Set(*given)
		}
	}
	if f := flags.Lookup("log-format"); f != nil && f.Value.String() == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), level
	}
	return slog.New(slog.NewTextHandler(w, options)), level
}
