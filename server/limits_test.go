package server_test

import (
	"bufio"
	"bytes"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

func TestAServerTakesAsManyClientsAsItMay(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{MaxClients: 2})
	testsupport.Connect(t, address, "a", nil)
	b := testsupport.Connect(t, address, "b", testsupport.KeepSession(true))
	refused := func(id string) {
		t.Helper()
		p, err := testsupport.TryConnect(t, address, id, nil)
		if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackQuotaExceeded ||
			!strings.Contains(p.Connack.Properties.ReasonString, "its 2 clients") {
			t.Errorf("%q: %+v, %v", id, p.Connack, err)
		}
	}
	refused("c")
	_ = b.Paho.Disconnect(&paho.Disconnect{})
	refused("c") // the session of b is still there
	if got := s.Stats().Refused[server.RefusedRules]; got != 2 {
		t.Errorf("%d refused connections are counted", got)
	}
	b = testsupport.Connect(t, address, "b", nil) // which ends its session
	_ = b.Paho.Disconnect(&paho.Disconnect{})
	connectWhenThereIsSpace(t, address, "c")
}

// connectWhenThereIsSpace retries, since the server reads a DISCONNECT after its client is gone.
func connectWhenThereIsSpace(t *testing.T, address, id string) {
	t.Helper()
	var err error
	for range 1000 {
		if _, err = testsupport.TryConnect(t, address, id, nil); err == nil {
			return
		}
	}
	t.Errorf("%q: %v", id, err)
}

func TestInvariant38ARenewalIsNeverRefusedForQuota(t *testing.T) {
	address := testsupport.Start(t, server.Options{Store: statestore.Options{MaxKeys: 1, MaxBytes: 8, MaxValue: 4, MaxWatches: 1}})
	p := testsupport.Connect(t, address, "p", nil)
	const full = "-ERR the quota has been exceeded\r\n"
	for i, step := range []struct {
		words []string
		want  string
	}{
		{[]string{"SET", "lock", "p:01", "NEX", "PX", "60000"}, "+OK\r\n"},
		{[]string{"SET", "other", "v"}, full},
		{[]string{"SET", "lock", "p:001"}, full},
		{[]string{"SET", "lock", "p:01", "NEX", "PX", "60000"}, "+OK\r\n"},
		{[]string{"KEYNOTIFY", "lock"}, "+OK\r\n"},
		{[]string{"KEYNOTIFY", "other"}, full},
		{[]string{"KEYNOTIFY", "lock"}, "+OK\r\n"},
	} {
		if got := p.Do(step.words...); got != step.want {
			t.Errorf("step %d, %q: %q, want %q", i, step.words, got, step.want)
		}
	}
}

// The notifications of a client's own renewals leave together with the replies, so only a few of them wait
// at a time. The space that each client has is enough for these, even if others have taken all shared space.
func TestInvariant38AClientMayRenewManyWatchedLeasesInOneWrite(t *testing.T) {
	const leases = 60
	address := testsupport.Start(t, server.Options{}.With(server.Limits{Outgoing: 8 << 20, AllOutgoing: 1}))
	holder := testsupport.DialRaw(t, address, "holder")
	var renewals [][]byte
	for i := range leases {
		holder.Do("KEYNOTIFY", "lease-"+strconv.Itoa(i))
	}
	for i := range leases {
		renewals = append(renewals, testsupport.PacketOf(t, holder.Request("SET", "lease-"+strconv.Itoa(i), "holder:1", "NEX", "PX", "60000")))
	}
	holder.Write(renewals...)
	for range 3 * leases { // a reply, a PUBACK and a notification for each
		holder.Read()
	}
}

// nothingWaits waits until no data waits for any connection.
func nothingWaits(t *testing.T, s *server.Server) {
	t.Helper()
	testsupport.Eventually(t, "the space is free", func() bool { return s.Usage().OutgoingBytes == 0 })
}

const large = 64 << 10 // some of it fills the buffers on the way

