package descriptors

import "testing"

func TestConnectionsLeaveAReserveOfDescriptors(t *testing.T) {
	for _, test := range []struct{ descriptors, sockets int }{{0, 0}, {1, 1}, {64, 32}, {128, 64}, {200, 136}, {1024, 960}} {
		if got := maxSockets(test.descriptors); got != test.sockets {
			t.Errorf("%d descriptors: %d sockets, want %d", test.descriptors, got, test.sockets)
		}
	}
}
