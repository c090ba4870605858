package member

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapLogger returns a logger for etcd that writes to logger. etcd says at its level info what
// its developers need, so that becomes debug.
func zapLogger(logger *slog.Logger) *zap.Logger {
	return zap.New(logCore{logger})
}

// logCore is a zapcore.Core on a slog.Logger.
type logCore struct{ logger *slog.Logger }

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
	return logCore{slog.New(c.logger.Handler().WithAttrs(attributes(fields)))}
}

func (c logCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c logCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	c.logger.LogAttrs(context.Background(), slogLevel(entry.Level), "etcd: "+entry.Message, attributes(fields)...)
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
