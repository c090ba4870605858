package pubsub

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// testLink counts how often a connection is woken.
type testLink struct{ wakes atomic.Int64 }

// newSession returns a session that may read everything.
func newSession(b *Broker, client string) *Session {
	return b.NewSession(client, func(string) bool { return true })
}

// attachWith attaches a connection that takes so many messages in flight.
func attachWith(s *Session, most uint16) *testLink {
	l := new(testLink)
	s.Attach(Receiver{Wake: func() { l.wakes.Add(1) }, ReceiveMaximum: most, MaximumPacketSize: math.MaxUint32})
	return l
}

func attach(s *Session) *testLink { return attachWith(s, 0) }

func subscribe(t *testing.T, s *Session, qos byte, filters ...string) {
	t.Helper()
	for _, filter := range filters {
		if !s.Subscribe(filter, Subscription{QoS: qos}) {
			t.Fatalf("Subscribe %q is refused", filter)
		}
	}
}

// receive returns what is sent now.
func receive(t *testing.T, s *Session) (all []*packets.Publish) {
	t.Helper()
	out, more := s.Append(nil, 1<<30)
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
func checkReceived(t *testing.T, s *Session, want string) []*packets.Publish {
	t.Helper()
	all := receive(t, s)
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
	if usage := b.Usage(); usage != (Usage{}) || len(b.root.below.All) > 0 {
		t.Errorf("what is held at the end: %+v, %v", usage, b.root)
	}
}

func in(d time.Duration) time.Time { return time.Now().Add(d) }

// newBroker returns a broker with room for 256 MiB of each.
func newBroker() *Broker { return New(256<<20, 256<<20) }

func TestEachClientGetsOneCopyWithTheHighestQoSAndNotItsOwnWithNoLocal(t *testing.T) {
	b := newBroker()
	s, local := newSession(b, "s"), newSession(b, "p")
	attach(s)
	attach(local)
	subscribe(t, s, 0, "a/b", "#", "other/#")
	subscribe(t, s, 1, "a/+")
	for _, filter := range []string{"a/b", "#"} {
		if !local.Subscribe(filter, Subscription{NoLocal: true}) {
			t.Fatal(filter)
		}
	}
	publish(t, b, message("a/b", "x", 1), message("a/b", "y", 0))
	if out, _ := s.Append(nil, 1<<20); string(out) != "\x32\x09\x00\x03a/b\x00\x01\x00x"+"\x30\x07\x00\x03a/b\x00y" {
		t.Errorf("%q", out)
	}
	checkReceived(t, local, "")
	subscribe(t, local, 1, "+/b")
	publish(t, b, message("a/b", "z", 1))
	checkReceived(t, local, "z:1")
	s.End()
	local.End()
	s.End()
	if s.Subscribe("a", Subscription{}) {
		t.Error("a session that is over subscribes")
	}
	checkEmpty(t, b)
}

func TestTheReceiveMaximumLimitsWhatIsInFlight(t *testing.T) {
	b := newBroker()
	s := newSession(b, "s")
	l := attachWith(s, 2)
	subscribe(t, s, 1, "a")
	publish(t, b, message("a", "1", 1), message("a", "2", 1), message("a", "3", 1), message("a", "4", 0), message("a", "5", 1))
	all := checkReceived(t, s, "1:1 2:1")
	s.Acknowledge(99) // not in use
	checkReceived(t, s, "")
	wakes := l.wakes.Load()
	s.Acknowledge(all[0].PacketID)
	if l.wakes.Load() != wakes+1 {
		t.Error("the connection is not woken when there is room again")
	}
	s.Acknowledge(all[0].PacketID) // twice
	checkReceived(t, s, "3:1")
	s.Acknowledge(all[1].PacketID)
	checkReceived(t, s, "4:0 5:1")
}

func TestWhatIsNotAcknowledgedIsSentAgainInItsOrder(t *testing.T) {
	b := newBroker()
	s := newSession(b, "s")
	attachWith(s, 3)
	subscribe(t, s, 1, "a")
	for i := range 5 {
		publish(t, b, message("a", fmt.Sprint(i), 1))
	}
	before := checkReceived(t, s, "0:1 1:1 2:1")
	s.Acknowledge(before[1].PacketID)
	publish(t, b, message("a", "lost", 0))
	s.Detach()
	publish(t, b, message("a", "5", 1), message("a", "also lost", 0))
	attachWith(s, 1)
	again := checkReceived(t, s, "0:1D")
	if again[0].PacketID != before[0].PacketID {
		t.Errorf("packet id %d, before %d", again[0].PacketID, before[0].PacketID)
	}
	s.Detach()
	attach(s)
	for _, p := range checkReceived(t, s, "0:1D 2:1D 3:1 4:1 5:1") {
		s.Acknowledge(p.PacketID)
	}
	s.End()
	checkEmpty(t, b)
}

func TestPacketIDsAreUniqueInFlight(t *testing.T) {
	b := newBroker()
	s := newSession(b, "s")
	attach(s)
	subscribe(t, s, 1, "a")
	for _, want := range []string{"65534 65535 1", "2 3 4"} {
		s.packetID = math.MaxUint16 - 2
		m := message("a", "", 1)
		publish(t, b, m, m, m)
		var ids []string
		for _, p := range receive(t, s) {
			ids = append(ids, fmt.Sprint(p.PacketID))
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("packet ids %s, want %s", got, want)
		}
	}
}

func TestAppendStopsWhenThereIsEnough(t *testing.T) {
	b := newBroker()
	s := newSession(b, "s")
	l := attach(s)
	subscribe(t, s, 0, "a")
	publish(t, b, message("a", "1", 0), message("a", "2", 0), message("a", "3", 0))
	out, more := s.Append([]byte("before"), 8)
	if want := "before\x30\x05\x00\x01a\x001\x30\x05\x00\x01a\x002"; string(out) != want || !more {
		t.Errorf("%q, %t; want %q and more", out, more, want)
	}
	if out, more = s.Append(nil, 9); string(out) != "\x30\x05\x00\x01a\x003" || more {
		t.Errorf("then %q, %t; want the third and no more", out, more)
	}
	if publish(t, b, message("a", "4", 0)); l.wakes.Load() != 2 {
		t.Errorf("%d wakes, want 2", l.wakes.Load())
	}
}

func TestWhatIsOverALimitIsDroppedAndCounted(t *testing.T) {
	for name, test := range map[string]struct {
		payload, fit int
		all          int64
		why          Reason
	}{
		"messages":     {0, maxMessages, 256 << 20, SessionFull},
		"bytes":        {maxBytes/3 - 2*overhead, 3, 256 << 20, SessionFull},
		"bytes in all": {assured, 3, 6 * (overhead + 1 + assured), TotalFull}, // half of them
	} {
		t.Run(name, func(t *testing.T) {
			b := New(1<<20, test.all)
			s := newSession(b, "s")
			attach(s)
			subscribe(t, s, 1, "a")
			m := message("a", strings.Repeat("x", test.payload), 1)
			for range 2 {
				for range test.fit + 2 {
					publish(t, b, m)
				}
				all := receive(t, s)
				if len(all) != test.fit {
					t.Errorf("%d arrive, want %d", len(all), test.fit)
				}
				for _, p := range all {
					s.Acknowledge(p.PacketID)
				}
			}
			if d := b.Dropped(); d[test.why] != 4 || len(d) != 1 {
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
	b := New(total, total)
	var sessions []*Session
	for i := range greedy {
		s := newSession(b, fmt.Sprint("greedy", i))
		sessions = append(sessions, s)
		subscribe(t, s, 1, fmt.Sprint("flood/", i))
		for size := total / 2; size > 0; size /= 2 {
			for before := int64(-1); b.Usage().WaitingBytes != before; {
				before = b.Usage().WaitingBytes
				publish(t, b, message(fmt.Sprint("flood/", i), strings.Repeat("x", size), 1))
			}
			for n := 0; s.Subscribe(fmt.Sprint(strings.Repeat("f", size), n), Subscription{}); n++ {
			}
		}
	}
	for i := range 10 {
		modest := newSession(b, fmt.Sprint("modest", i))
		sessions = append(sessions, modest)
		for n := range 10 {
			subscribe(t, modest, 1, fmt.Sprintf("a/%d/%d", i, n))
		}
		topic := fmt.Sprintf("a/%d/0", i)
		publish(t, b, message(topic, "1", 1), message(topic, "2", 1), message(topic, "3", 1))
		attach(modest)
		checkReceived(t, modest, "1:1 2:1 3:1")
	}
	usage := b.Usage()
	if most := int64(total + (greedy+10)*assured); usage.WaitingBytes > most || usage.SubscriptionBytes > most {
		t.Errorf("%d bytes wait, and subscriptions take up %d", usage.WaitingBytes, usage.SubscriptionBytes)
	}
	for _, s := range sessions {
		s.End()
	}
	checkEmpty(t, b)
}

// heap returns how many bytes are in use.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// What a client had once must not take up memory for which it no longer counts.
func TestInvariant57WhatIsGoneTakesUpNoMemory(t *testing.T) {
	const rounds = 20
	for name, attack := range map[string]func(s *Session, round int){
		"filters of one level": func(s *Session, round int) {
			for n := range 900 {
				subscribe(t, s, 0, fmt.Sprint(round, "/", n))
			}
			for n := range 899 {
				s.Unsubscribe(fmt.Sprint(round, "/", n))
			}
		},
		"long filters": func(s *Session, round int) {
			subscribed := make([]string, 62)
			for n := range subscribed {
				subscribed[n] = fmt.Sprint(round) + strings.Repeat("/x", n) + "/" + strings.Repeat("y", 900)
			}
			subscribe(t, s, 0, subscribed...)
			subscribe(t, s, 0, fmt.Sprint(round)+strings.Repeat("/x", len(subscribed)))
			for _, filter := range subscribed {
				s.Unsubscribe(filter)
			}
		},
		"messages": func(s *Session, round int) {
			if round > 0 {
				return
			}
			for n := range maxMessages {
				m := message("a", "", byte(n&1))
				m.Expires = in(time.Hour * time.Duration(n&1))
				publish(t, s.broker, m)
			}
			s.Sweep(time.Now())
			s.Append(nil, 1<<30)
			for n := range maxMessages {
				s.Acknowledge(uint16(n))
			}
		},
		"messages that leave one after the other": func(s *Session, round int) {
			if round > 0 {
				return
			}
			attachWith(s, 1)
			for range maxMessages {
				publish(t, s.broker, message("a", "", 1))
			}
			for n := range maxMessages - 1 {
				s.Append(nil, 1)
				s.Acknowledge(uint16(n + 1))
			}
		},
	} {
		b := newBroker()
		s := newSession(b, "s")
		attach(s)
		subscribe(t, s, 1, "a")
		before := heap()
		for round := range rounds {
			attack(s, round)
		}
		if kept, counted := heap()-before, b.Usage().SubscriptionBytes+16<<10; kept > counted {
			t.Errorf("%s: %d bytes are kept, and count for %d", name, kept, counted)
		}
		runtime.KeepAlive(s)
	}
}

func TestAClientHasALimitOfSubscriptionsAndGivesTheirMemoryBack(t *testing.T) {
	b := newBroker()
	before := heap()
	const sessions = 20
	for client := range sessions {
		s := newSession(b, fmt.Sprint(client))
		for n := range maxSubscriptions {
			subscribe(t, s, 0, fmt.Sprint(n, "/", client, "/+"))
		}
		if s.Subscribe("more", Subscription{}) {
			t.Error("one more is granted")
		}
		if subscribe(t, s, 0, fmt.Sprint("0/", client, "/+")); client == 0 { // again
			if took, counted := heap()-before, b.Usage().SubscriptionBytes; took > counted {
				t.Errorf("its subscriptions take up %d bytes, and count for %d", took, counted)
			}
		}
		for n := range maxSubscriptions {
			s.Unsubscribe(fmt.Sprint(n, "/", client, "/+"))
		}
		subscribe(t, s, 0, "the last")
	}
	if kept := (heap() - before) / sessions; kept > 16<<10 {
		t.Errorf("a session with one subscription keeps %d bytes", kept)
	}
	runtime.KeepAlive(b)
}

func TestAMessageLargerThanItsReceiverTakesIsDropped(t *testing.T) {
	b := newBroker()
	s := newSession(b, "s")
	s.Attach(Receiver{Wake: func() {}, MaximumPacketSize: 10})
	subscribe(t, s, 1, "a")
	publish(t, b, message("a", "1234", 0), message("a", "12345", 0), message("a", "12", 1), message("a", "123", 1))
	checkReceived(t, s, "1234:0 12:1")
	if usage := b.Usage(); b.Dropped()[TooLarge] != 2 || usage.WaitingMessages != 1 {
		t.Errorf("%+v", usage)
	}
}

// A lock that is given back twice ends the process, whatever recovers from the panic.
func TestTheReceiverIsAskedBeforeEachDeliveryAndMayPanic(t *testing.T) {
	b := newBroker()
	allowed := "ab"
	s := b.NewSession("s", func(topic string) bool {
		if allowed == "" {
			panic("the rules are broken")
		}
		return strings.Contains(allowed, topic)
	})
	attach(s)
	subscribe(t, s, 1, "#")
	publish(t, b, message("a", "1", 1), message("b", "2", 1), message("c", "3", 1))
	checkReceived(t, s, "1:1 2:1")
	s.Detach()
	publish(t, b, message("a", "4", 1), message("b", "5", 1), message("c", "6", 1))
	attach(s)
	allowed = ""
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		s.Append(nil, 1)
	}()
	s.Detach()
	attach(s)
	allowed = "bc"
	checkReceived(t, s, "2:1D 5:1 6:1")
	if d := b.Dropped(); d[Forbidden] != 3 {
		t.Errorf("%+v", d)
	}
}

func TestAMessageExpiresWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker()
		s := newSession(b, "s")
		attach(s)
		subscribe(t, s, 1, "a")
		for _, qos := range []byte{0, 1} {
			for _, seconds := range []time.Duration{5, 10} {
				m := message("a", fmt.Sprint(int(seconds)), qos)
				m.Expires = in(seconds * time.Second)
				publish(t, b, m)
			}
		}
		time.Sleep(6500 * time.Millisecond)
		for _, p := range checkReceived(t, s, "10:0 10:1") {
			if left := *p.Properties.MessageExpiry; left != 4 {
				t.Errorf("%d s are left, want 4", left)
			}
		}
		for i := range 50 {
			m := message("a", "x", 1)
			m.Expires = in(time.Duration(i) * time.Second)
			publish(t, b, m)
		}
		time.Sleep(29500 * time.Millisecond)
		s.Sweep(time.Now())
		if usage := b.Usage(); usage.WaitingMessages != 21 || b.Dropped()[Expired] != 32 {
			t.Errorf("%+v, want 21 that wait", usage)
		}
		time.Sleep(time.Hour)
		s.Sweep(time.Now())
		s.Detach()
		attach(s)
		again := checkReceived(t, s, "10:1D") // what was sent is sent again
		if left := *again[0].Properties.MessageExpiry; left != 1 {
			t.Errorf("%d s are left, want 1", left)
		}
		s.End()
		checkEmpty(t, b)
	})
}

// A message for very many subscriptions lets others in between, with no lock held.
func TestInvariant57OneMessageDoesNotKeepAProcessor(t *testing.T) {
	const sessions, each = 50, 200
	b := newBroker()
	for n := range sessions {
		s := newSession(b, fmt.Sprint("s", n))
		for i := range each {
			filter := []byte("a/b/c/d/e/f/g/h")
			for level := range 8 {
				if (i+1)>>level&1 != 0 {
					filter[2*level] = '+'
				}
			}
			subscribe(t, s, 1, string(filter))
		}
		attach(s)
	}
	pauses := 0
	s := newSession(b, "another")
	b.Publish(message("a/b/c/d/e/f/g/h", "x", 1), func() bool {
		pauses++
		subscribe(t, s, 0, "x/+") // takes all locks
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
