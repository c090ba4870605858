package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// resolve looks the name of a broker up.
func (d *doctor) resolve(ctx context.Context, server *url.URL) bool {
	const name = "DNS"
	host := server.Hostname()
	if _, err := netip.ParseAddr(host); err == nil {
		return d.at(server, skipped(name, host+" is an address, not a name"))
	}
	ctx, cancel := d.step(ctx)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		found, cure := fmt.Sprintf("%s has no address: %v", host, err), "check the spelling in --broker, and that this machine's resolver knows the name (getent hosts "+host+")"
		var dns *net.DNSError
		if errors.As(err, &dns) && (dns.IsTimeout || dns.IsTemporary) && !dns.IsNotFound {
			found, cure = fmt.Sprintf("the name server does not answer: %v", err), "check the name servers of this machine and the way to them"
		}
		return d.at(server, failed(Unreachable, name, found, cure))
	}
	return d.at(server, ok(name, host+" is "+strings.Join(addresses, ", ")))
}

// dialTCP opens a connection and closes it.
func (d *doctor) dialTCP(ctx context.Context, server *url.URL) bool {
	const name = "TCP"
	ctx, cancel := d.step(ctx)
	defer cancel()
	began := time.Now()
	conn, err := d.dialer()(ctx, "tcp", server.Host)
	if err == nil {
		d.network = time.Since(began)
		remote, local := conn.RemoteAddr(), conn.LocalAddr()
		_ = conn.Close()
		return d.at(server, ok(name, fmt.Sprintf("%v accepts connections from %v", remote, local)))
	}
	cure := "check the address, the route and firewalls on the way"
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), strings.Contains(err.Error(), "refused"): // Windows has another number
		cure = fmt.Sprintf("nothing listens on port %s there: is the broker running (tenure serve, mosquitto), and is this its port? Usual ports are 1883 for mqtt and 8883 for mqtts", server.Port())
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		cure = "no answer at all: the machine is down, or a firewall drops the packets"
	}
	return d.at(server, failed(Unreachable, name, fmt.Sprintf("no connection: %v", err), cure))
}

// dialer returns how to open a connection.
func (d *doctor) dialer() func(context.Context, string, string) (net.Conn, error) {
	if d.options.Client.Dialer != nil {
		return d.options.Client.Dialer
	}
	return new(net.Dialer).DialContext
}
