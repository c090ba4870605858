package statestore

import (
	"crypto/sha256"
	"hash/crc32"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

func TestTheChecksumOfAStringEqualsTheChecksumOfItsBytes(t *testing.T) {
	for _, text := range []string{"", "\x00", "1696374425000:0:CLIENT", "\xff\x00 any bytes"} {
		for _, sum := range []uint32{0, 1, 1<<32 - 1} {
			if got, want := updateSum(sum, text), crc32.Update(sum, castagnoli, []byte(text)); got != want {
				t.Errorf("updateSum(%#x, %q) = %#x; want %#x", sum, text, got, want)
			}
		}
	}
}

// A renewal copies the key, by which it is looked up.
func TestARenewalAllocatesLittle(t *testing.T) {
	store, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	payload := []byte("*6\r\n$3\r\nset\r\n$4\r\nlock\r\n$6\r\np:0001\r\n$3\r\nnex\r\n$2\r\npx\r\n$5\r\n10000\r\n")
	timestamp, correlation := "1696374425000:0:p", make([]byte, 16)
	renew := func() {
		correlation[0]++
		command := Parse(Request{Client: "p", Payload: payload, Correlation: correlation, Timestamp: &timestamp})
		if reply, _ := store.Apply(Instant{WallMillis: 1696374425000}, command); reply.Outcome != OK {
			t.Fatal(reply)
		}
	}
	for range 2 * DefaultDedupWindow {
		renew()
	}
	if got := testing.AllocsPerRun(1000, renew); got > 1 {
		t.Errorf("a renewal allocates %v times; want 1", got)
	}
}

// deliver sends a request that may be delivered again.
func (w *world) deliver(client, correlation string, words ...string) (reply Reply, notified int) {
	ts := "1:0:n"
	reply, notifications := w.store.Apply(w.now, Parse(Request{
		Client: client, Payload: []byte(payload(words...)), Timestamp: &ts, Correlation: []byte(correlation),
	}))
	return reply, len(notifications.Notifications)
}

// Invariant 23: the store distinguishes correlation data of any length, whichever byte differs.
func TestInvariant23CorrelationDataOfAnyLengthIsDistinguished(t *testing.T) {
	long := strings.Repeat("x", 1<<16-2)
	all := []string{"\x00", "\x00\x00", "a", "a\x00", long, long + "x", long + "y", "y" + long}
	for _, length := range []int{15, 16, 17, 36} {
		all = append(all, strings.Repeat("x", length), strings.Repeat("x", length-1)+"y", "y"+strings.Repeat("x", length-1))
	}
	sum := sha256.Sum256([]byte(long)) // as data it differs from the hash of the long one
	all = append(all, string(sum[:16]))
	w := newWorld(t, Options{})
	replies := make(map[string]Reply)
	for _, correlation := range all {
		reply, _ := w.deliver("c", correlation, "SET", "k", "v")
		for other, earlier := range replies {
			if reply.Version == earlier.Version {
				t.Fatalf("%.20q is taken for %.20q", correlation, other)
			}
		}
		replies[correlation] = reply
	}
	for _, correlation := range all {
		if again, _ := w.deliver("c", correlation, "SET", "k", "v"); again != replies[correlation] {
			t.Errorf("%.20q delivered again: %v; the first time %v", correlation, again, replies[correlation])
		}
	}
}

// Invariant 23: the store recognizes redeliveries of exactly the last requests, even if a client
// reuses correlation data or loses its connection meanwhile.
func TestInvariant23TheLastRequestsAreRecognized(t *testing.T) {
	const window = 4
	for name, middle := range map[string]func(*world){
		"others": func(w *world) { w.deliver("c", "other", "SET", "k", "v") },
		"the same data with other content": func(w *world) {
			w.deliver("c", "first", "SET", "k", "first")
			w.deliver("c", "again", "SET", "k", "v")
			w.deliver("c", "again", "SET", "k", "w")
		},
		"a watch that is begun again": func(w *world) {
			w.deliver("c", "watch", "KEYNOTIFY", "k")
			w.store.Disconnect("c")
			w.deliver("c", "watch", "KEYNOTIFY", "k")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{DedupWindow: window})
			w.deliver("c", "before", "SET", "k", "v")
			middle(w)
			var first [window]Reply
			for i := range first {
				first[i], _ = w.deliver("c", strconv.Itoa(i), "SET", "k", "v")
			}
			for i := range first {
				if again, _ := w.deliver("c", strconv.Itoa(i), "SET", "k", "v"); again != first[i] {
					t.Errorf("request %d delivered again: %v; the first time %v", i, again, first[i])
				}
			}
			if got := w.store.Usage().DedupEntries; got != window {
				t.Errorf("the window has %d requests; want %d", got, window)
			}
		})
	}
}

// A request that reuses correlation data is the latest, and stays as long as any other.
func TestARequestThatReusesCorrelationDataIsAsNewAsAnyOther(t *testing.T) {
	w := newWorld(t, Options{DedupWindow: 3})
	for _, correlation := range []string{"1", "2", "3"} {
		w.deliver("c", correlation, "SET", "k", "v")
	}
	reused, _ := w.deliver("c", "1", "SET", "k", "w")
	w.deliver("c", "4", "SET", "k", "v")
	w.deliver("c", "5", "SET", "k", "v")
	if again, _ := w.deliver("c", "1", "SET", "k", "w"); again != reused {
		t.Errorf("delivered again: %v; the first time %v", again, reused)
	}
}

// A watch ends with the connection, so a redelivered KEYNOTIFY registers again. Other redelivered
// requests are not applied again.
func TestAKeyNotifyRedeliveredOnTheNextConnectionRegisters(t *testing.T) {
	w := newWorld(t, Options{})
	w.deliver("c", "watch", "KEYNOTIFY", "k")
	set, notified := w.deliver("c", "set", "SET", "k", "v")
	if notified != 1 {
		t.Fatalf("%d are notified", notified)
	}
	w.store.Disconnect("c")
	if again, notified := w.deliver("c", "set", "SET", "k", "v"); again != set || notified != 0 {
		t.Errorf("a SET delivered again: %v, %d notifications; the first time %v", again, notified, set)
	}
	w.deliver("c", "watch", "KEYNOTIFY", "k")
	if _, notified := w.deliver("c", "set 2", "SET", "k", "v"); notified != 1 {
		t.Errorf("%d are notified after the watch began again", notified)
	}
}

// The memory for the requests of one client is bounded, whatever it sends.
func TestLongCorrelationDataTakesNoMemory(t *testing.T) {
	w := newWorld(t, Options{})
	correlation := strings.Repeat("x", 1<<16-9)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const clients, requests = 10, DefaultDedupWindow
	for client := range clients {
		for i := range requests {
			w.deliver(strconv.Itoa(client), correlation+strconv.Itoa(i), "SET", "k", "v")
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4*w.store.Usage().DedupBytes {
		t.Errorf("%d requests take up %d bytes", clients*requests, grown)
	}
	t.Log((int64(after.HeapAlloc)-int64(before.HeapAlloc))/(clients*requests), "bytes for each")
	runtime.KeepAlive(w)
}
