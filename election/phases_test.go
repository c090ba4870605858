package election

import (
	"errors"
	"testing"

	"github.com/tenurelock/tenure/lease"
)

func TestTheErrorOfATermSaysOnceWhyItsTenureEnded(t *testing.T) {
	failed := errors.New("the function failed")
	for _, test := range []struct {
		name  string
		taken bool
		err   error // of the function, or why it was not called
		want  string
	}{
		{"not called, because the tenure ended", true, lease.ErrLost, lease.ErrLost.Error()},
		{"failed, after the tenure ended", true, failed, lease.ErrLost.Error() + "\n" + failed.Error()},
		{"returned, after the tenure ended", true, nil, lease.ErrLost.Error()},
		{"failed by itself", false, failed, failed.Error()},
	} {
		p := phases{options: &Options{}, step: drain, taken: test.taken, cause: lease.ErrLost, err: test.err}
		if next := p.next(0, result{}); next.step != release || next.err == nil || next.err.Error() != test.want {
			t.Errorf("%s: %v: %v, want %s", test.name, next.step, next.err, test.want)
		}
	}
}
