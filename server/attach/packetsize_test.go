package attach_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestAnAttachedStoreSaysWhichPacketsItTakesAndNoLargerOneHarmsIt(t *testing.T) {
	t.Parallel()
	broker, a := begin(t, "", attach.Options{MaxPacketSize: 8192})
	client := testsupport.Dial(t, broker.Address, transport.Options{})
	fits := bytes.Repeat([]byte("v"), 7000)
	if _, err := client.Set(t.Context(), "k", fits, transport.SetOptions{}); err != nil {
		t.Errorf("a request that fits: %v", err)
	}
	impatient := testsupport.Dial(t, broker.Address, transport.Options{ClientOptions: transport.ClientOptions{RequestTimeout: time.Second}})
	if _, err := impatient.Set(t.Context(), "k", make([]byte, 9000), transport.SetOptions{}); !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("one that does not: %v", err)
	}
	testsupport.MustHold(t, client, "k", string(fits))
	if stats := a.Stats(); stats.Attachments != 1 {
		t.Errorf("%+v", stats)
	}
}
