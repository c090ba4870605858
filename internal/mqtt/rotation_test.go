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

func TestARotationFollowsAServerReferenceToItsOwnServersOnly(t *testing.T) {
	const servers = "mqtt://a,mqtts://b:8884,mqtt://[::1]:1884,wss://d/mqtt"
	for _, test := range []struct {
		name, reference string
		want            string
	}{
		{"none", "", "b:8884"},
		{"host and port", "[::1]:1884", "[::1]:1884"},
		{"a default port", "d:443", "d:443"},
		{"a host alone", "d", "d:443"},
		{"an IPv6 address alone", "[::1]", "[::1]:1884"},
		{"an address", "mqtts://d:443/", "d:443"},
		{"another case", "D:443", "d:443"},
		{"a list", "elsewhere:1883 d", "d:443"},
		{"another port", "d:1883", "b:8884"},
		{"a foreign server", "elsewhere:1883", "b:8884"},
		{"itself", "a:1883", "b:8884"},
		{"spaces", "   ", "b:8884"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := rotationOf(t, servers)
			if atOnce := r.Follow(test.reference); !atOnce || r.Server().Host != test.want {
				t.Errorf("goes to %s, at once: %t; want %s", r.Server().Host, atOnce, test.want)
			}
		})
	}
}

// It may be frozen, and each attempt would cost another timeout, while one that stands by takes over.
func TestARotationLeavesAServerOutForAFewPausesAfterATimeout(t *testing.T) {
	for _, addresses := range []string{"mqtt://a,mqtt://b", "mqtt://a,mqtt://b,mqtt://c"} {
		for _, reference := range []string{"a", ""} {
			r := rotationOf(t, addresses)
			r.Silent()
			r.TimedOut()
			r.Next()
			pauses := 1
			for ; r.Server().Hostname() != "a" && pauses < 100; pauses++ {
				for r.Answered(); r.Follow(reference); r.Answered() {
				}
			}
			if pauses != skips {
				t.Errorf("%s, reference %q: asked again after %d pauses, want %d", addresses, reference, pauses, skips)
			}
		}
	}
}

// One server after the other is the active one; the others refuse, and name it or none.
func TestARotationReachesTheActiveServerWhateverWasSilentBefore(t *testing.T) {
	hosts := []string{"a", "b", "c", "d"}
	for _, named := range []bool{true, false} {
		for start := range hosts {
			for silent := range 1 << len(hosts) {
				for active := range hosts {
					r := rotationOf(t, "mqtt://a,mqtt://b,mqtt://c,mqtt://d")
					for i := range hosts {
						if silent&(1<<i) != 0 {
							r.Silent()
						}
						r.Next()
					}
					for range start {
						r.Next()
					}
					reference := ""
					if named {
						reference = hosts[active]
					}
					attempts := 0
					for ; r.Server().Hostname() != hosts[active] && attempts < 3*len(hosts); attempts++ {
						r.Answered()
						r.Follow(reference)
					}
					if r.Server().Hostname() != hosts[active] {
						t.Errorf("from %s, silent %04b: %s is not reached in %d attempts; named: %t", hosts[start], silent, hosts[active], attempts, named)
					}
				}
			}
		}
	}
}

func TestARotationOfOneServerNeedsAPause(t *testing.T) {
	r := rotationOf(t, "mqtt://a")
	for range 2 {
		atOnce := r.Follow("a")
		if atOnce || fmt.Sprint(r.Server()) != "mqtt://a:1883" {
			t.Errorf("goes to %v, at once: %t", r.Server(), atOnce)
		}
	}
}
