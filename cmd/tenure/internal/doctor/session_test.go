package doctor

import (
	"errors"
	"testing"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/transport"
)

// The doctor reads a refusal as the client does.
func TestTheTextOfARefusalIsWhatTheClientReads(t *testing.T) {
	for payload, want := range map[string]string{
		"-ERR syntax error\r\n":          "syntax error",
		"-ERR: the watch is refused\r\n": "the watch is refused",
		"-ERROR busy\r\n":                "ERROR busy",
		"-ERR\r\n":                       "ERR",
	} {
		_, err := readAnswer(&mqtt.Publish{Payload: []byte(payload)}, answer{})
		var refused *transport.RefusedError
		if !errors.As(err, &refused) || refused.Text != want {
			t.Errorf("%q: %v, want %q", payload, err, want)
		}
	}
}
