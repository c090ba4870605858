package transport

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// secretFile returns a file that a test writes secrets to.
func secretFile(t *testing.T, secret string) (path string, write func(string)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "secret")
	write = func(secret string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secret)
	return path, write
}

func TestATokenThatChangesIsShownOnceAndWithoutANewConnection(t *testing.T) {
	path, write := secretFile(t, "one\n")
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		client := mustDialTo(t, b, Options{TokenFile: path})
		time.Sleep(time.Minute)
		b.mustHaveSeen("CONNECT K8S-SATone :")
		write("two")
		time.Sleep(tokenCheck)
		b.mustHaveSeen("CONNECT K8S-SATone :", "AUTH 0x19 K8S-SATtwo")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // while it is being replaced, the old one is good
		b.mustHaveSeen("CONNECT K8S-SATone :", "AUTH 0x19 K8S-SATtwo")
		write("three")
		time.Sleep(tokenCheck)
		b.mustHaveSeen("CONNECT K8S-SATone :", "AUTH 0x19 K8S-SATtwo", "AUTH 0x19 K8S-SATthree")
		if got := client.Connection(); !got.Connected || got.Connections != 1 {
			t.Errorf("%+v", got)
		}
	})
}

func TestABrokerThatAsksForTheTokenAgainGetsIt(t *testing.T) {
	path, _ := secretFile(t, "one")
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
			switch packet.Content.(type) {
			case *packets.Connect:
				send(conn, packets.AUTH, func(p *packets.Auth) {
					p.ReasonCode, p.Properties.AuthMethod = packets.AuthContinueAuthentication, methodServiceAccount
				})
			case *packets.Auth:
				send(conn, packets.CONNACK, func(p *packets.Connack) { p.Properties.AuthMethod = methodServiceAccount })
			default:
				return false
			}
			return true
		}
		mustDialTo(t, b, Options{TokenFile: path})
		b.mustHaveSeen("CONNECT K8S-SATone :", "AUTH 0x18 K8S-SATone")
	})
}

func TestInvariant44AnUnrequestedAuthenticationDoesNoHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
			switch packet.Content.(type) {
			case *packets.Connect:
				send(conn, packets.CONNACK, func(p *packets.Connack) { p.Properties.AuthMethod = "unasked" })
			case *packets.Auth:
			default:
				return false
			}
			return true
		}
		client := mustDialTo(t, b, Options{})
		send(b.present(), packets.AUTH, func(p *packets.Auth) { p.ReasonCode = packets.AuthContinueAuthentication })
		send(b.present(), packets.AUTH, func(p *packets.Auth) {})
		synctest.Wait()
		if got := client.Connection(); !got.Connected {
			t.Errorf("%+v", got)
		}
	})
}

func TestAPasswordFileIsReadForEachConnection(t *testing.T) {
	path, write := secretFile(t, "one\r\n")
	synctest.Test(t, func(t *testing.T) {
		b := &pipeBroker{}
		client := mustDialTo(t, b, Options{Username: "user", PasswordFile: path})
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		b.cut()
		time.Sleep(10 * time.Second)
		b.mustHaveSeen("CONNECT  user:one")
		if got := client.Connection(); got.Connected || !errors.Is(got.Err, os.ErrNotExist) {
			t.Errorf("without the file: %+v", got)
		}
		write(" two ")
		time.Sleep(10 * time.Second)
		b.mustHaveSeen("CONNECT  user:one", "CONNECT  user: two ")
	})
}
