package member_test

import (
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/member"
)

// leads waits until one of the members leads, and returns which.
func leads(t *testing.T, members []*member.Member, may func(i int) bool) (leader int) {
	t.Helper()
	eventually(t, "a member that may lead leads", func() bool {
		for i, m := range members {
			if is, _ := m.Leads(); is && may(i) {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

func TestAWitnessHandsLeadershipOn(t *testing.T) {
	options := three(t)
	for i := range 2 {
		options[i].Witness = true
	}
	members := startAll(t, options[:])
	members[2].SetEligible(true)
	leads(t, members, func(i int) bool { return i == 2 })
}

func TestAMemberWhoseProcessCannotServeHandsLeadershipOn(t *testing.T) {
	options := three(t)
	members := startAll(t, options[:])
	for _, m := range members {
		m.SetEligible(true)
	}
	first := leads(t, members, func(int) bool { return true })
	members[first].SetEligible(false)
	leads(t, members, func(i int) bool { return i != first })
}

func TestAMemberThatClosesHandsLeadershipOn(t *testing.T) {
	options := three(t)
	for i := range options {
		options[i].Election = 3 * time.Second
	}
	members := startAll(t, options[:])
	for _, m := range members {
		m.SetEligible(true)
	}
	first := leads(t, members, func(int) bool { return true })
	began := time.Now()
	members[first].Close()
	leads(t, members, func(i int) bool { return i != first })
	if took := time.Since(began); took > options[0].Election {
		t.Errorf("after %v: the others waited until they missed it", took)
	} else {
		t.Logf("after %v", took)
	}
}
