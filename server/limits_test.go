package server_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

func TestAServerTakesAsManyClientsAsItMay(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{MaxClients: 2})
	testsupport.Connect(t, address, "a", nil)
	b := testsupport.Connect(t, address, "b", testsupport.KeepSession(true))
	refused := func(id string) {
		t.Helper()
		p, err := testsupport.TryConnect(t, address, id, nil)
		if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackQuotaExceeded ||
			!strings.Contains(p.Connack.Properties.ReasonString, "its 2 clients") {
			t.Errorf("%q: %+v, %v", id, p.Connack, err)
		}
	}
	refused("c")
	_ = b.Paho.Disconnect(&paho.Disconnect{})
	refused("c") // the session of b is still there
	if got := s.Stats().RefusedConnections; got != 2 {
		t.Errorf("%d refused connections are counted", got)
	}
	b = testsupport.Connect(t, address, "b", nil) // which ends its session
	_ = b.Paho.Disconnect(&paho.Disconnect{})
	connectWhenThereIsRoom(t, address, "c")
}

// connectWhenThereIsRoom repeats: the server hears of a DISCONNECT after its sender
// is gone.
func connectWhenThereIsRoom(t *testing.T, address, id string) {
	t.Helper()
	var err error
	for range 1000 {
		if _, err = testsupport.TryConnect(t, address, id, nil); err == nil {
			return
		}
	}
	t.Errorf("%q: %v", id, err)
}

func TestTheReceiveMaximumIsHowManyRequestsAreRemembered(t *testing.T) {
	for _, remembered := range []int{0, 7} {
		p := testsupport.Connect(t, testsupport.Start(t, server.Options{Store: statestore.Options{DedupWindow: remembered}}), "p", nil)
		want := uint16(remembered)
		if remembered == 0 {
			want = statestore.DefaultDedupWindow
		}
		if got := p.Connack.Properties.ReceiveMaximum; got == nil || *got != want {
			t.Errorf("remembered %d: the Receive Maximum is %v", remembered, got)
		}
	}
}

func TestInvariant38ARenewalIsNeverRefusedForQuota(t *testing.T) {
	address := testsupport.Start(t, server.Options{Store: statestore.Options{MaxKeys: 1, MaxBytes: 8, MaxValue: 4, MaxWatches: 1}})
	p := testsupport.Connect(t, address, "p", nil)
	const full = "-ERR the quota has been exceeded\r\n"
	for i, step := range []struct {
		words []string
		want  string
	}{
		{[]string{"SET", "lock", "p:01", "NEX", "PX", "60000"}, "+OK\r\n"},
		{[]string{"SET", "other", "v"}, full},
		{[]string{"SET", "lock", "p:001"}, full},
		{[]string{"SET", "lock", "p:01", "NEX", "PX", "60000"}, "+OK\r\n"},
		{[]string{"KEYNOTIFY", "lock"}, "+OK\r\n"},
		{[]string{"KEYNOTIFY", "other"}, full},
		{[]string{"KEYNOTIFY", "lock"}, "+OK\r\n"},
	} {
		if got := p.Do(step.words...); got != step.want {
			t.Errorf("step %d, %q: %q, want %q", i, step.words, got, step.want)
		}
	}
}

func TestAClientMayWatchTenThousandKeysUnlessOptionsSayOtherwise(t *testing.T) {
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{}), "p", nil)
	for i := range 10_000 {
		if got := p.Do("KEYNOTIFY", strconv.Itoa(i)); got != "+OK\r\n" {
			t.Fatalf("watch %d: %q", i, got)
		}
	}
	if got, want := p.Do("KEYNOTIFY", "one more"), "-ERR the quota has been exceeded\r\n"; got != want {
		t.Errorf("one more: %q, want %q", got, want)
	}
}

func TestTheWatchesOfAClientMayTakeUpFourMebibytesUnlessOptionsSayOtherwise(t *testing.T) {
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{}), "p", nil)
	long := strings.Repeat("k", 60_000)
	watches := 0
	for ; p.Do("KEYNOTIFY", long+strconv.Itoa(watches)) == "+OK\r\n"; watches++ {
		if watches > 100 {
			break
		}
	}
	if watches != 69 { // of 60,258 bytes at most, with what a watch counts beside its key
		t.Errorf("%d watches of 60 kB were begun", watches)
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, options := range []server.Options{
		{Addr: "127.0.0.1:0", MaxClients: -1},
		{Addr: "127.0.0.1:0", PasswordChecks: -1},
		{Addr: "127.0.0.1:0", MaxUnauthenticated: -1},
		{Addr: "127.0.0.1:0", MaxUnauthenticatedPerAddress: -1},
		{Addr: "127.0.0.1:0", Store: statestore.Options{DedupWindow: 1 << 16}},
		{Addr: "127.0.0.1:0", Store: statestore.Options{MaxWatches: -1}},
		{Addr: "127.0.0.1:0", Store: statestore.Options{LockPrefixes: []string{"lock/"}}},
		{Addr: "127.0.0.1:0", Store: statestore.Options{Strict: true, LockPrefixes: []string{""}}},
	} {
		if s, err := server.New(options); err == nil {
			_ = s.Close()
			t.Errorf("%s was accepted", fmt.Sprintf("%+v", options))
		}
	}
}
