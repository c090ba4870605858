package server_test

import (
	"bufio"
	"net"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

func TestLargePacketsThatAreNotCompleteHaveALimitForAllConnections(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Limits: server.Limits{AllArrivingBytes: 80 << 10}})
	packet := rawmqtt.Message{Topic: "t", Payload: make([]byte, 40_000)}.Packet()
	send := func(id string) (net.Conn, *bufio.Reader) {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
		if _, err := conn.Write(rawmqtt.Login{ClientID: id, KeepAlive: 60}.Packet()); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		if first, _, err := rawmqtt.Read(in, 1<<10); err != nil || first>>4 != wire.Connack {
			t.Fatalf("%s: %x, %v", id, first, err)
		}
		_, _ = conn.Write(packet[:20_000]) // it has a buffer of 32 KiB then
		return conn, in
	}
	use := func(want func(int64) bool, what string) {
		t.Helper()
		for deadline := time.Now().Add(testsupport.Patience); !want(s.Usage().ArrivingBytes); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d bytes are in use", what, s.Usage().ArrivingBytes)
			}
		}
	}
	first, _ := send("first")
	use(func(used int64) bool { return used == 28<<10 }, "a packet has begun to arrive")
	second, _ := send("second")
	use(func(used int64) bool { return used == 56<<10 }, "another has begun")
	_, inOfThird := send("third")
	code := byte(0)
	if kind, body, err := rawmqtt.Read(inOfThird, 1<<10); err == nil && kind>>4 == wire.Disconnect && len(body) > 0 {
		code = body[0]
	}
	if code != 0x97 {
		t.Errorf("a third is told %#x, want 0x97", code)
	}
	if got := testsupport.Connect(t, address, "small", nil).Do("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("a small request: %q", got)
	}
	_ = first.Close()
	_ = second.Close()
	use(func(used int64) bool { return used == 0 }, "the connections are over")
	conn, in := send("fourth")
	_, _ = conn.Write(packet[20_000:])
	_, _ = conn.Write(rawmqtt.Packet(wire.Pingreq, 0, nil))
	if kind, _, err := rawmqtt.Read(in, 1<<10); err != nil || kind>>4 != wire.Pingresp {
		t.Errorf("afterwards there is no room for one: %x, %v", kind, err)
	}
	use(func(used int64) bool { return used == 0 }, "it was handled")
}
