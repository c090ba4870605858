package mqtt

import (
	"fmt"
	"testing"
)

func rotationOf(t *testing.T, addresses string) *Rotation {
	t.Helper()
	servers, err := ParseAddresses(addresses)
	if err != nil {
		t.Fatal(err)
	}
	return NewRotation(servers)
}

// It may be frozen, and each attempt would cost another timeout, while one that stands by takes over.
func TestARotationLeavesAServerOutForAFewPausesAfterATimeout(t *testing.T) {
	for _, addresses := range []string{"mqtt://a,mqtt://b", "mqtt://a,mqtt://b,mqtt://c"} {
		r := rotationOf(t, addresses)
		r.Silent()
		r.TimedOut()
		r.Next(false)
		pauses := 1
		for ; r.Server().Hostname() != "a" && pauses < 100; pauses++ {
			for r.Answered(); r.Next(true); r.Answered() {
			}
		}
		if pauses != skips {
			t.Errorf("%s: asked again after %d pauses, want %d", addresses, pauses, skips)
		}
	}
}

// One server after the other is the active one; the others refuse.
func TestARotationReachesTheActiveServerWhateverWasSilentBefore(t *testing.T) {
	hosts := []string{"a", "b", "c", "d"}
	for start := range hosts {
		for silent := range 1 << len(hosts) {
			for active := range hosts {
				r := rotationOf(t, "mqtt://a,mqtt://b,mqtt://c,mqtt://d")
				for i := range hosts {
					if silent&(1<<i) != 0 {
						r.Silent()
					}
					r.Next(false)
				}
				for range start {
					r.Next(false)
				}
				attempts := 0
				for ; r.Server().Hostname() != hosts[active] && attempts < 3*len(hosts); attempts++ {
					r.Answered()
					r.Next(true)
				}
				if r.Server().Hostname() != hosts[active] {
					t.Errorf("from %s, silent %04b: %s is not reached in %d attempts", hosts[start], silent, hosts[active], attempts)
				}
			}
		}
	}
}

func TestARotationOfOneServerNeedsAPause(t *testing.T) {
	r := rotationOf(t, "mqtt://a")
	for range 2 {
		atOnce := r.Next(true)
		if atOnce || fmt.Sprint(r.Server()) != "mqtt://a:1883" {
			t.Errorf("goes to %v, at once: %t", r.Server(), atOnce)
		}
	}
}
