package settings

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestANumberOfBytesMayHaveAUnit(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "536870912": 512 << 20, "512MiB": 512 << 20, "2GiB": 2 << 30, "1.5 KiB": 1536, "0.5GiB": 512 << 20,
		"64 KiB": 64 << 10, "100B": 100, "8191TiB": 8191 << 40, "9223372036854775807": 1<<63 - 1,
	} {
		var got byteSize
		if err := got.Set(text); err != nil || int64(got) != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
		var again byteSize
		if err := again.Set(got.String()); err != nil || again != got {
			t.Errorf("%q becomes %q, which is %d, %v", text, got.String(), again, err)
		}
	}
	for _, text := range []string{"", "MiB", "512MB", "512m", "-1", "-1MiB", "-0.5MiB", "1.5", "1.5B", "1 2", "NaNMiB", "InfGiB", "1e300GiB",
		"9223372036854775808", "8388608TiB", "8388607.9TiB", "ten"} {
		if got := byteSize(7); got.Set(text) == nil || got != 7 {
			t.Errorf("%q: %d was accepted", text, got)
		}
	}
}

func TestAChoiceTakesItsValuesAndNamesThem(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	format, level := "text", ""
	Choice(flags, &format, "format", []string{"text", "json"}, "how to write")
	Choice(flags, &level, "level", []string{"debug", "info", "warn"}, "what to write")
	if format != "text" || level != "" {
		t.Errorf("the defaults are %q and %q", format, level)
	}
	if err := flags.Parse([]string{"--format", "json", "--level", "warn"}); err != nil || format != "json" || level != "warn" {
		t.Errorf("%q, %q, %v", format, level, err)
	}
	for _, text := range []string{"", "Text", "xml"} {
		if err := flags.Set("format", text); err == nil || !strings.Contains(err.Error(), "choose text or json") || format != "json" {
			t.Errorf("%q: %v", text, err)
		}
	}
	if help := flags.FlagUsages(); !strings.Contains(help, "how to write: text or json (default text)") || !strings.Contains(help, "what to write: debug, info or warn\n") {
		t.Errorf("the help is\n%s", help)
	}
}
