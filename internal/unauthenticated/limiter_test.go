package unauthenticated

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestABurstOfConnectionsIsAcceptedInPortions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(2, 0, 0)
		here := netip.MustParsePrefix("127.0.0.1/32")
		arrive := func() *Connection {
			t.Helper()
			v, oldest, err := d.Add(here, func() {})
			if oldest != nil || err != nil {
				t.Fatalf("%v is dropped, %v", oldest, err)
			}
			return v
		}
		first := arrive()
		time.Sleep(grace / 4)
		if wait := d.pause(); wait != 0 {
			t.Errorf("while there is room the next waits %v", wait)
		}
		second := arrive()
		if wait := d.pause(); wait != grace*3/4 {
			t.Errorf("the next waits %v for the first to have its time", wait)
		}
		first.Done()
		if wait := d.pause(); wait != 0 {
			t.Errorf("after one has left the next waits %v", wait)
		}
		arrive().Protect()
		if wait := d.pause(); wait != grace {
			t.Errorf("the next waits %v for the second", wait)
		}
		time.Sleep(grace)
		third, oldest, err := d.Add(here, func() {})
		if d.Len() != 2 || oldest != second || err != nil {
			t.Errorf("%d are there; %v is dropped, %v", d.Len(), oldest, err)
		}
		third.Protect()
		if _, oldest, err := d.Add(here, func() {}); oldest != nil || err == nil {
			t.Errorf("where all have sent a CONNECT %v is dropped, %v", oldest, err)
		}
		time.Sleep(DefaultTimeout)
		synctest.Wait()
		if third.Context().Err() == nil {
			t.Error("its time is not over")
		}
		if !third.Done() || third.Done() || second.Done() {
			t.Error("leaving reports something else than what happened")
		}
	})
}

func TestAnIPv6NetworkAndThisMachineAreOneSourceEach(t *testing.T) {
	for _, test := range []struct{ address, want string }{
		{"192.0.2.1", "192.0.2.1/32"},
		{"::ffff:192.0.2.1", "192.0.2.1/32"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"fe80::1%eth0", "fe80::/64"},
		{"::1", "::1/128"},
	} {
		ip := netip.MustParseAddr(test.address)
		if got := SourceOf(net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 1))); got.String() != test.want {
			t.Errorf("%s counts as %v, want %s", test.address, got, test.want)
		}
	}
	if got := SourceOf(&net.UnixAddr{}); !got.Addr().IsLoopback() {
		t.Errorf("a Unix socket counts as %v, which is not this machine", got)
	}
	for _, other := range []net.Addr{nil, &net.IPAddr{}} {
		if got := SourceOf(other); got != (netip.Prefix{}) {
			t.Errorf("%v counts as %v", other, got)
		}
	}
}

func TestAnAddressHasABoundOfItsOwnUnlessItIsThisMachine(t *testing.T) {
	here, there := netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("192.0.2.1/32")
	for _, test := range []struct{ most, mostOf, sockets, here, there int }{
		{256, 0, 0, 256, 64},
		{32, 0, 0, 32, 32},
		{256, 5, 0, 5, 5},
		{256, 0, 20, 10, 10},
		{256, 0, 1, 1, 1},
	} {
		d := New(test.most, test.mostOf, test.sockets)
		if d.LimitOf(here) != test.here || d.LimitOf(there) != test.there {
			t.Errorf("%+v: %d here, %d there", test, d.LimitOf(here), d.LimitOf(there))
		}
	}
}
