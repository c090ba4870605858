package statestore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// docs/protocol.md §3.3: the version of each SET in a row, by the request's timestamp and the
// store's time of day.
func TestVersions(t *testing.T) {
	type step struct {
		wall int64
		ts   string
		want string
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"the protocol's example", []step{{noon, "1696374425000:0:CLIENT", "1696374425000:1:StateStore"}}},
		{"the same, padded as deployed clients do", []step{{noon, "001696374425000:00000:CLIENT", "1696374425000:1:StateStore"}}},
		{"the store's clock is ahead", []step{{noon + 123, "1696374425000:7:CLIENT", "1696374425123:0:StateStore"}}},
		{"the client's clock is ahead", []step{{noon, "1696374425900:7:CLIENT", "1696374425900:8:StateStore"}}},
		{"several in one millisecond", []step{
			{noon, "1696374425000:0:CLIENT", "1696374425000:1:StateStore"},
			{noon, "1696374425000:0:CLIENT", "1696374425000:2:StateStore"},
			{noon, "1696374425000:9:CLIENT", "1696374425000:10:StateStore"},
			{noon, "1696374424999:70:CLIENT", "1696374425000:11:StateStore"},
		}},
		{"the next millisecond begins at 0", []step{
			{noon, "1696374425000:5:CLIENT", "1696374425000:6:StateStore"},
			{noon + 1, "1696374425000:5:CLIENT", "1696374425001:0:StateStore"},
		}},
		{"a client's clock is hours behind", []step{{noon, "0:0:CLIENT", "1696374425000:0:StateStore"}}},
		{"invariant 11, the store's clock steps back an hour", []step{
			{noon, "1696374425000:0:CLIENT", "1696374425000:1:StateStore"},
			{noon - 3600_000, "1696370825000:0:CLIENT", "1696374425000:2:StateStore"},
			{noon - 3600_000, "0:0:CLIENT", "1696374425000:3:StateStore"},
			{noon, "1696374425000:0:CLIENT", "1696374425000:4:StateStore"},
			{noon + 1, "1696374425000:0:CLIENT", "1696374425001:0:StateStore"},
		}},
		{"a client was ahead, and time passes", []step{
			{noon, "1696374485000:0:CLIENT", "1696374485000:1:StateStore"},
			{noon + 59_999, "1696374425000:0:OTHER", "1696374485000:2:StateStore"},
			{noon + 60_000, "1696374425000:0:OTHER", "1696374485000:3:StateStore"},
			{noon + 60_001, "1696374425000:0:OTHER", "1696374485001:0:StateStore"},
		}},
		{"a store whose clock is before 1970", []step{{-5, "0:3:CLIENT", "0:4:StateStore"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			for i, step := range test.steps {
				w.now.WallMillis = step.wall
				if got := w.set(ask("SET k v").at(step.ts)); got != step.want {
					t.Errorf("step %d: the version is %s; want %s", i, got, step.want)
				}
			}
		})
	}
}

// Invariant 36: a version is above every version ever issued and above the request's
// timestamp; whatever clocks do, and whatever became of the keys.
func TestInvariant36VersionsRise(t *testing.T) {
	random := rand.New(rand.NewPCG(36, 1))
	w := newWorld(t, Options{})
	last := "0:0:a"
	for i := range 5000 {
		w.now.WallMillis = noon + random.Int64N(200_000) - 100_000
		w.now.Elapsed += time.Duration(random.IntN(30)) * time.Millisecond
		ts := fmt.Sprintf("%d:%d:~", w.now.WallMillis+random.Int64N(120_001)-60_000, random.IntN(5))
		key := fmt.Sprint(random.IntN(3))
		version := w.set(ask("SET " + key + " v PX 40").at(ts))
		if w.compare(version, last) <= 0 || w.compare(version, ts) <= 0 {
			t.Fatalf("SET %d: the version is %s; the last was %s, the request's timestamp %s", i, version, last, ts)
		}
		last = version
		switch random.IntN(5) {
		case 0:
			w.want(ask("DEL "+key), ":1\r\n@"+version)
		case 1:
			w.send(ask("SET " + key + " other NX"))
		case 2:
			w.store.Expire(w.now, 10)
		}
	}
}

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

func TestVersionIsThatOfTheValueUntilTheNextSet(t *testing.T) {
	w := newWorld(t, Options{})
	version := w.set(ask("SET k v"))
	w.pass(time.Minute)
	w.set(ask("SET other v")) // moves the store's clock
	w.want(ask("GET k"), "$1\r\nv\r\n@"+version)
	w.want(ask("GET k").at("1696374485000:9:CLIENT"), "$1\r\nv\r\n@"+version)
	w.want(ask("VDEL k other"), ":-1\r\n")
	w.want(ask("GET k"), "$1\r\nv\r\n@"+version)
	w.want(ask("VDEL k v"), ":1\r\n@"+version)
	if again := w.set(ask("SET k v")); w.compare(again, version) <= 0 {
		t.Errorf("after %s the same value got version %s", version, again)
	}
}

