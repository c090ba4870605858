package output_test

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
)

func TestJSONHasNothingThatATerminalObeysAndMeansTheSame(t *testing.T) {
	const text = "a\x1b]0;x\x07\u009b31m\x7f\u202e\u2028\U000e0001 größe 図 <&>\n\t"
	var got bytes.Buffer
	if err := output.JSON(&got, map[string]string{"key": text}); err != nil {
		t.Fatal(err)
	}
	const want = `{"key":"a\u001b]0;x\u0007\u009b31m\u007f\u202e\u2028\udb40\udc01 größe 図 <&>\n\t"}` + "\n"
	if got.String() != want {
		t.Errorf("got  %q\nwant %q", got.String(), want)
	}
	var back map[string]string
	if err := json.Unmarshal(got.Bytes(), &back); err != nil || back["key"] != text {
		t.Errorf("it came back as %q, %v", back["key"], err)
	}
}

// An export comes in pieces that end anywhere.
func TestACharacterInTwoWritesIsEscaped(t *testing.T) {
	var got bytes.Buffer
	const text = "\"a\u009bb\U000e0001c図d\"\n"
	if _, err := io.Copy(output.Printable(&got), iotest.OneByteReader(strings.NewReader(text))); err != nil {
		t.Fatal(err)
	}
	if want := `"a\u009bb\udb40\udc01c図d"` + "\n"; got.String() != want {
		t.Errorf("%q, want %q", got.String(), want)
	}
}

func TestWhatIsNotUTF8IsInTheOtherField(t *testing.T) {
	if text, other := output.Text("größe"); *text != "größe" || other != nil {
		t.Errorf("%q, %q", *text, other)
	}
	if text, other := output.Text([]byte("a\xff")); text != nil || string(other) != "a\xff" {
		t.Errorf("%v, %q", text, other)
	}
}