func TestAClientThatFallsBehindOnNotificationsIsDisconnectedAndFreesItsSpace(t *testing.T) {
	const limit = 4 * large
	address, s := testsupport.StartServer(t, server.Options{}.With(server.Limits{Outgoing: limit}))
	deaf, writer := testsupport.DialRaw(t, address, "deaf"), testsupport.DialRaw(t, address, "writer")
	reader := testsupport.WatchKey(t, address, "k")
	deaf.ShrinkReadBuffer()
	deaf.Do("KEYNOTIFY", "k")
	value := strings.Repeat("x", large)
	for i := 0; s.Stats().SlowReaders == 0; i++ {
		if got := writer.Do("SET", "k", value); got != "+OK\r\n" {
			t.Fatalf("write %d: %q", i, got)
		}
		reader.NextNotification()
		if got := s.Usage().OutgoingBytes; got > 2*limit {
			t.Fatalf("%d bytes wait", got)
		}
		if i > 100 {
			t.Fatal("after 6 MB that were not read, the client is still connected")
		}
	}
	testsupport.MustHaveClients(t, s, 2)
	nothingWaits(t, s)
	if got := s.Stats().SlowReaders; got != 1 {
		t.Errorf("%d slow readers", got)
	}
	reader.MustBeSilent()
}

// Messages that fit wait, in order, for a client that is not connected. The others are dropped and
// counted.
func TestASessionHoldsALimitedNumberOfMessages(t *testing.T) {
	const size, fit = 20_000, 4 // more than what is assured, and half of the bytes of all
	address, s := testsupport.StartServer(t, server.Options{}.With(server.Limits{Messages: 10 * size}))
	login := testsupport.ConnectPacket{ID: "p", Resume: true, Expiry: 600, Properties: rawmqtt.Body{packets.PropReceiveMaximum}.Uint16(2)}
	c, publisher := login.Connect(t, address), testsupport.ConnectPacket{ID: "publisher"}.Connect(t, address)
	c.Subscribe("t")
	var payloads []string
	for _, number := range testsupport.Numbered(8) {
		payloads = append(payloads, number+strings.Repeat("x", size-len(number)))
	}
	publisher.MustPublish("t", payloads[0])
	sent := c.Next() // and not acknowledged
	_ = c.Conn.Close()
	testsupport.MustHaveClients(t, s, 1)
	publisher.MustPublish("t", payloads[1:]...)
	usage := s.Usage()
	if got := s.Stats().DroppedMessages["sessions full"]; usage.WaitingMessages != int64(fit) || got != uint64(8-fit) || usage.WaitingBytes < int64(fit*size) {
		t.Errorf("%+v", usage)
	}
	other := testsupport.ConnectPacket{ID: "other"}.Connect(t, address)
	other.Subscribe("t")                    // has space of its own
	publisher.MustPublish("t", payloads[7]) // which fits there only
	other.MustReceive(payloads[7])
	c = login.Connect(t, address)
	for i, h := range c.MustReceive(payloads[:fit]...) {
		if h.Dup != (i == 0) || i == 0 && h.ID != sent.ID {
			t.Errorf("message %d: dup %v, packet identifier %d", i, h.Dup, h.ID)
		}
	}
	testsupport.Eventually(t, "the acknowledgements are read", func() bool { return s.Usage().WaitingMessages == 0 })
	_ = c.Conn.Close()
	testsupport.MustHaveClients(t, s, 2)
	publisher.MustPublish("t", payloads[0])
	other.MustReceive(payloads[0])
	testsupport.Eventually(t, "one waits", func() bool { return s.Usage().WaitingMessages == 1 })
	login.Resume = false // which ends the session
	login.Connect(t, address)
	if usage := s.Usage(); usage.WaitingMessages != 0 || usage.WaitingBytes != 0 || usage.Subscriptions != 1 {
		t.Errorf("after the session: %+v", usage)
	}
}

