package member

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger returns a logger for etcd that writes to logger. etcd says at its level info what
// its developers need, so that becomes debug. So does what is usual, and, while the member is quiet, all: etcd takes
// sockets that it has closed for errors. What etcd repeats all the time is left out. flush, which may be nil, is called
// after the last line of the process.
func zapLogger(logger *slog.Logger, flush func(), quiet *atomic.Bool) *zap.Logger {
	core := logCore{logger, flush, quiet}
	return zap.New(zapcore.NewSamplerWithOptions(core, repetitionInterval, perInterval, 0))
}

// logCore is a zapcore.Core on a slog.Logger.
type logCore struct {
	logger *slog.Logger
	flush  func()
	quiet  *atomic.Bool
}

// While two of three members are lost, etcd logs several lines a second, for days if need be. Each message is
// logged perInterval times in each repetitionInterval: each member has two others, and both are of interest.
const (
	perInterval        = 3
	repetitionInterval = 5 * time.Minute
)

// usual are warnings of etcd v3.6.14 about what this package has chosen, of a member that joins a cluster with data,
// and of each planned stop of another member: that it is gone has a line of its own, "peer became inactive".
var usual = []string{
	"Failed to detect schema version",
	"failed to update storage version",
	"failed to find remote peer in cluster",
	// no HTTP but for peers
	"Running http and grpc server on single port. This is not recommended for production.",
	"simple token is not cryptographically signed", // no passwords
	// the socket in Dir
	"scheme is http or unix while key and cert files are present; ignoring key and cert files",
	"scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL", // likewise
	"lost TCP streaming connection with remote peer",
	"closed TCP streaming connection with remote peer",
	// it is asked again
	"ignored out-of-date read index response; local node read indexes queueing up and waiting to be in sync with leader",
}

// endHint is what an operator can do where etcd ends the process.
const endHint = "etcd cannot go on and ends the process: if the disk is full, free space on it and start again; if " +
	"it has failed, replace the member"

func slogLevel(level zapcore.Level) slog.Level {
	switch {
	case level >= zapcore.ErrorLevel: // and those after which etcd ends the process
		return slog.LevelError
	case level == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (c logCore) Enabled(level zapcore.Level) bool {
	return c.logger.Enabled(context.Background(), slogLevel(level))
}

func (c logCore) With(fields []zapcore.Field) zapcore.Core {
	return logCore{slog.New(c.logger.Handler().WithAttrs(attributes(fields))), c.flush, c.quiet}
}

func (c logCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c logCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level, attrs := slogLevel(entry.Level), attributes(fields)
	if c.quiet.Load() || slices.Contains(usual, entry.Message) {
		level = slog.LevelDebug
	}
	ends := entry.Level > zapcore.ErrorLevel // etcd ends the process next
	if ends {
		attrs = append(attrs, slog.String("hint", endHint))
	}
	c.logger.LogAttrs(context.Background(), level, "etcd: "+entry.Message, attrs...)
	if ends && c.flush != nil {
		c.flush()
	}
	return nil
}

func (logCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) []slog.Attr {
	encoder := zapcore.NewMapObjectEncoder()
	attributes := make([]slog.Attr, 0, len(fields))
	for _, field := range fields {
		if field.Key == "" || field.Type == zapcore.SkipType {
			continue
		}
		field.AddTo(encoder)
		attributes = append(attributes, slog.Any(field.Key, encoder.Fields[field.Key]))
	}
	return attributes
}
