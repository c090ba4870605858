package pubsub

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestASharedSubscriptionGivesEachMessageToOneMemberInTurn(t *testing.T) {
	b := newBroker(Limits{})
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
	b := newBroker(Limits{SessionMessages: 2})
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
	if d := b.Usage().Dropped; d[SessionFull]+d[Forbidden]+d[Absent] != 1 {
		t.Errorf("%+v, want one dropped", d)
	}
}

func TestWhatAMemberDidNotAcknowledgeGoesToAnotherWhenItsSessionEnds(t *testing.T) {
	b := newBroker(Limits{})
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
	if d := b.Usage().Dropped; d[Absent] != 2 {
		t.Errorf("%+v, want two without a member", d)
	}
	if matched, _ := b.Publish(message("a", "3", 1)); matched {
		t.Error("a group without members matches")
	}
	checkEmpty(t, b)
}

// A group may have ten thousand members that cannot take a message, and a message may be for
// a thousand groups.
func TestInvariant57AMessageIsOfferedToSomeMembersOfAGroup(t *testing.T) {
	const members = 1000
	for name, connected := range map[string]bool{"connected": true, "away": false} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(Limits{})
			asked := make(map[int]int)
			all := 0
			for i := range members {
				s := b.Session(fmt.Sprint(i))
				subscribe(t, s, Subscription{Filter: "$share/g/a", QoS: 1})
				l := newLink()
				s.Attach(Receiver{Link: l, MQTT5: true, MayRead: func(string) bool {
					asked[i]++
					all++
					return false
				}})
				if !connected {
					s.Detach(l)
				}
			}
			publish(t, b, message("a", "x", 1))
			if all < 8 || all > 48 || len(asked) != all {
				t.Errorf("one message is offered %d times to %d of %d members", all, len(asked), members)
			}
			for range members - 1 {
				publish(t, b, message("a", "x", 1))
			}
			if len(asked) != members {
				t.Errorf("%d of %d members had a turn", len(asked), members)
			}
			if dropped := b.Usage().Dropped; dropped[Forbidden] != members {
				t.Errorf("%+v, want %d forbidden", dropped, members)
			}
		})
	}
}

func TestASharedSubscriptionFindsItsConnectedMemberAmongManyThatAreAway(t *testing.T) {
	b := newBroker(Limits{})
	for i := range 200 {
		subscribe(t, b.Session(fmt.Sprint(i)), Subscription{Filter: "$share/g/a", QoS: 1})
	}
	here := b.Session("100")
	l := attach(here)
	for range 250 {
		publish(t, b, message("a", "x", 1))
	}
	if n := len(receive(t, here, l)); n != 250 {
		t.Errorf("the member that is connected gets %d of 250 messages", n)
	}
}

// To look for room in other sessions takes longer than to pass a message on.
func TestInvariant57RoomIsNotSoughtForEachMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Limits{TotalBytes: 1})
		for i := range 1000 {
			subscribe(t, b.Session(fmt.Sprint(i)), Subscription{Filter: "a", QoS: 1})
		}
		large := message("a", strings.Repeat("x", assured), 1)
		for _, want := range []int{32, 64} {
			publish(t, b, large, large, large)
			if b.swept != want {
				t.Errorf("%d sessions were searched, want %d", b.swept, want)
			}
			time.Sleep(200 * time.Millisecond)
		}
		if dropped := b.Usage().Dropped; dropped[TotalFull] != 6*1000 {
			t.Errorf("%+v", dropped)
		}
	})
}
