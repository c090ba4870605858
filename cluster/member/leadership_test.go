package member_test

import (
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func TestAMemberHandsLeadershipOnWhileItsProcessCannotServeAndWhenItCloses(t *testing.T) {
	options := three(t)
	for i := range options {
		options[i].Election = 5 * time.Second
	}
	witness := 0
	options[witness].Witness = true
	members := startAll(t, options[:])
	former := -1
	awaitAnother := func() {
		t.Helper()
		next := -1
		await.Until(func() bool {
			for i, m := range members {
				if leads, _ := m.Leads(); leads && i != witness && i != former {
					next = i
				}
			}
			return next >= 0
		})
		former = next
	}
	for _, m := range members[1:] {
		m.SetEligible(true)
	}
	awaitAnother()
	members[former].SetEligible(false)
	unable := members[former]
	awaitAnother()
	unable.SetEligible(true)
	members[witness].SetEligible(true)
	witness = -1
	members[former].Close()
	closed := time.Now()
	awaitAnother()
	if took := time.Since(closed); took > options[0].Election/2 {
		t.Errorf("after %v: the others waited until they missed it", took)
	}
}
