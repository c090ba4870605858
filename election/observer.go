package election

import (
	"fmt"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// enter sets the phase, and has the client call the Logger and the observer. It does not wait for them: the
// channel is closed when they have returned. Run waits before it enters a phase again, unless it holds the
// lease, so few phases wait for the observer.
func (e *Elector) enter(phase Phase, token hlc.Token, cause error) (delivered <-chan error) {
	var status Status
	e.set(func() {
		e.status = Status{Phase: phase, Since: time.Now(), Term: e.status.Term, Token: token, Cause: cause}
		status = e.statusLocked()
	})
	done := make(chan error)
	e.client.Call(func() {
		defer close(done)
		e.log(status)
		// call runs the observer in a goroutine of its own: the observer could end this one.
		if err := <-call("the observer", func() error { e.options.Observer(status); return nil }); err != nil {
			e.options.Logger.Error("the observer failed", "lease", e.lease.Name(), "error", err)
		}
	})
	return done
}

// log logs whether this node leads, and why not, once for each change. Package lease logs which
// holder a node waits for.
func (e *Elector) log(s Status) {
	text := map[Phase]string{Standby: "standing by", Active: "leading", Draining: "no longer leading"}[s.Phase]
	attributes := []any{"lease", e.lease.Name()}
	if s.Phase == Active {
		attributes = append(attributes, "token", s.Token.String())
	}
	if s.Cause != nil {
		attributes = append(attributes, "cause", s.Cause)
	}
	if line := fmt.Sprint(text, attributes); text != "" && line != e.logged {
		e.logged = line
		e.options.Logger.Info(text, attributes...)
	}
}

// standBy enters Standby and waits for the observer: no other node waits for this one then.
func (e *Elector) standBy(cause error) { <-e.enter(Standby, hlc.Token{}, cause) }
