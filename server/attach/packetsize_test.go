package attach_test

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// A broker, or what answers in its place, sends five bytes on each connection.
func TestInvariant44AHeaderMakesAnAttachedStoreAllocateNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	log := new(logbuffer.Buffer)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	testsupport.StartAttaching(t, listener.Addr().String(), attach.Options{Logger: log.Logger()})
	for range 3 {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
		packet, err := packets.ReadPacket(conn)
		if err != nil {
			t.Fatal(err)
		}
		if got := packet.Content.(*packets.Connect).Properties.MaximumPacketSize; got == nil || *got != 1<<20 {
			t.Errorf("it announces a maximum of %v bytes", got)
		}
		_, _ = conn.Write([]byte{0x20, 0xff, 0xff, 0xff, 0x7f})
		packet, err = packets.ReadPacket(conn)
		if err != nil {
			t.Fatal(err)
		}
		if code := packet.Content.(*packets.Disconnect).ReasonCode; code != packets.DisconnectPacketTooLarge {
			t.Errorf("it leaves with the reason code %#x", code)
		}
		_ = conn.Close()
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
		t.Errorf("three connections made the process allocate %d MiB", used>>20)
	}
	const want = "a packet of 268435460 bytes, and at most 65536 are accepted"
	testsupport.Eventually(t, "the log says why", func() bool { return strings.Contains(log.String(), want) })
}

func TestAnAttachedStoreSaysWhichPacketsItTakesAndNoLargerOneHarmsIt(t *testing.T) {
	t.Parallel()
	broker, a := begin(t, "", attach.Options{MaxPacketSize: 8192})
	client := testsupport.Dial(t, broker.Address, transport.Options{})
	fits := bytes.Repeat([]byte("v"), 7000)
	if _, err := client.Set(t.Context(), "k", fits, transport.SetOptions{}); err != nil {
		t.Errorf("a request that fits: %v", err)
	}
	impatient := testsupport.Dial(t, broker.Address, transport.Options{ClientOptions: transport.ClientOptions{RequestTimeout: time.Second}})
	if _, err := impatient.Set(t.Context(), "k", make([]byte, 9000), transport.SetOptions{}); !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Errorf("one that does not: %v", err)
	}
	testsupport.MustHold(t, client, "k", string(fits))
	if stats := a.Stats(); stats.Attachments != 1 {
		t.Errorf("%+v", stats)
	}
}
