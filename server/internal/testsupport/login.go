package testsupport

import (
	"bufio"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// Login is a connection that has sent a CONNECT.
type Login struct {
	net.Conn
	in *bufio.Reader
}

// StartLogin sends a CONNECT and does not wait for the CONNACK. user may be empty; change, which may
// be nil, alters the CONNECT.
func StartLogin(t testing.TB, address, id, user string, change func(*packets.Connect)) *Login {
	t.Helper()
	conn := DialTCP(t, address)
	Send(t, conn, string(EncodeConnect(t, id, func(c *packets.Connect) {
		c.Username, c.UsernameFlag, c.Password, c.PasswordFlag = user, user != "", []byte("secret"), user != ""
		if change != nil {
			change(c)
		}
	})))
	return &Login{conn, bufio.NewReader(conn)}
}

// ReasonCode waits for the CONNACK and returns its reason code.
func (c *Login) ReasonCode(t testing.TB) byte {
	t.Helper()
	packet, err := packets.ReadPacket(c.in)
	if err != nil {
		t.Fatalf("no CONNACK: %v", err)
	}
	return packet.Content.(*packets.Connack).ReasonCode
}

// MustBeClosed fails unless the server closes the connection and sends nothing before.
func MustBeClosed(t testing.TB, conn net.Conn) {
	t.Helper()
	if n, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the connection is still open: %d bytes, %v", n, err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// MustBeOpen fails unless the connection stays open for 20 ms without data.
func MustBeOpen(t testing.TB, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("the connection is not open any more: %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(Patience))
}
