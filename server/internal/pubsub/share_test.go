package pubsub

import (
	"fmt"
	"testing"
)

func TestASharedSubscriptionGivesEachMessageToOneMemberInTurn(t *testing.T) {
	b := New(Limits{})
	counts := make(map[string]int)
	for i := range 40 {
		s := b.Session(fmt.Sprint(i))
		attach(s)
		subscribe(t, s, Subscription{Filter: []string{"$share/g/a/+", "$SHARE/g/a/+"}[i%2], QoS: 1})
	}
	plain := b.Session("plain")
	subscribe(t, plain, Subscription{Filter: "a/b", QoS: 1}, Subscription{Filter: "$share/other/a/b", QoS: 1})
	for range 80 {
		publish(t, b, message("a/b", "x", 1))
	}
	for i := range 40 {
		s := b.Session(fmt.Sprint(i))
		counts[fmt.Sprint(len(receive(t, s, s.link.(*testLink))))]++
	}
	if counts["2"] != 40 {
		t.Errorf("how many got how many: %v, want 40 to get 2", counts)
	}
	if n := b.Usage().WaitingMessages; n != 80+2*80 {
		t.Errorf("%d messages wait, want 240", n)
	}
}

func TestASharedSubscriptionPrefersMembersThatCanTakeTheMessage(t *testing.T) {
	b := New(Limits{SessionMessages: 2})
	offline, forbidden, full, good := b.Session("offline"), b.Session("forbidden"), b.Session("full"), b.Session("good")
	for _, s := range []*Session{offline, forbidden, full, good} {
		subscribe(t, s, Subscription{Filter: "$share/g/a", QoS: 1})
	}
	forbidden.Attach(Receiver{Link: newLink(), MQTT5: true, MayRead: func(string) bool { return false }})
	attach(full)
	subscribe(t, full, Subscription{Filter: "b", QoS: 1})
	publish(t, b, message("b", "x", 1), message("b", "x", 1))
	l := attach(good)
	publish(t, b, message("a", "1", 1), message("a", "2", 1))
	checkReceived(t, good, l, "1:1 2:1")
	publish(t, b, message("a", "3", 1), message("a", "4", 1))
	checkReceived(t, good, l, "")
	checkReceived(t, offline, attach(offline), "3:1 4:1")
	publish(t, b, message("a", "5", 1)) // all are full
	if d := b.Usage().Dropped; d.SessionFull+d.Forbidden+d.Absent != 1 {
		t.Errorf("%+v, want one dropped", d)
	}
}

func TestWhatAMemberDidNotAcknowledgeGoesToAnotherWhenItsSessionEnds(t *testing.T) {
	b := New(Limits{})
	leaving, staying := b.Session("leaving"), b.Session("staying")
	l := newLink()
	leaving.Attach(Receiver{Link: l, MQTT5: true, ReceiveMaximum: 1})
	subscribe(t, leaving, Subscription{Filter: "$share/g/a", QoS: 1}, Subscription{Filter: "b", QoS: 1})
	publish(t, b, message("a", "1", 1), message("a", "2", 1), message("b", "own", 1))
	checkReceived(t, leaving, l, "1:1")
	subscribe(t, staying, Subscription{Filter: "$share/g/a", QoS: 1})
	leaving.End()
	checkReceived(t, staying, attach(staying), "1:1 2:1")
	staying.End()
	if d := b.Usage().Dropped; d.Absent != 2 {
		t.Errorf("%+v, want two without a member", d)
	}
	if matched, _ := b.Publish(message("a", "3", 1)); matched {
		t.Error("a group without members matches")
	}
	checkEmpty(t, b)
}
