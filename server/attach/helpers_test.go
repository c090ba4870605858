package attach_test

import (
	"testing"

	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// attachAlone is testsupport.Attach for a test in which no other store exists: it does not
// wait for the objection of one.
func attachAlone(t testing.TB, address string, options attach.Options) *testsupport.Attachment {
	t.Helper()
	store, err := attach.New("mqtt://"+address, options)
	if err != nil {
		t.Fatal(err)
	}
	store.Alone()
	a := testsupport.ServeAttached(t, store)
	a.MustBeReady()
	return a
}
