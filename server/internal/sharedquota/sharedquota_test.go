package sharedquota_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
)

func TestAClientHasAtMostAsMuchAsIsLeftForAllOthers(t *testing.T) {
	const limit, assured = 100, 5
	for _, test := range []struct {
		name           string
		taken, own, by int64
		want           bool
	}{
		{"half of all, alone", 0, 0, 50, true},
		{"more than half, alone", 0, 0, 51, false},
		{"a second part, which makes it half", 30, 30, 20, true},
		{"a second part, which makes it more", 30, 30, 21, false},
		{"beside another, as much as is left", 50, 0, 25, true},
		{"beside another, more than is left", 50, 0, 26, false},
		{"what is assured, where nothing is left", 100, 0, 5, true},
		{"nothing more, where the client has more than is left", 100, 60, 0, true},
		{"more than what is assured, where nothing is left", 100, 1, 5, false},
	} {
		q := sharedquota.New(limit)
		for range test.taken {
			q.Take(0, 1, limit)
		}
		if got := q.Take(test.own, test.by, assured); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
		want := test.taken
		if test.want {
			want += test.by
		}
		if got := q.Used(); got != want {
			t.Errorf("%s: %d bytes are taken, want %d", test.name, got, want)
		}
		q.Release(want)
		if got := q.Used(); got != 0 {
			t.Errorf("%s: %d bytes stay", test.name, got)
		}
	}
}

func TestARefusedClientTakesNoRoomFromAnother(t *testing.T) {
	q := sharedquota.New(1000)
	q.Take(0, 400, 0)
	var ended atomic.Bool
	var refused sync.WaitGroup
	began := make(chan struct{})
	refused.Go(func() {
		for close(began); !ended.Load(); {
			q.Take(400, 400, 0)
		}
	})
	await.Receive(began)
	for range 1_000_000 {
		if !q.Take(0, 200, 0) {
			t.Error("a client got no room beside a refused one")
			break
		}
		q.Release(200)
	}
	ended.Store(true)
	await.Done(refused.Wait)
}

func TestClientsThatTakeAtTheSameTimeStayWithinTheLimit(t *testing.T) {
	const limit = 1 << 20
	q := sharedquota.New(limit)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for own := int64(0); q.Take(own, 100, 0); own += 100 {
			}
		})
	}
	await.Done(clients.Wait)
	if got := q.Used(); got > limit || got < limit/2 {
		t.Errorf("%d of %d bytes are taken", got, limit)
	}
}

func TestAUserHasItsShareWithAllOfItsConnections(t *testing.T) {
	u := sharedquota.NewUsers(100)
	for i, step := range []struct {
		user string
		more int64
		want bool
	}{{"a", 30, true}, {"a", 20, true}, {"a", 1, false}, {"b", 25, true}, {"b", 1, false}, {"a", -50, true}, {"b", 12, true}, {"b", -37, true}} {
		if got := u.Change(step.user, step.more, 0); got != step.want {
			t.Errorf("step %d: %t, want %t", i, got, step.want)
		}
	}
	if u.Used() != 0 {
		t.Errorf("%d bytes stay", u.Used())
	}
}
