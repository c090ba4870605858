package statestore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// Invariant 11: tokens of successive tenures strictly rise, whichever client acquires.
func TestInvariant11TokensOfSuccessiveTenuresRise(t *testing.T) {
	w := newWorld(t, Options{})
	first := w.set(ask("SET lock a NEX PX 1000").as("a"))
	w.want(ask("VDEL lock a").as("a"), ":1\r\n@"+first)
	second := w.set(ask("SET lock b NEX PX 1000").as("b"))
	w.now.Elapsed += time.Second
	w.now.WallMillis -= 7200_000 // the server's clock is set two hours back
	third := w.set(ask("SET lock a NEX PX 1000").as("a"))
	if w.compare(first, second) >= 0 || w.compare(second, third) >= 0 {
		t.Errorf("the tokens are %s, %s, %s", first, second, third)
	}
}

// Invariant 49: a token that the store issued is never too far ahead for it, even if its clock is
// set back. A token that it did not issue can be.
func TestInvariant49TokenThatTheStoreIssuedIsNeverTooFarAhead(t *testing.T) {
	w := newWorld(t, Options{})
	token := w.set(ask("SET lock a NEX PX 10000").as("a"))
	w.set(ask("SET recipe 1").as("a").fencedBy(token))
	w.now.WallMillis -= 3600_000 // the server's clock is set an hour back
	w.set(ask("SET recipe 2").as("a").fencedBy(token))
	w.set(ask("SET other 1").as("a").fencedBy(token))
	latest := w.set(ask("SET recipe 3").as("a").fencedBy(token))
	w.set(ask("SET recipe 4").as("a").fencedBy(latest))
	w.want(ask("DEL recipe").as("a").fencedBy(token), refusal(textTokenLower))
	w.want(ask("VDEL other 1").as("a").fencedBy(token), ":1\r\n@1696374425000:4:StateStore")

	w.want(ask("SET k v").fencedBy("1696374425001:0:a"), refusalAt(textTokenAhead, w.now.WallMillis))
	w.want(ask("SET k v").fencedBy("1696374425000:99:a"), refusalAt(textTokenAhead, w.now.WallMillis))
	w.want(ask("SET k v").at("1696374425000:0:c"), refusalAt(textTimestampAhead, w.now.WallMillis))
}

// Invariant 41: one bad peer moves the store's clock by at most the skew limit, and
// the store recovers.
func TestInvariant41StoreRecoversFromBadPeer(t *testing.T) {
	w := newWorld(t, Options{})
	for _, ts := range []string{
		"1696374485001:0:bad", "9223372036854775807:18446744073709551615:bad",
		"1696374485000:18446744073709551615:bad", "1696374485000:9223372036854775808:bad",
		"1696374485000:9223372036854775807:bad", // the worst that is accepted
	} {
		w.send(ask("SET k v").at(ts).as("bad"))
		// A millisecond more for the counters that do not fit.
		if version := w.set(ask("SET k v").as("good")); w.compare(version, "1696374485002:0:a") >= 0 {
			t.Fatalf("after %s the version is %s", ts, version)
		}
	}
	w.pass(time.Minute + 2*time.Millisecond)
	if got, want := w.set(ask("SET k v").at("1696374425000:0:good")), "1696374485002:0:StateStore"; got != want {
		t.Errorf("a minute later the version is %s; want %s", got, want)
	}
}

// Deployed clients keep counters in 32 bits with a sign, and count on from a version: so no version has a
// counter beyond half of them, whatever clients send, however often the store crashes, and for however long
// its clock is behind.
func TestVersionsLeaveDeployedClientsSpaceToCount(t *testing.T) {
	const last = 1 << 30
	d := make(disk)
	w := d.world(t, Options{})
	sets := 0
	set := func(ts string) string {
		sets++
		return w.set(ask(fmt.Sprint("SET k ", sets)).at(ts))
	}
	for _, step := range []struct{ what, ts, want string }{
		{"the largest counter that is taken", "1696374484500:1048575:c", "1696374484500:1048576"},
		{"another client's request after it", "1696374425000:0:other", "1696374484500:1048577"},
		{"a client that counts on from the version that it got", "1696374484500:1048579:c", "1696374484501:0"},
		{"a larger counter", "1696374484501:2147483647:c", "1696374484502:0"},
		{"the largest counter that is accepted", "1696374484502:9223372036854775807:c", "1696374484503:0"},
		{"a client that is behind", "1696374484502:2147483647:c", "1696374484503:1"},
	} {
		if got := set(step.ts); got != step.want+":StateStore" {
			t.Errorf("%s: the version is %s; want %s", step.what, got, step.want)
		}
	}
	w.store.versions.clock.counter = last // after as many requests within one millisecond
	if got := set("1696374425000:0:c"); got != "1696374484504:0:StateStore" {
		t.Errorf("after the largest counter the version is %s", got)
	}
	for i := range 3000 { // a store that crashes again and again, with a clock that is behind
		d.write([]Group{{w.store.versions.record()}})
		w = d.world(t, Options{})
		version, err := hlc.Parse(set("1696374425000:0:c"))
		if err != nil || version.Counter > last || version.Wall > 1696374484506+int64(i) {
			t.Fatalf("after %d crashes the version is %v, %v", i+1, version, err)
		}
		if stampOf(version).above(w.store.versions.bound) {
			t.Fatalf("after %d crashes version %v is above the bound %v", i+1, version, w.store.versions.bound)
		}
	}
}

func TestOptionsOfNew(t *testing.T) {
	for cause, options := range map[string]Options{
		"MaxKeys -1": {MaxKeys: -1}, "MaxBytes -7": {MaxBytes: -7},
		"HoldOff -1ns is negative": {HoldOff: -1}, "LockPrefixes needs Options.Strict": {LockPrefixes: []string{"l"}},
	} {
		if store, err := New(options); store != nil || err == nil || !strings.Contains(err.Error(), cause) {
			t.Errorf("New = %v, %v; want an error with %q", store, err, cause)
		}
	}
}
