package server_test

import (
	"bufio"
	"net"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// A client that once sent a large message, and is idle since, costs no more than others.
func TestInvariant56AnIdleConnectionDoesNotKeepItsLatestMessage(t *testing.T) {
	const clients, size = 32, 1 << 20
	address := testsupport.Start(t, server.Options{})
	packet := append(rawmqtt.Message{Topic: "nobody", Payload: make([]byte, size-100)}.Packet(), rawmqtt.Packet(wire.Pingreq, 0, nil)...)
	before := heap()
	for i := range clients {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
		in := bufio.NewReaderSize(conn, 16)
		for _, packet := range [][]byte{rawmqtt.Login{ClientID: "idle-" + strconv.Itoa(i), KeepAlive: 60}.Packet(), packet} {
			if _, err := conn.Write(packet); err != nil {
				t.Fatal(err)
			}
			if _, _, err := rawmqtt.Read(in, 1<<10); err != nil { // CONNACK, PINGRESP
				t.Fatal(err)
			}
		}
	}
	for end := time.Now().Add(testsupport.Patience); ; time.Sleep(10 * time.Millisecond) {
		kept := heap() - before
		if kept < clients*size/4 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d idle clients keep %d KiB each", clients, kept/clients/1024)
		}
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