// docs/protocol.md §3.4: more than one minute ahead is rejected, to the millisecond, and
// nothing behind ever is.
func TestSkew(t *testing.T) {
	tests := []struct {
		name    string
		request request
		want    string // empty: applied
	}{
		{"__ts a minute ahead", ask("SET k v").at("1696374485000:0:n"), ""},
		{"__ts a minute ahead, with a counter", ask("SET k v").at("1696374485000:99:n"), ""},
		{"__ts a minute and a millisecond ahead", ask("SET k v").at("1696374485001:0:n"), refusal(textTimestampAhead)},
		{"__ts at the end of time", ask("SET k v").at("9223372036854775807:0:n"), refusal(textTimestampAhead)},
		{"__ts a minute behind", ask("SET k v").at("1696374365000:0:n"), ""},
		{"__ts at the beginning of time", ask("SET k v").at("0:0:n"), ""},
		{"__ft a minute ahead", ask("SET k v").fencedBy("1696374485000:0:n"), ""},
		{"__ft a minute and a millisecond ahead", ask("SET k v").fencedBy("1696374485001:0:n"), refusal(textTokenAhead)},
		{"__ft at the end of time", ask("SET k v").fencedBy("9223372036854775807:0:n"), refusal(textTokenAhead)},
		{"__ft at the beginning of time", ask("SET k v").fencedBy("0:0:n"), ""},
		{"__ts and __ft a minute ahead", ask("SET k v").at("1696374485000:0:n").fencedBy("1696374485000:0:n"), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Options{})
			if test.want == "" {
				w.set(test.request)
			} else {
				w.want(test.request, test.want)
			}
		})
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

// The refusal of a timestamp as too far ahead has the store's clock as its version.
func TestRefusalForAClockHasTheStoresClock(t *testing.T) {
	w := newWorld(t, Options{Node: "press-7"})
	w.set(ask("SET k v").at("1696374485000:0:n")) // takes the versions a minute along, not the clock
	w.want(ask("GET k").at("1696374485001:0:n"), "-ERR "+textTimestampAhead+"\r\n@1696374425000:0:press-7")
	w.now.WallMillis = -5
	w.want(ask("SET k v").at("60000:0:n"), "-ERR "+textTimestampAhead+"\r\n@0:0:press-7")
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
func TestVersionsLeaveDeployedClientsRoomToCount(t *testing.T) {
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
	w.store.versions.clock.Counter = last // after as many requests within one millisecond
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
		if above(version, w.store.versions.bound) {
			t.Fatalf("after %d crashes version %v is above the bound %v", i+1, version, w.store.versions.bound)
		}
	}
}

// A counter that the clock cannot adopt is refused, and changes nothing.
func TestCounterAtItsEndIsRefused(t *testing.T) {
	w := newWorld(t, Options{})
	version := w.set(ask("SET k v"))
	w.want(ask("KEYNOTIFY k"), "+OK\r\n")
	answer, notified := w.send(ask("SET k other").at("1696374425000:18446744073709551615:n").fencedBy("5:0:n"))
	if answer != refusal(textBadTimestamp) {
		t.Errorf("got %q; want a refusal", answer)
	}
	w.wantLines("the refused SET", notified)
	w.want(ask("GET k"), "$1\r\nv\r\n@"+version)
	w.want(ask("DEL k"), ":1\r\n@"+version) // no token was kept
}

func TestOptionsOfNew(t *testing.T) {
	tests := []struct {
		name    string
		options Options
		cause   string // empty: good
	}{
		{"the zero value", Options{}, ""},
		{"a node of one's own", Options{Node: "press-7"}, ""},
		{"limits", Options{MaxKeys: 1, MaxBytes: 1}, ""},
		{"a node with a colon", Options{Node: "a:b"}, `Options.Node "a:b" is not a node id`},
		{"a node with a line break", Options{Node: "a\n"}, `is not a node id`},
		{"a negative number of keys", Options{MaxKeys: -1}, "MaxKeys -1"},
		{"a negative number of bytes", Options{MaxBytes: -7}, "MaxBytes -7"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store, err := New(test.options)
			if test.cause == "" {
				if err != nil || store == nil || store.Usage().Keys != 0 {
					t.Errorf("New = %v, %v", store, err)
				}
				return
			}
			if store != nil || err == nil || !strings.Contains(err.Error(), test.cause) {
				t.Errorf("New = %v, %v; want an error with %q", store, err, test.cause)
			}
		})
	}
	if _, err := New(Options{Node: ":"}); !errors.Is(err, hlc.ErrMalformed) {
		t.Errorf("the error %v does not wrap hlc.ErrMalformed", err)
	}
	w := newWorld(t, Options{Node: "press-7"})
	w.want(ask("SET k v"), "+OK\r\n@1696374425000:1:press-7")
}

// A store with another node keeps the versions that the earlier one issued.
func TestVersionsKeepTheirNode(t *testing.T) {
	d := make(disk)
	w := d.world(t, Options{Node: "first"})
	ts := "1:0:n"
	request := Request{Client: "c", Payload: []byte(payload("SET", "k", "v")), Timestamp: &ts, Delivery: Redelivery, Correlation: []byte("1")}
	reply, effects := w.store.Apply(w.now, Parse(request))
	d.write(effects.Groups)
	w = d.world(t, Options{Node: "second"})
	w.want(ask("GET k"), "$1\r\nv\r\n@"+reply.Version.String())
	again, _ := w.store.Apply(w.now, Parse(request))
	if again != asSent(reply) || reply.Version.Node != "first" {
		t.Errorf("delivered again: %v; the first time %v", again, reply)
	}
	if version := w.set(ask("SET k w")); !strings.HasSuffix(version, ":second") || w.compare(version, reply.Version.String()) <= 0 {
		t.Errorf("the next version is %v", version)
	}
}
