package pubsub

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// testLink is a connection that counts how often it is woken.
type testLink struct{ wakes atomic.Int64 }

func (l *testLink) Wake() { l.wakes.Add(1) }

func attach(s *Session) *testLink {
	l := new(testLink)
	s.Attach(Receiver{Link: l, MQTT5: true})
	return l
}

func subscribe(t *testing.T, s *Session, subs ...Subscription) {
	t.Helper()
	for _, sub := range subs {
		if err := s.Subscribe(sub); err != nil {
			t.Fatalf("Subscribe %q: %v", sub.Filter, err)
		}
	}
}

// receive returns what is sent to a connection now.
func receive(t *testing.T, s *Session, l *testLink) (all []*packets.Publish) {
	t.Helper()
	out, more := s.Append(l, nil, 1<<30)
	for in := bytes.NewReader(out); in.Len() > 0; {
		read, err := packets.ReadPacket(in)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, read.Content.(*packets.Publish))
	}
	if more {
		t.Errorf("Append has more after %d packets", len(all))
	}
	return all
}

// checkReceived compares what is sent now. A message is its payload and QoS, with D if it is sent again.
func checkReceived(t *testing.T, s *Session, l *testLink, want string) []*packets.Publish {
	t.Helper()
	all := receive(t, s, l)
	var texts []string
	for _, p := range all {
		texts = append(texts, fmt.Sprintf("%s:%d%s", p.Payload, p.QoS, map[bool]string{true: "D"}[p.Duplicate]))
	}
	if got := strings.Join(texts, " "); got != want {
		t.Errorf("%s receives %q, want %q", s.client, got, want)
	}
	return all
}

func message(topic, payload string, qos byte) *Message {
	return &Message{Topic: topic, Payload: []byte(payload), QoS: qos, Publisher: "p"}
}

// goOn is a pause of Publish.
func goOn() bool { return true }

func publish(t *testing.T, b *Broker, messages ...*Message) {
	t.Helper()
	for _, m := range messages {
		if !b.Publish(m, goOn) {
			t.Errorf("Publish %q matches nothing", m.Topic)
		}
	}
}

// checkEmpty checks that nothing is held any more.
func checkEmpty(t *testing.T, b *Broker) {
	t.Helper()
	usage := b.Usage()
	usage.Dropped = Dropped{}
	if usage != (Usage{}) || b.subscriptions.values != nil || len(b.subscriptions.forms) > 0 {
		t.Errorf("what is held at the end: %+v, %v", usage, b.subscriptions)
	}
}

func in(d time.Duration) time.Time { return time.Now().Add(d) }

// newBroker returns a broker with limits, or the default for one that is 0.
func newBroker(limits Limits) *Broker {
	standard := DefaultLimits()
	return New(Limits{
		Subscriptions:     cmp.Or(limits.Subscriptions, standard.Subscriptions),
		SubscriptionBytes: cmp.Or(limits.SubscriptionBytes, standard.SubscriptionBytes),
		SessionMessages:   cmp.Or(limits.SessionMessages, standard.SessionMessages),
		SessionBytes:      cmp.Or(limits.SessionBytes, standard.SessionBytes),
		TotalBytes:        cmp.Or(limits.TotalBytes, standard.TotalBytes),
	})
}

func TestEachClientGetsOneCopyWithAllIdentifiersAndTheHighestQoS(t *testing.T) {
	b := newBroker(Limits{})
	s := b.Session("s")
	l := attach(s)
	subscribe(t, s,
		Subscription{Filter: "a/b", Identifier: 1},
		Subscription{Filter: "a/+", Identifier: 2, QoS: 2},
		Subscription{Filter: "#", Identifier: 200},
		Subscription{Filter: "other/#", Identifier: 4})
	publish(t, b, message("a/b", "x", 1), message("a/b", "y", 0))
	out, _ := s.Append(l, nil, 1<<20)
	for _, identifier := range []string{"\x0b\x01", "\x0b\x02", "\x0b\xc8\x01"} { // in any order
		out = bytes.Replace(out, []byte(identifier), nil, 1)
	}
	if want := "\x32\x10\x00\x03a/b\x00\x01\x07x" + "\x30\x0e\x00\x03a/b\x07\x0b\x01\x0b\x02\x0b\xc8\x01y"; len(out) != len(want) || string(out[:11]) != want[:11] {
		t.Errorf("%q\nwant %q", out, want)
	}
	s.End()
	checkEmpty(t, b)
}

