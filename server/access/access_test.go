package access_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/server/access"
)

func TestALogOfCredentialsHasNoPassword(t *testing.T) {
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var log bytes.Buffer
		slog.New(handler(&log)).Info("x", "credentials", access.Credentials{Client: "press-7", User: "plant", Password: []byte("secret")})
		text := log.String()
		if !strings.Contains(text, "press-7") || !strings.Contains(text, "plant") || strings.Contains(text, "secret") || strings.Contains(text, "c2VjcmV0") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
