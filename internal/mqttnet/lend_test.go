package mqttnet

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/wire"
)

// lender is a connection that callers may read from while it is allowed, with a reader that reads all
// the time.
type lender struct {
	*Conn
	far     net.Conn
	allowed atomic.Bool
	once    atomic.Bool  // lending is allowed when the reader asks for the first time, whatever the others say
	waiting atomic.Int64 // callers that wait for a packet; the connection is lent while there is none
	taken   chan uint16  // the packet ids of the PUBACKs that were taken
	read    chan []byte  // what the reader got
	ended   chan error
}

// forReader is the packet id of PUBACKs that the reader is to take.
const forReader = 1

func newLender(t *testing.T, tick time.Duration) *lender {
	t.Helper()
	l := &lender{taken: make(chan uint16, 100), read: make(chan []byte, 100), ended: make(chan error, 1)}
	l.Conn, l.far = connected(t, 0)
	l.Lend(tick, func() bool { return l.once.CompareAndSwap(true, false) || l.allowed.Load() && l.waiting.Load() == 0 })
	l.Intercept(func(packet []byte, _ *frame.Publish) bool {
		ack, ok := frame.ParsePuback(packet)
		if ok {
			if ack.PacketID == forReader {
				l.waiting.Add(-1)
			}
			l.taken <- ack.PacketID
		}
		return ok
	})
	go func() {
		for buffer := make([]byte, 100); ; {
			n, err := l.Read(buffer)
			if err != nil {
				l.ended <- err
				return
			}
			l.read <- append([]byte(nil), buffer[:n]...)
		}
	}()
	connack := []byte{wire.Connack << 4, 3, 0, 0, 0}
	l.send(t, connack)
	if got := await.Receive(l.read); string(got) != string(connack) {
		t.Fatalf("the reader got %x", got)
	}
	l.allowed.Store(true)
	return l
}

// puback returns a PUBACK, which callers take.
func puback(id byte) []byte { return []byte{wire.Puback << 4, 2, 0, id} }

var pingresp = []byte{wire.Pingresp << 4, 0}

// send sends packets from the far end.
func (l *lender) send(t *testing.T, packets ...[]byte) {
	t.Helper()
	for _, packet := range packets {
		if _, err := l.far.Write(packet); err != nil {
			t.Fatal(err)
		}
	}
}

// untilLent lets the reader read packets until it has lent the connection.
func (l *lender) untilLent(t *testing.T) {
	t.Helper()
	await.Until(func() bool {
		if l.lending.Load().lent.Load() {
			return true
		}
		l.waiting.Add(1)
		l.send(t, puback(forReader))
		l.Recall()
		await.Receive(l.taken)
		return false
	})
}

func TestACallerReadsItsReply(t *testing.T) {
	l := newLender(t, time.Hour)
	l.untilLent(t)
	await.Until(func() bool { return len(l.lending.Load().free) == 1 })
	l.send(t, puback(2))
	l.ReadUntil(func() bool { return len(l.taken) > 0 })
	if id := await.Receive(l.taken); id != 2 || !l.lending.Load().lent.Load() {
		t.Errorf("packet %d was taken", id)
	}
}

func TestACallerThatFindsAnotherReadingRecallsTheReader(t *testing.T) {
	l := newLender(t, time.Hour)
	l.untilLent(t)
	await.Until(func() bool { return len(l.lending.Load().free) == 1 })
	var first sync.WaitGroup
	first.Go(func() { l.ReadUntil(func() bool { return false }) })
	await.Until(func() bool { return len(l.lending.Load().free) == 0 })
	l.ReadUntil(func() bool { return false })
	await.Done(first.Wait)
}

// A request may begin at the very moment when the reader lends the connection.
func TestAConnectionIsNotLentWhenThatIsAllowedNoMore(t *testing.T) {
	l := newLender(t, time.Hour)
	l.allowed.Store(false)
	for range 5 {
		l.once.Store(true)
		l.send(t, puback(2))
		await.Receive(l.taken)
	}
}

// A packet that no caller waits for does not stay unread.
func TestTheReaderGoesOnWhenNoCallerReads(t *testing.T) {
	l := newLender(t, 20*time.Millisecond)
	for range 5 {
		l.untilLent(t)
		l.send(t, pingresp)
		if got := await.Receive(l.read); string(got) != string(pingresp) {
			t.Fatalf("the reader got %x", got)
		}
	}
}