func TestNoLocalKeepsAClientsOwnMessagesAway(t *testing.T) {
	b := newBroker(Limits{})
	s, other := b.Session("p"), b.Session("q")
	l, otherLink := attach(s), attach(other)
	subscribe(t, s, Subscription{Filter: "a", NoLocal: true})
	if b.Publish(message("a", "x", 0), nil) {
		t.Error("its own message matches")
	}
	subscribe(t, other, Subscription{Filter: "a", NoLocal: true})
	publish(t, b, message("a", "y", 0))
	checkReceived(t, s, l, "")
	checkReceived(t, other, otherLink, "y:0")
	subscribe(t, s, Subscription{Filter: "+", QoS: 1})
	publish(t, b, message("a", "z", 1))
	checkReceived(t, s, l, "z:1")
}

func TestTheReceiveMaximumLimitsWhatIsInFlight(t *testing.T) {
	b := newBroker(Limits{})
	s, l := b.Session("s"), new(testLink)
	s.Attach(Receiver{Link: l, MQTT5: true, ReceiveMaximum: 2})
	subscribe(t, s, Subscription{Filter: "a", QoS: 1})
	publish(t, b, message("a", "1", 1), message("a", "2", 1), message("a", "3", 1), message("a", "4", 0), message("a", "5", 1))
	all := checkReceived(t, s, l, "1:1 2:1")
	s.Acknowledge(99) // not in use
	checkReceived(t, s, l, "")
	wakes := l.wakes.Load()
	s.Acknowledge(all[0].PacketID)
	if l.wakes.Load() != wakes+1 {
		t.Error("the link is not woken when there is room again")
	}
	s.Acknowledge(all[0].PacketID) // twice
	checkReceived(t, s, l, "3:1")
	s.Acknowledge(all[1].PacketID)
	checkReceived(t, s, l, "4:0 5:1")
}

func TestWhatIsNotAcknowledgedIsSentAgainInItsOrder(t *testing.T) {
	b := newBroker(Limits{})
	s, l := b.Session("s"), new(testLink)
	s.Attach(Receiver{Link: l, MQTT5: true, ReceiveMaximum: 3})
	subscribe(t, s, Subscription{Filter: "a", QoS: 1})
	for i := range 5 {
		publish(t, b, message("a", fmt.Sprint(i), 1))
	}
	before := checkReceived(t, s, l, "0:1 1:1 2:1")
	s.Acknowledge(before[1].PacketID)
	publish(t, b, message("a", "lost", 0))
	s.Detach(l)
	publish(t, b, message("a", "5", 1), message("a", "also lost", 0))
	checkReceived(t, s, l, "")

	second := new(testLink)
	s.Attach(Receiver{Link: second, MQTT5: true, ReceiveMaximum: 1})
	s.Detach(l) // late
	checkReceived(t, s, l, "")
	again := checkReceived(t, s, second, "0:1D")
	if again[0].PacketID != before[0].PacketID {
		t.Errorf("packet id %d, before %d", again[0].PacketID, before[0].PacketID)
	}
	s.Acknowledge(before[2].PacketID) // as acknowledged on the connection before
	checkReceived(t, s, second, "")
	third := attach(s) // a take-over, without Detach
	checkReceived(t, s, second, "")
	for _, p := range checkReceived(t, s, third, "0:1D 3:1 4:1 5:1") {
		s.Acknowledge(p.PacketID)
	}
	if usage := b.Usage(); usage.WaitingMessages != 0 || usage.WaitingBytes != 0 {
		t.Errorf("%+v", usage)
	}
}

func TestPacketIDsAreUniqueInFlight(t *testing.T) {
	b := newBroker(Limits{})
	s := b.Session("s")
	l := attach(s)
	subscribe(t, s, Subscription{Filter: "a", QoS: 1})
	for _, want := range []string{"65534 65535 1", "2 3 4"} {
		s.packetID = math.MaxUint16 - 2
		m := message("a", "", 1)
		publish(t, b, m, m, m)
		var ids []string
		for _, p := range receive(t, s, l) {
			ids = append(ids, fmt.Sprint(p.PacketID))
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("packet ids %s, want %s", got, want)
		}
	}
}

func TestASubscriberWithoutMQTT5GetsNoProperties(t *testing.T) {
	b := newBroker(Limits{})
	s, l := b.Session("s"), new(testLink)
	s.Attach(Receiver{Link: l})
	subscribe(t, s, Subscription{Filter: "a", Identifier: 5})
	m := message("a", "x", 0)
	m.Properties, m.Expires = []byte{1, 1}, in(time.Hour)
	publish(t, b, m)
	if out, _ := s.Append(l, nil, 100); string(out) != "\x30\x04\x00\x01ax" {
		t.Errorf("%q", out)
	}
}

