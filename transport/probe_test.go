package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
)

// silent returns a broker that, once mute is set, answers only the packets in answers.
func silent(mute *atomic.Bool, answers ...byte) *pipeBroker {
	return &pipeBroker{answer: func(_ net.Conn, packet *packets.ControlPacket) bool {
		if packet.Type == packets.CONNECT {
			mute.Store(false)
		}
		for _, kind := range answers {
			if packet.Type == kind {
				return false
			}
		}
		return mute.Load()
	}}
}

func TestInvariant52ADeadConnectionThatIsProbedCostsOneTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		var mute atomic.Bool
		b := silent(&mute)
		client := mustDialTo(t, b, options)
		time.Sleep(time.Second)
		mute.Store(true)
		outcomes := get(t.Context(), client, "k")
		synctest.Wait()
		began := time.Now()
		client.Probe(300 * time.Millisecond)
		client.Probe(time.Millisecond) // one is under way
		if took := time.Since(began); took != 0 {
			t.Errorf("it waits for %v", took)
		}
		got := await.Receive(outcomes["k"])
		if took := time.Since(began); took != 300*time.Millisecond || !errors.Is(got.err, ErrOutcomeUnknown) || !strings.Contains(got.err.Error(), "PINGREQ for 300ms") {
			t.Errorf("after %v the request ends with %v", took, got.err)
		}
		time.Sleep(200 * time.Millisecond)
		if status := client.Connection(); status.State != Connected || status.Connections != 2 {
			t.Errorf("it does not connect again at once: %+v", status)
		}
	})
}

func TestAProbedConnectionStaysIfAnythingArrives(t *testing.T) {
	for name, arrives := range map[string]func(*pipeBroker){
		"the answer to the PINGREQ": nil,
		"a message": func(b *pipeBroker) {
			send(b.present(), packets.PUBLISH, func(p *packets.Publish) { p.Topic = "news" })
		},
		"a part of one": func(b *pipeBroker) { _, _ = b.present().Write([]byte{0x30, 100, 0}) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, options Options) {
				var mute atomic.Bool
				b := silent(&mute)
				if arrives == nil {
					b = silent(&mute, packets.PINGREQ)
				}
				client := mustDialTo(t, b, options)
				time.Sleep(time.Second)
				mute.Store(true)
				for range 3 {
					client.Probe(300 * time.Millisecond)
					time.Sleep(299 * time.Millisecond)
					if arrives != nil {
						arrives(b)
					}
					time.Sleep(2 * time.Millisecond)
				}
				mute.Store(false)
				if status := client.Connection(); status.Connections != 1 || status.State != Connected {
					t.Errorf("the connection was given up: %+v", status)
				}
			})
		})
	}
}

func TestAProbeGivesTheBrokerATenthOfASecondAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mute atomic.Bool
		b := silent(&mute)
		client := mustDialTo(t, b, Options{})
		time.Sleep(time.Second)
		mute.Store(true)
		outcomes := get(t.Context(), client, "k")
		synctest.Wait()
		began := time.Now()
		client.Probe(0)
		if await.Receive(outcomes["k"]); time.Since(began) != 100*time.Millisecond {
			t.Errorf("it gives up after %v", time.Since(began))
		}
	})
}

// The PINGREQ is not written, because the broker does not read the packet before it.
func TestAProbeDoesNotWaitForAPacketThatIsStuck(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		block := make(chan struct{})
		var stuck atomic.Bool
		b := &pipeBroker{answer: func(_ net.Conn, packet *packets.ControlPacket) bool {
			if packet.Type == packets.PUBLISH && stuck.CompareAndSwap(false, true) {
				await.Receive(block)
			}
			return false
		}}
		client := mustDialTo(t, b, options)
		defer close(block)
		outcomes := get(t.Context(), client, "k1", "k2", "k3")
		synctest.Wait()
		began := time.Now()
		client.Probe(time.Second)
		for key, c := range outcomes {
			if got := await.Receive(c); !errors.Is(got.err, ErrOutcomeUnknown) && !errors.Is(got.err, ErrNotSent) {
				t.Errorf("%s: %v", key, got.err)
			}
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it takes %v", took)
		}
	})
}

func TestInvariant42CloseDuringAProbeLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		var mute atomic.Bool
		client := mustDialTo(t, silent(&mute), options)
		time.Sleep(time.Second)
		mute.Store(true)
		client.Probe(time.Hour)
		synctest.Wait()
		began := time.Now()
		if err := client.Close(); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(began))
		}
		client.Probe(time.Hour) // on no connection
	})
}

func TestAnUrgentRequestOvertakesThoseThatWait(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		const slots, ordinary = 16, 14 // two are kept
		b := newQuietBroker(slots)
		client := mustDialTo(t, b.pipeBroker, options)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		large := strings.Repeat("v", 100_000)
		for i := range 40 {
			go func() { _, _ = client.Set(ctx, fmt.Sprint("large", i), []byte(large), SetOptions{}) }()
		}
		if got := len(b.received()); got != ordinary {
			t.Fatalf("%d of %d requests are sent; %d slots of %d are for urgent ones", got, 40, slots-ordinary, slots)
		}
		for i := range 4 {
			go func() {
				switch i {
				case 0:
					_, _ = client.Set(ctx, "urgent0", nil, SetOptions{Urgent: true})
				case 1:
					_, _ = client.VDel(ctx, "urgent1", nil, DelOptions{Urgent: true})
				default:
					_, _ = client.GetWith(ctx, fmt.Sprint("urgent", i), GetOptions{Urgent: true})
				}
			}()
			synctest.Wait()
		}
		requests := b.received()
		if len(requests) != slots {
			t.Fatalf("%d requests are sent, want %d", len(requests), slots)
		}
		for i := range 2 { // the next two slots
			b.acknowledge(requests[i].PacketID, 0)
			synctest.Wait()
		}
		requests = b.received()[ordinary:]
		for i, request := range requests {
			if want := fmt.Sprint("urgent", i); !strings.Contains(string(request.Payload), want) {
				t.Errorf("request %d is %.50q, want %s", i, request.Payload, want)
			}
		}
		if len(requests) != 4 {
			t.Errorf("%d requests are sent after the ordinary ones", len(requests))
		}
	})
}

func TestAnUrgentRequestLeavesBeforeThoseThatWaitForTheConnectionToTakeThem(t *testing.T) {
	conn, l := newTestLink(t, 100)
	keys := map[*exchange]string{}
	for _, key := range []string{"o1", "o2", "u1", "o3", "u2"} {
		e := newExchange(t.Context(), Request{Urgent: key[0] == 'u'})
		keys[e] = key
		if _, err := conn.post(e); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for range keys {
		l.mu.Lock()
		e := l.popLocked()
		l.mu.Unlock()
		got = append(got, keys[e])
	}
	if want := "u1 u2 o1 o2 o3"; strings.Join(got, " ") != want {
		t.Errorf("they leave as %q, want %q", got, want)
	}
}
