package mqtt

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// The errors of real sockets are in server/integration. These come from DNS and from networks that
// a test machine does not have.
func TestErrorsOfDNSAndOfTheNetworkNameTheCauseFirst(t *testing.T) {
	network := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1883}, Err: err}
	}
	for _, test := range []struct {
		name, address string
		err           error
		want          string
	}{
		{"an unknown name", "mqtt://broker.example", network(&net.DNSError{IsNotFound: true}), `DNS knows no address of "broker.example": is the name right?`},
		{"no DNS", "mqtt://broker.example", network(&net.DNSError{Err: "server\nmisbehaving", IsTimeout: true}), `no DNS answer for "broker.example": is the DNS server up? (server misbehaving)`},
		{"no route", "mqtt://192.0.2.1", network(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), "no route to 192.0.2.1:1883: is this machine's network up, and is the address right?"},
		{"no network", "mqtt://192.0.2.1", network(os.NewSyscallError("connect", syscall.ENETUNREACH)), "no route to 192.0.2.1:1883: "},
		{"a port that no program listens on", "mqtt://192.0.2.1", network(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "connection refused by 192.0.2.1:1883: is a broker running there, and is this its port?"},
		{"the same under a name", "mqtt://broker.example", network(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "connection refused by broker.example:1883 (192.0.2.1:1883): "},
		{"the same on this machine", "mqtt://localhost", network(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "connection refused by localhost:1883: is the-store running there, and is this its port?"},
		{"a timeout", "mqtt://192.0.2.1", network(os.ErrDeadlineExceeded), "no answer from 192.0.2.1:1883: is the address right, and is a firewall in between?"},
		{"the end of the attempt", "mqtt://192.0.2.1", context.DeadlineExceeded, "no answer from 192.0.2.1:1883: "},
		{"an error of a Dialer", "mqtt://192.0.2.1", errors.New("the proxy is away"), "the proxy is away"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if strings.Contains(test.want, "refused") || strings.Contains(test.want, "no route") {
				skipOnWindows(t)
			}
			server, err := ParseAddress(test.address)
			if err != nil {
				t.Fatal(err)
			}
			got := explainDial(server, "the-store", test.err)
			if !strings.HasPrefix(got.Error(), test.want) || !errors.Is(got, test.err) || strings.Contains(got.Error(), "\n") {
				t.Errorf("%v, want %s", got, test.want)
			}
		})
	}
}

// skipOnWindows skips a test with numbers of errors that Windows does not have.
func skipOnWindows(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has other numbers for this error")
	}
}