// What CONNACK announces that there is not is refused.
func TestWhatAServerDoesNotHaveIsAnnouncedAndRefused(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	c, connack := testsupport.ConnectPacket{ID: "p"}.TryConnect(t, address)
	for _, property := range []byte{packets.PropSharedSubAvailable, packets.PropRetainAvailable, packets.PropSubIDAvailable} {
		if !bytes.Contains(connack, []byte{property, 0}) {
			t.Errorf("CONNACK %x", connack)
		}
	}
	if !bytes.Contains(connack, []byte{packets.PropReceiveMaximum, 1, 0}) { // the window in which redeliveries are recognized
		t.Errorf("CONNACK %x", connack)
	}
	if codes := c.Filter(1, "$share/g/t", "t"); !bytes.Equal(codes, []byte{0x9e, 1}) {
		t.Errorf("SUBACK %x", codes)
	}
	for want, packet := range map[int][]byte{
		0x9a: rawmqtt.Message{Topic: "t", Payload: []byte("x"), Retain: true}.Packet(),
		0x9b: rawmqtt.Message{Topic: "t", QoS: 2, ID: 9}.Packet(),
		0xa1: rawmqtt.Packet(packets.SUBSCRIBE, 2, rawmqtt.Body(nil).Uint16(9).Properties(rawmqtt.Body{packets.PropSubscriptionIdentifier, 1}).Text("t").Byte(0)),
	} {
		c := testsupport.ConnectPacket{ID: "p"}.Connect(t, address)
		c.Write(packet)
		if code := c.MustBeClosed(); code != want {
			t.Errorf("DISCONNECT %#x, want %#x", code, want)
		}
	}
	will := testsupport.OrdinaryWill("t", 0)
	will.Retain = true
	if _, connack := (testsupport.ConnectPacket{ID: "p", Will: will}).TryConnect(t, address); connack[3] != packets.ConnackRetainNotSupported {
		t.Errorf("CONNACK %x", connack)
	}
}

// A client that once sent a large message and has been idle since costs no more than others.
func TestInvariant56AnIdleConnectionDoesNotKeepItsLatestMessage(t *testing.T) {
	const clients, size = 32, 1 << 20
	address := testsupport.Start(t, server.Options{})
	packet := append(rawmqtt.Message{Topic: "unread", Payload: make([]byte, size-100)}.Packet(), rawmqtt.Packet(packets.PINGREQ, 0, nil)...)
	before := int64(testsupport.HeapInUse())
	for i := range clients {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
		in := bufio.NewReaderSize(conn, 16)
		for _, packet := range [][]byte{rawmqtt.Login{ID: "idle-" + strconv.Itoa(i), KeepAlive: 60}.Packet(), packet} {
			if _, err := conn.Write(packet); err != nil {
				t.Fatal(err)
			}
			if _, err := rawmqtt.Read(in); err != nil { // CONNACK, PINGRESP
				t.Fatal(err)
			}
		}
	}
	awaitHeap(t, before, clients, size)
}

// A client that was once notified of a large value, and watches a small one since, costs no more than
// others, though its connection remembers the key of the latest notification.
func TestInvariant56AnIdleConnectionDoesNotKeepTheValueOfANotification(t *testing.T) {
	const clients, size = 32, 1 << 20
	address := testsupport.Start(t, server.Options{})
	writer := testsupport.DialRaw(t, address, "writer")
	value := strings.Repeat("v", size-1000)
	before := int64(testsupport.HeapInUse())
	for i := range clients {
		key := "key-" + strconv.Itoa(i)
		watcher := testsupport.DialRaw(t, address, "idle-"+strconv.Itoa(i))
		watcher.Do("KEYNOTIFY", key)
		for _, v := range []string{value, "small"} {
			writer.Do("SET", key, v)
			if notification := watcher.Read(); !bytes.Contains(notification, []byte(v)) {
				t.Fatalf("%s: %.200q", key, notification)
			}
		}
	}
	awaitHeap(t, before, clients, size)
}

// awaitHeap waits until the heap has grown by less than a quarter of size bytes for each of the clients.
func awaitHeap(t *testing.T, before, clients, size int64) {
	t.Helper()
	for end := time.Now().Add(testsupport.Patience); ; time.Sleep(10 * time.Millisecond) {
		kept := int64(testsupport.HeapInUse()) - before
		if kept < clients*size/4 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d idle clients keep %d KiB each", clients, kept/clients/1024)
		}
	}
}