func TestTheReaderGoesOnAtOnceWhenItIsRecalled(t *testing.T) {
	l := newLender(t, time.Hour)
	for range 20 {
		l.untilLent(t)
		l.allowed.Store(false)
		l.Recall()
		await.Until(func() bool { return !l.lending.Load().lent.Load() })
		l.allowed.Store(true)
	}
}

// A caller whose reply does not come is not kept from its other reasons to stop.
func TestACallerThatReadsInVainReturns(t *testing.T) {
	l := newLender(t, 20*time.Millisecond)
	for range 5 {
		l.untilLent(t)
		await.Done(func() { l.ReadUntil(func() bool { return false }) })
		l.send(t, puback(3), pingresp) // the wait that was ended leaves no deadline behind
		if id := await.Receive(l.taken); id != 3 {
			t.Fatalf("packet %d was taken", id)
		}
		await.Receive(l.read)
	}
	if len(l.ended) > 0 {
		t.Error(await.Receive(l.ended))
	}
}

// The reader gets each byte that is not for callers, in its order.
func TestAPacketForTheReaderEndsTheReadingOfACaller(t *testing.T) {
	l := newLender(t, time.Hour)
	for i := range byte(20) {
		l.untilLent(t)
		l.send(t, append(append(puback(2), pingresp...), puback(4)...))
		l.ReadUntil(func() bool { return false })
		if first, last := await.Receive(l.taken), await.Receive(l.taken); first != 2 || last != 4 {
			t.Fatalf("%d: packets %d and %d were taken", i, first, last)
		}
		if got := await.Receive(l.read); string(got) != string(pingresp) {
			t.Fatalf("%d: the reader got %x", i, got)
		}
	}
}

func TestTheEndOfAConnectionThatIsLentReachesTheReader(t *testing.T) {
	for name, end := range map[string]func(l *lender) error{
		"the broker closes it":  func(l *lender) error { return l.far.Close() },
		"this end closes it":    func(l *lender) error { return l.Close() },
		"the broker is no MQTT": func(l *lender) error { _, err := l.far.Write([]byte{0, 0}); return err },
	} {
		for _, reads := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, a caller reads: %v", name, reads), func(t *testing.T) {
				l := newLender(t, 20*time.Millisecond)
				l.untilLent(t)
				var caller sync.WaitGroup
				if reads {
					caller.Go(func() { l.ReadUntil(func() bool { return false }) })
				}
				if err := end(l); err != nil {
					t.Fatal(err)
				}
				if err := await.Receive(l.ended); err == nil || err == io.ErrNoProgress {
					t.Errorf("the reader ends with %v", err)
				}
				await.Done(caller.Wait)
			})
		}
	}
}

// A panic in the handler of a packet must not keep the connection from the reader for ever.
func TestAPanicOfACallerGivesTheConnectionBack(t *testing.T) {
	l := newLender(t, time.Hour)
	await.Until(func() (panicked bool) {
		l.untilLent(t)
		defer func() { panicked = recover() != nil }()
		l.ReadUntil(func() bool { panic("in the handler") })
		return false
	})
	l.send(t, pingresp)
	await.Receive(l.read)
}

// Callers that each wait for a reply get it, whichever goroutine reads, and no packet is lost.
func TestManyCallersAndTheReaderShareAConnection(t *testing.T) {
	const callers, requests = 4, 500
	l := newLender(t, time.Hour)
	var replies [callers]chan struct{}
	for i := range replies {
		replies[i] = make(chan struct{}, 1)
	}
	l.Intercept(func(packet []byte, _ *frame.Publish) bool {
		ack, ok := frame.ParsePuback(packet)
		if ok {
			replies[ack.PacketID-1] <- struct{}{}
		}
		return ok
	})
	var all sync.WaitGroup
	var sending sync.Mutex
	for i := range replies {
		all.Go(func() {
			for range requests {
				l.waiting.Add(1)
				sending.Lock()
				_, err := l.far.Write(puback(byte(i) + 1))
				sending.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				if others := l.waiting.Load() > 1; others {
					l.Recall()
				} else {
					l.ReadUntil(func() bool { return len(replies[i]) > 0 })
				}
				await.Receive(replies[i])
				l.waiting.Add(-1)
			}
		})
	}
	await.Done(all.Wait)
}
