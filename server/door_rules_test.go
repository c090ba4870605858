package server

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestACrowdThatArrivesTogetherIsAcceptedInPortions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAuthLimiter(2, 0)
		here := netip.MustParsePrefix("127.0.0.1/32")
		arrive := func() *pendingAuth {
			t.Helper()
			v, oldest, err := d.add(here, func() {})
			if oldest != nil || err != nil {
				t.Fatalf("%v is dropped, %v", oldest, err)
			}
			return v
		}
		first := arrive()
		time.Sleep(arrivalGrace / 4)
		if wait := d.wait(); wait != 0 {
			t.Errorf("while there is room the next waits %v", wait)
		}
		second := arrive()
		if wait := d.wait(); wait != arrivalGrace*3/4 {
			t.Errorf("the next waits %v for the first to have its time", wait)
		}
		first.done()
		if wait := d.wait(); wait != 0 {
			t.Errorf("after one has left the next waits %v", wait)
		}
		arrive().protect()
		if wait := d.wait(); wait != arrivalGrace {
			t.Errorf("the next waits %v for the second", wait)
		}
		time.Sleep(arrivalGrace)
		third, oldest, err := d.add(here, func() {})
		if d.total != 2 || oldest != second || err != nil {
			t.Errorf("%d are there; %v is dropped, %v", d.total, oldest, err)
		}
		third.protect()
		if _, oldest, err := d.add(here, func() {}); oldest != nil || err == nil {
			t.Errorf("where all have sent a CONNECT %v is dropped, %v", oldest, err)
		}
		time.Sleep(authenticationTimeout)
		synctest.Wait()
		if third.ctx.Err() == nil {
			t.Error("its time is not over")
		}
		if !third.done() || third.done() || second.done() {
			t.Error("leaving reports something else than what happened")
		}
	})
}

func TestWhatCountsAsOneAddress(t *testing.T) {
	for _, test := range []struct{ address, want string }{
		{"192.0.2.1", "192.0.2.1/32"},
		{"::ffff:192.0.2.1", "192.0.2.1/32"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"fe80::1%eth0", "fe80::/64"},
		{"::1", "::1/128"},
	} {
		ip := netip.MustParseAddr(test.address)
		if got := sourceOf(net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 1))); got.String() != test.want {
			t.Errorf("%s counts as %v, want %s", test.address, got, test.want)
		}
	}
	if got := sourceOf(&net.UnixAddr{}); got != (netip.Prefix{}) {
		t.Errorf("a socket of Unix counts as %v", got)
	}
}

func TestAnAddressHasABoundOfItsOwnUnlessItIsThisMachine(t *testing.T) {
	here, there := netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("192.0.2.1/32")
	for _, test := range []struct{ most, mostOf, here, there int }{
		{256, 0, 256, 64},
		{32, 0, 32, 32},
		{256, 5, 5, 5},
	} {
		d := newAuthLimiter(test.most, test.mostOf)
		if d.limitOf(here) != test.here || d.limitOf(there) != test.there {
			t.Errorf("%+v: %d here, %d there", test, d.limitOf(here), d.limitOf(there))
		}
	}
}
