package server

import (
	"testing"

	"github.com/tenurelock/tenure/server/internal/quota"
	"github.com/tenurelock/tenure/statestore"
)

// A client that is told of a change and has no room for that is disconnected. It must not
// be others that take the room.
func TestInvariant57ClientsThatDoNotReadLeaveRoomForTheNotificationsOfOthers(t *testing.T) {
	all := quota.New(1 << 20)
	for range 1000 { // each takes as much as it gets, in pieces of all sizes
		deaf := newOutbox(64<<10, all, newWriteLimiter())
		for size := 64 << 10; size > 0; size /= 2 {
			for deaf.Reserve(size) {
			}
		}
	}
	reads := newOutbox(64<<10, all, newWriteLimiter())
	for range 10 {
		if queued, _ := reads.push(&sharedNotification{Change: &statestore.Change{Key: "key", Value: string(make([]byte, 100))}}); !queued {
			t.Fatalf("a client that reads has no room for a notification; %d of %d bytes are taken", all.Used(), 1<<20)
		}
	}
	reads.close()
	if used := reads.used; used != 0 {
		t.Errorf("%d bytes stay", used)
	}
}
