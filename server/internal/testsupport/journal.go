package testsupport

import (
	"testing"

	"github.com/tenurelock/tenure/transport/transporttest"
)

// MustBeCommitting waits until a commit is under way.
func MustBeCommitting(t testing.TB, journal *transporttest.Journal) {
	t.Helper()
	Eventually(t, "a commit begins", journal.Committing)
}
