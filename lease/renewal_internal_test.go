package lease

import "testing"

// given is a request that notes that it was canceled.
type given struct{ up bool }

func (g *given) Cancel(error) { g.up = true }

// The renewal ends, and the question after it begins, when giveUp has decided and not yet canceled.
func TestTheEndOfARenewalDoesNotGiveUpTheQuestionAfterIt(t *testing.T) {
	renewal, question := new(given), new(given)
	tenure := &Tenure{busy: true, renewing: true, schedule: schedule{stopped: true}}
	tenure.call.Attach(renewal)
	tenure.cancelBind = func() {
		tenure.call.Attach(nil)
		tenure.call.Attach(question)
	}
	tenure.giveUp()
	if question.up || !renewal.up {
		t.Errorf("given up: the renewal %v, the question %v", renewal.up, question.up)
	}
}
