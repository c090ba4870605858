package logs

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestANameInALogIsShortAndCannotForgeALine(t *testing.T) {
	long := strings.Repeat("x", 65_000)
	for _, test := range []struct{ name, given, want string }{
		{"as it is", "press-7/active", "press-7/active"},
		{"letters of other alphabets", "Prüfstand 7", "Prüfstand 7"},
		{"a quote, which handlers escape", `a"b`, `a"b`},
		{"a line end", "a\nlevel=ERROR", `a\nlevel=ERROR`},
		{"an escape sequence", "\x1b[2J", `\x1b[2J`},
		{"not UTF-8", "a\xffb", `a\xffb`},
		{"a text that turns direction", "a\u202eb", `a\u202eb`},
		{"as long as may be", long[:MaxName], long[:MaxName]},
		{"too long", long, long[:MaxName] + "… (65000 bytes)"},
		{"cut between characters", long[:MaxName-1] + "üü", long[:MaxName-1] + "… (67 bytes)"},
		{"nothing", "", ""},
	} {
		if got := Name(test.given).String(); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	if got := Name(strings.Repeat("\x00", 10_000)).String(); len(got) > 5*MaxName {
		t.Errorf("%d bytes of a name that is all escapes", len(got))
	}
}

func TestAReasonInALogIsCutToo(t *testing.T) {
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Warn("refused",
		"client", Name(strings.Repeat("c", 65_000)), "error", Error(errors.New(strings.Repeat("e\n", 65_000))))
	if len(log.String()) > 2*(MaxName+2*MaxText) || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("%d bytes: %s", len(log.String()), log.String())
	}
	if Error(nil) != "" {
		t.Error("no error has a text")
	}
}
