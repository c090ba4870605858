package unauthenticated

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/semaphore"
)

// from is a connection from an address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.address), 1))
}

func TestABurstOfConnectionsIsAcceptedInPortions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(2, 0, 0)
		dropped := 0
		arrive := func() *Connection {
			t.Helper()
			c, err := d.Add(t.Context(), from{nil, "127.0.0.1"}, func() { dropped++ })
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		check := func(c *Connection) { _ = c.Check(func() error { return nil }) }
		first := arrive()
		time.Sleep(grace / 4)
		if wait := d.pause(); wait != 0 {
			t.Errorf("while there is space the next waits %v", wait)
		}
		second := arrive()
		if wait := d.pause(); wait != grace*3/4 {
			t.Errorf("the next waits %v for the first to have its time", wait)
		}
		first.Done()
		if wait := d.pause(); wait != 0 {
			t.Errorf("after one has left the next waits %v", wait)
		}
		check(arrive())
		if wait := d.pause(); wait != grace || dropped > 0 {
			t.Errorf("the next waits %v for the second", wait)
		}
		time.Sleep(grace)
		third := arrive()
		if d.Len() != 2 || dropped != 1 || second.Context().Err() == nil {
			t.Errorf("%d are there, %d are dropped", d.Len(), dropped)
		}
		if err := second.Check(func() error { return nil }); err != ErrTooMany {
			t.Errorf("the password of one that is dropped: %v", err)
		}
		check(third)
		if late, err := d.Add(t.Context(), from{nil, "127.0.0.1"}, func() {}); err != ErrTooMany || late.Context().Err() == nil {
			t.Errorf("where all have sent a CONNECT: %v", err)
		}
		time.Sleep(DefaultTimeout)
		synctest.Wait()
		if third.Context().Err() == nil || third.Check(func() error { return nil }) != ErrSlow {
			t.Error("its time is not over")
		}
		if !third.Done() || third.Done() || second.Done() {
			t.Error("leaving reports something else than what happened")
		}
	})
}

func TestAFullAddressReplacesItsOwnConnectionsOnly(t *testing.T) {
	d := New(10, 2, 0)
	dropped := make(map[int]bool)
	for i, address := range []string{"192.0.2.2", "192.0.2.1", "192.0.2.1", "192.0.2.1"} {
		if _, err := d.Add(t.Context(), from{nil, address}, func() { dropped[i] = true }); err != nil {
			t.Fatal(err)
		}
	}
	if len(dropped) != 1 || !dropped[1] {
		t.Errorf("dropped: %v", dropped)
	}
}

func TestAnErrorOfACheckIsToldFromAWaitThatWasTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(2, 2, 0)
		late := errors.Join(context.DeadlineExceeded)
		for _, test := range []struct {
			takes     time.Duration
			err, want error
		}{{0, nil, nil}, {0, late, late}, {2 * DefaultTimeout, nil, ErrSlow}, {2 * DefaultTimeout, late, late}} {
			c, _ := d.Add(t.Context(), from{nil, "192.0.2.1"}, func() {})
			if err := c.Check(func() error { time.Sleep(test.takes); return test.err }); err != test.want {
				t.Errorf("%+v: %v", test, err)
			}
			c.Done()
		}
		d.checks = semaphore.New(1, 0, func(netip.Prefix) int { return 0 })
		c, _ := d.Add(t.Context(), from{nil, "192.0.2.1"}, func() {})
		_ = c.Check(func() error {
			if err := c.Check(nil); err != semaphore.ErrFull {
				t.Errorf("where none may wait: %v", err)
			}
			return nil
		})
		c.Done()
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
		if got := SourceOf(from{nil, test.address}.RemoteAddr()); got.String() != test.want {
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
		if d.limitOf(here) != test.here || d.limitOf(there) != test.there {
			t.Errorf("%+v: %d here, %d there", test, d.limitOf(here), d.limitOf(there))
		}
	}
}