func TestAppendStopsWhenThereIsEnough(t *testing.T) {
	b := newBroker(Limits{})
	s := b.Session("s")
	l := attach(s)
	subscribe(t, s, Subscription{Filter: "a"})
	publish(t, b, message("a", "1", 0), message("a", "2", 0), message("a", "3", 0))
	if l.wakes.Load() != 1 {
		t.Errorf("%d wakes, want 1", l.wakes.Load())
	}
	out, more := s.Append(l, []byte("before"), 8)
	if want := "before\x30\x05\x00\x01a\x001\x30\x05\x00\x01a\x002"; string(out) != want || !more {
		t.Errorf("%q, %t; want %q and more", out, more, want)
	}
	if out, more = s.Append(l, nil, 9); string(out) != "\x30\x05\x00\x01a\x003" || more {
		t.Errorf("then %q, %t; want the third and no more", out, more)
	}
	publish(t, b, message("a", "4", 0))
	if l.wakes.Load() != 2 {
		t.Errorf("%d wakes, want 2", l.wakes.Load())
	}
}

func TestWhatIsOverALimitIsDroppedAndCounted(t *testing.T) {
	payload := strings.Repeat("x", assured) // so that nothing of this is assured
	size := int64(overhead + 1 + assured)
	for name, test := range map[string]struct {
		limits Limits
		qos    byte
		why    Reason
	}{
		"messages":     {Limits{SessionMessages: 3}, 1, SessionFull},
		"QoS 0":        {Limits{SessionMessages: 3}, 0, SessionFull},
		"bytes":        {Limits{SessionBytes: 3*size + 1}, 1, SessionFull},
		"bytes in all": {Limits{TotalBytes: 6 * size}, 1, TotalFull},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(test.limits)
			s := b.Session("s")
			l := attach(s)
			subscribe(t, s, Subscription{Filter: "a", QoS: 1})
			for range 2 {
				for range 5 {
					publish(t, b, message("a", payload, test.qos))
				}
				all := receive(t, s, l)
				if len(all) != 3 {
					t.Errorf("%d arrive, want 3", len(all))
				}
				for _, p := range all {
					s.Acknowledge(p.PacketID)
				}
			}
			if d := b.Usage().Dropped; d[test.why] != 4 || d[SessionFull]+d[TotalFull] != 4 {
				t.Errorf("%+v, want 4", d)
			}
			s.End()
			checkEmpty(t, b)
		})
	}
}

// However many sessions do not acknowledge, and whatever size their messages have.
func TestInvariant57EachSessionHasSomeRoomWhateverOthersTake(t *testing.T) {
	const total, greedy = 1 << 20, 50
	b := newBroker(Limits{TotalBytes: total, SubscriptionBytes: total})
	for i := range greedy {
		s := b.Session(fmt.Sprint("greedy", i))
		subscribe(t, s, Subscription{Filter: fmt.Sprint("flood/", i), QoS: 1})
		for size := total / 2; size > 0; size /= 2 {
			for before := int64(-1); b.Usage().WaitingBytes != before; {
				before = b.Usage().WaitingBytes
				publish(t, b, message(fmt.Sprint("flood/", i), strings.Repeat("x", size), 1))
			}
			for n := 0; ; n++ {
				if err := s.Subscribe(Subscription{Filter: fmt.Sprint(strings.Repeat("f", size), n)}); err != nil {
					break
				}
			}
		}
	}
	for i := range 10 {
		modest := b.Session(fmt.Sprint("modest", i))
		for n := range 16 {
			subscribe(t, modest, Subscription{Filter: fmt.Sprintf("a/%d/%d", i, n), QoS: 1})
		}
		topic := fmt.Sprintf("a/%d/0", i)
		publish(t, b, message(topic, "1", 1), message(topic, "2", 1), message(topic, "3", 1))
		checkReceived(t, modest, attach(modest), "1:1 2:1 3:1")
	}
	usage := b.Usage()
	if most := int64(total + (greedy+10)*assured); usage.WaitingBytes > most || usage.SubscriptionBytes > most {
		t.Errorf("%d bytes wait, and subscriptions take up %d", usage.WaitingBytes, usage.SubscriptionBytes)
	}
	for _, s := range maps.Clone(b.sessions) {
		s.End()
	}
	checkEmpty(t, b)
}

