package member

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger returns a logger for etcd that writes to logger. etcd says at its level info what
// its developers need, so that becomes debug. So does everything once closing is true: etcd
// v3.6.14 then takes its own closed sockets for errors.
func zapLogger(logger *slog.Logger, closing *atomic.Bool) *zap.Logger {
	return zap.New(logCore{logger, closing})
}

// logCore is a zapcore.Core on a slog.Logger.
type logCore struct {
	logger  *slog.Logger
	closing *atomic.Bool
}

// usual are warnings of etcd v3.6.14 about what this package has chosen.
var usual = []string{
	"Running http and grpc server on single port. This is not recommended for production.",               // no HTTP but for peers
	"simple token is not cryptographically signed",                                                       // no passwords
	"scheme is http or unix while key and cert files are present; ignoring key and cert files",           // the socket in Dir
	"scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL", // likewise
}

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
	return logCore{slog.New(c.logger.Handler().WithAttrs(attributes(fields))), c.closing}
}

func (c logCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c logCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	level := slogLevel(entry.Level)
	if c.closing.Load() || slices.Contains(usual, entry.Message) {
		level = slog.LevelDebug
	}
	c.logger.LogAttrs(context.Background(), level, "etcd: "+entry.Message, attributes(fields)...)
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
