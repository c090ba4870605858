package statestore

import (
	"hash/crc32"
	"testing"
)

func TestTheSumOfAStringIsThatOfItsBytes(t *testing.T) {
	for _, text := range []string{"", "\x00", "1696374425000:0:CLIENT", "\xff\x00 any bytes"} {
		for _, sum := range []uint32{0, 1, 1<<32 - 1} {
			if got, want := updateSum(sum, text), crc32.Update(sum, castagnoli, []byte(text)); got != want {
				t.Errorf("updateSum(%#x, %q) = %#x; want %#x", sum, text, got, want)
			}
		}
	}
}

// A renewal copies what the store keeps: the key, by which it is looked up, and the
// correlation data.
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
	for range 2 * DefaultRemembered {
		renew()
	}
	if got := testing.AllocsPerRun(1000, renew); got > 2 {
		t.Errorf("a renewal allocates %v times; want 2", got)
	}
}