func TestTheSubscriptionsOfAllClientsHaveALimitOfBytes(t *testing.T) {
	long := strings.Repeat("f", assured)  // so that nothing of this is assured
	each := int64(768 + 2*(assured+1+10)) // with it and 10 bytes
	b := newBroker(Limits{SubscriptionBytes: 8 * each})
	count := func(s *Session) (n int) {
		for ; n < 9; n++ {
			if err := s.Subscribe(Subscription{Filter: long + fmt.Sprintf("/filter/%03d", n)}); err != nil {
				if err != ErrTooManySubscriptions {
					t.Error(err)
				}
				break
			}
		}
		return n
	}
	first, second := b.Session("first"), b.Session("second")
	if n, m := count(first), count(second); n != 4 || m != 2 {
		t.Errorf("there is room for 8; the first client got %d, and the next one %d", n, m)
	}
	subscribe(t, first, Subscription{Filter: long + "/filter/000", QoS: 1}) // one more time
	if used := b.Usage().SubscriptionBytes; used != 6*each {
		t.Errorf("6 subscriptions take up %d", used)
	}
	second.End()
	first.Unsubscribe(long + "/filter/003")
	subscribe(t, first, Subscription{Filter: long + "/other//003"}) // in place of one that is gone
	first.End()
	if used := b.Usage().SubscriptionBytes; used != 0 {
		t.Errorf("without subscriptions %d bytes are taken up", used)
	}
	if n := count(b.Session("third")); n != 4 {
		t.Errorf("afterwards a client got %d", n)
	}
}

func TestAClientHasALimitOfSubscriptions(t *testing.T) {
	b := newBroker(Limits{Subscriptions: 2})
	s := b.Session("s")
	subscribe(t, s, Subscription{Filter: "a"}, Subscription{Filter: "+"})
	if err := s.Subscribe(Subscription{Filter: "b"}); err != ErrTooManySubscriptions {
		t.Errorf("the third: %v", err)
	}
	subscribe(t, s, Subscription{Filter: "+"}) // again
	if !s.Unsubscribe("a") || s.Unsubscribe("a") {
		t.Error("Unsubscribe is not right about what was there")
	}
	subscribe(t, s, Subscription{Filter: "b"})
	s.End()
	if err := s.Subscribe(Subscription{Filter: "a"}); err != ErrSessionOver {
		t.Errorf("after End: %v", err)
	}
	checkEmpty(t, b)
}

func TestASessionGivesTheMemoryOfFormerSubscriptionsBack(t *testing.T) {
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	b := newBroker(Limits{})
	before := heap()
	const sessions, each = 20, 1000
	for client := range sessions {
		s := b.Session(fmt.Sprint(client))
		for n := range each {
			subscribe(t, s, Subscription{Filter: fmt.Sprint(n, "/+")}) // in the index of all once
		}
		for n := range each - 1 {
			s.Unsubscribe(fmt.Sprint(n, "/+"))
		}
		if _, ok := s.Matches(fmt.Sprint(each-1, "/x")); !ok {
			t.Error("the last subscription is lost")
		}
	}
	if kept := (heap() - before) / sessions; kept > 16<<10 {
		t.Errorf("a session with one subscription keeps %d bytes", kept)
	}
	runtime.KeepAlive(b)
}

func TestAMessageLargerThanItsReceiverTakesIsDropped(t *testing.T) {
	b := newBroker(Limits{})
	s, l := b.Session("s"), new(testLink)
	s.Attach(Receiver{Link: l, MQTT5: true, MaximumPacketSize: 10})
	subscribe(t, s, Subscription{Filter: "a", QoS: 1})
	publish(t, b, message("a", "1234", 0), message("a", "12345", 0), message("a", "12", 1), message("a", "123", 1))
	checkReceived(t, s, l, "1234:0 12:1")
	if usage := b.Usage(); usage.Dropped[TooLarge] != 2 || usage.WaitingMessages != 1 {
		t.Errorf("%+v", usage)
	}
}

