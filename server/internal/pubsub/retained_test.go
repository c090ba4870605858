package pubsub

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func retain(t *testing.T, b *Broker, topic, payload string) error {
	t.Helper()
	m := message(topic, payload, 1)
	m.Retain = true
	_, err := b.Publish(m)
	return err
}

func TestRetainedMessagesAreSentAsRetainHandlingSays(t *testing.T) {
	for _, test := range []struct {
		sub     Subscription
		existed bool
		want    string
	}{
		{Subscription{Filter: "a/b", QoS: 1}, true, "2:1R"},
		{Subscription{Filter: "a/b"}, false, "2:0R"},
		{Subscription{Filter: "a/#", QoS: 1, RetainHandling: 1}, false, "1:1R 2:1R 3:1R"},
		{Subscription{Filter: "+/b", QoS: 1}, false, "2:1R"},
		{Subscription{Filter: "a/b/#", QoS: 1}, false, "2:1R"},
		{Subscription{Filter: "#", QoS: 1}, false, "1:1R 2:1R 3:1R 4:1R"},
		{Subscription{Filter: "$x/#", QoS: 1}, false, "5:1R"},
		{Subscription{Filter: "a/#", RetainHandling: 1}, true, ""},
		{Subscription{Filter: "a/#", RetainHandling: 2}, false, ""},
		{Subscription{Filter: "$share/g/a/#"}, false, ""},
		{Subscription{Filter: "none"}, false, ""},
	} {
		b := newBroker(Limits{RetainedMessages: 10})
		for topic, payload := range map[string]string{"a": "1", "a/b": "2", "a/c": "3", "ab": "4", "$x/y": "5", "gone": "6"} {
			if err := retain(t, b, topic, payload); err != nil {
				t.Error(err)
			}
		}
		_ = retain(t, b, "gone", "")
		s := b.Session("s")
		l := attach(s)
		s.SendRetained(test.sub, test.existed, nil)
		checkReceived(t, s, l, test.want)
	}
}

func TestRetainedMessagesAreOffByDefault(t *testing.T) {
	b := newBroker(Limits{})
	_ = retain(t, b, "a", "x")
	s := b.Session("s")
	l := attach(s)
	s.SendRetained(Subscription{Filter: "#"}, false, nil)
	checkReceived(t, s, l, "")
}

func TestRetainedMessagesHaveALimit(t *testing.T) {
	for name, limits := range map[string]Limits{
		"of messages": {RetainedMessages: 2},
		"of bytes":    {RetainedMessages: 100, RetainedBytes: 2 * (2*overhead + message("a", "1", 1).size())},
	} {
		b := newBroker(limits)
		for i, topic := range []string{"a", "b", "a"} {
			if err := retain(t, b, topic, fmt.Sprint(i)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := retain(t, b, "c", "3"); !errors.Is(err, ErrNotRetained) {
			t.Errorf("%s: the third: %v", name, err)
		}
		_ = retain(t, b, "b", "")
		if err := retain(t, b, "c", "4"); err != nil {
			t.Errorf("%s: after one is removed: %v", name, err)
		}
		if limits.RetainedBytes > 0 {
			if err := retain(t, b, "c", "too long"); !errors.Is(err, ErrNotRetained) {
				t.Errorf("%s: a longer one: %v", name, err)
			}
			if n := b.Usage().RetainedMessages; n != 1 {
				t.Errorf("%d are left; the old one is out of date", n)
			}
		}
		_, _ = retain(t, b, "a", ""), retain(t, b, "c", "")
		if d := b.Usage().Dropped[NotRetained]; d == 0 {
			t.Error("it is not counted")
		}
		checkEmpty(t, b)
	}
}

func TestARetainedMessageExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Limits{RetainedMessages: 20})
		for i := range 20 {
			m := message(fmt.Sprint("a/", i), "x", 0)
			m.Retain, m.Expires = true, in(time.Minute)
			_, _ = b.Publish(m)
		}
		time.Sleep(time.Minute)
		s := b.Session("s")
		l := attach(s)
		s.SendRetained(Subscription{Filter: "#"}, false, nil)
		checkReceived(t, s, l, "")
		for i := range 20 {
			if err := retain(t, b, fmt.Sprint("b/", i), "y"); err != nil {
				t.Errorf("what expired takes room: %v", err)
			}
		}
		s.SendRetained(Subscription{Filter: "+/7"}, false, nil)
		checkReceived(t, s, l, "y:0R")
	})
}

func TestALongSearchFindsEveryRetainedMessage(t *testing.T) {
	b := newBroker(Limits{RetainedMessages: 5 * sliceSize})
	for i := range 5 * sliceSize {
		if err := retain(t, b, fmt.Sprintf("%d/%s", i, strings.Repeat("x", i%3)), "x"); err != nil {
			t.Fatal(err)
		}
	}
	s := b.Session("s")
	l := attach(s)
	s.SendRetained(Subscription{Filter: "+/x"}, false, nil)
	if got, want := len(receive(t, s, l)), 5*sliceSize/3; got != want {
		t.Errorf("%d, want %d", got, want)
	}
}

// A subscriber that learns the newest value must not get an older one after it.
func TestARetainedMessageThatWasReplacedMeanwhileIsNotSent(t *testing.T) {
	b := newBroker(Limits{RetainedMessages: 10})
	_ = retain(t, b, "a", "old")
	s := b.Session("s")
	sub := Subscription{Filter: "a", QoS: 1}
	l := newLink()
	first := true
	s.Attach(Receiver{Link: l, MQTT5: true, MayRead: func(string) bool {
		if first {
			first = false
			_ = retain(t, b, "a", "new")
		}
		return true
	}})
	subscribe(t, s, sub)
	s.SendRetained(sub, false, nil)
	checkReceived(t, s, l, "new:1")
}