func TestTheReceiverIsAskedBeforeEachDelivery(t *testing.T) {
	b := newBroker(Limits{})
	s, l := b.Session("s"), new(testLink)
	reads := func(allowed string) func(string) bool {
		return func(topic string) bool { return strings.Contains(allowed, topic) }
	}
	s.Attach(Receiver{Link: l, MQTT5: true, MayRead: reads("ab")})
	subscribe(t, s, Subscription{Filter: "#", QoS: 1})
	publish(t, b, message("a", "1", 1), message("b", "2", 1), message("c", "3", 1))
	checkReceived(t, s, l, "1:1 2:1")
	s.Detach(l)
	publish(t, b, message("a", "4", 1), message("b", "5", 1), message("c", "6", 1))
	l = new(testLink)
	s.Attach(Receiver{Link: l, MQTT5: true, MayRead: reads("bc")})
	checkReceived(t, s, l, "2:1D 5:1")
	if d := b.Usage().Dropped; d[Forbidden] != 4 {
		t.Errorf("%+v", d)
	}
}

func TestAMessageExpiresWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Limits{})
		s := b.Session("s")
		l := attach(s)
		subscribe(t, s, Subscription{Filter: "a", QoS: 1})
		for _, qos := range []byte{0, 1} {
			for _, seconds := range []time.Duration{5, 10} {
				m := message("a", fmt.Sprint(int(seconds)), qos)
				m.Expires = in(seconds * time.Second)
				publish(t, b, m)
			}
		}
		time.Sleep(6500 * time.Millisecond)
		all := checkReceived(t, s, l, "10:0 10:1")
		for _, p := range all {
			if left := *p.Properties.MessageExpiry; left != 4 {
				t.Errorf("%d s are left, want 4", left)
			}
		}
		if d := b.Usage().Dropped; d[Expired] != 2 {
			t.Errorf("%+v", d)
		}
		time.Sleep(time.Hour)
		b.Sweep()
		l = attach(s)
		again := checkReceived(t, s, l, "10:1D") // what was sent is sent again
		if left := *again[0].Properties.MessageExpiry; left != 0 {
			t.Errorf("%d s are left, want 0", left)
		}
	})
}

func TestSweepFreesWhatExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(Limits{})
		s := b.Session("s")
		subscribe(t, s, Subscription{Filter: "#", QoS: 1})
		for i := range 50 {
			m := message(fmt.Sprint(i), "x", 1)
			m.Expires = in(time.Duration(i) * time.Second)
			publish(t, b, m)
		}
		time.Sleep(29500 * time.Millisecond)
		b.Sweep()
		if usage := b.Usage(); usage.WaitingMessages != 20 {
			t.Errorf("%+v, want 20", usage)
		}
		time.Sleep(time.Minute)
		b.Sweep()
		s.End()
		checkEmpty(t, b)
	})
}

// A lock that is given back twice ends the process, whatever recovers from the panic.
func TestASessionIsUsableAfterItsReceiverPanicked(t *testing.T) {
	b := newBroker(Limits{})
	s, l := b.Session("s"), new(testLink)
	s.Attach(Receiver{Link: l, MQTT5: true})
	subscribe(t, s, Subscription{Filter: "#", QoS: 1})
	s.Detach(l)
	publish(t, b, message("a", "1", 1))
	s.Attach(Receiver{Link: l, MQTT5: true, MayRead: func(string) bool { panic("the rules are broken") }})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		s.Append(l, nil, 1)
	}()
	l = attach(s)
	checkReceived(t, s, l, "1:1")
}

// A message for very many subscriptions lets others in between, with no lock held.
func TestInvariant57OneMessageDoesNotKeepAProcessor(t *testing.T) {
	const sessions, each = 50, 200
	b := newBroker(Limits{})
	for n := range sessions {
		s := b.Session(fmt.Sprint("s", n))
		for i := range each {
			filter := []byte("a/b/c/d/e/f/g/h")
			for level := range 8 {
				if (i+1)>>level&1 != 0 {
					filter[2*level] = '+'
				}
			}
			subscribe(t, s, Subscription{Filter: string(filter), QoS: 1})
		}
		attach(s)
	}
	pauses := 0
	s := b.Session("another")
	b.Publish(message("a/b/c/d/e/f/g/h", "x", 1), func() bool {
		pauses++
		subscribe(t, s, Subscription{Filter: "x/+"}) // takes all locks
		s.Unsubscribe("x/+")
		return true
	})
	if pauses < sessions*each/pauseAfter {
		t.Errorf("%d pauses for %d subscriptions", pauses, sessions*each)
	}
	waiting, pauses := b.Usage().WaitingMessages, 0
	b.Publish(message("a/b/c/d/e/f/g/h", "x", 1), func() bool { pauses++; return false })
	if more := b.Usage().WaitingMessages - waiting; pauses != 1 || more != 0 {
		t.Errorf("a Publish that is to give up pauses %d times and queues %d messages", pauses, more)
	}
}
