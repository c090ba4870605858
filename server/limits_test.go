package server_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mqtt"
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
	if got := s.Stats().RefusedConnections; got != 2 {
		t.Errorf("%d refused connections are counted", got)
	}
	b = testsupport.Connect(t, address, "b", nil) // which ends its session
	_ = b.Paho.Disconnect(&paho.Disconnect{})
	connectWhenThereIsRoom(t, address, "c")
}

// connectWhenThereIsRoom retries, since the server reads a DISCONNECT after its client is gone.
func connectWhenThereIsRoom(t *testing.T, address, id string) {
	t.Helper()
	var err error
	for range 1000 {
		if _, err = testsupport.TryConnect(t, address, id, nil); err == nil {
			return
		}
	}
	t.Errorf("%q: %v", id, err)
}

func TestTheReceiveMaximumIsTheDedupWindow(t *testing.T) {
	for _, window := range []int{0, 7} {
		p := testsupport.Connect(t, testsupport.Start(t, server.Options{Store: statestore.Options{DedupWindow: window}}), "p", nil)
		want := uint16(window)
		if window == 0 {
			want = statestore.DefaultDedupWindow
		}
		if got := p.Connack.Properties.ReceiveMaximum; got == nil || *got != want {
			t.Errorf("window %d: the Receive Maximum is %v", window, got)
		}
	}
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
// at a time. The room that each client has is enough for these, even if others have taken all shared room.
func TestInvariant38AClientMayRenewManyWatchedLeasesInOneWrite(t *testing.T) {
	const leases = 60
	address := testsupport.Start(t, server.Options{Limits: server.Limits{OutgoingBytes: 8 << 20, AllOutgoingBytes: 1}})
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
	testsupport.Eventually(t, "the room is free", func() bool { return s.Usage().OutgoingBytes == 0 })
}

const large = 64 << 10 // some of it fills the buffers on the way

func TestAClientThatFallsBehindOnNotificationsIsDisconnectedAndFreesItsRoom(t *testing.T) {
	const limit = 4 * large
	address, s := testsupport.StartServer(t, server.Options{Limits: server.Limits{OutgoingBytes: limit}})
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
	const size = 20_000 // more than what is assured
	for _, test := range []struct {
		name   string
		limits server.Limits
		fit    int
		why    server.MessageDropReason
	}{
		{"messages", server.Limits{SessionMessages: 5}, 5, "session full"},
		{"bytes", server.Limits{SessionBytes: 5 * size}, 4, "session full"},
		{"bytes of all", server.Limits{AllSessionBytes: 10 * size}, 4, "sessions full"}, // half of them
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{Limits: test.limits})
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
			if got := s.Stats().DroppedMessages[test.why]; usage.WaitingMessages != int64(test.fit) || got != uint64(8-test.fit) || usage.WaitingBytes < int64(test.fit*size) {
				t.Errorf("%+v", usage)
			}
			other := testsupport.ConnectPacket{ID: "other"}.Connect(t, address)
			other.Subscribe("t")                    // has room of its own
			publisher.MustPublish("t", payloads[7]) // which fits there only
			other.MustReceive(payloads[7])
			c = login.Connect(t, address)
			for i, h := range c.MustReceive(payloads[:test.fit]...) {
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
		})
	}
}

func TestAClientMayHaveAThousandSubscriptionsUnlessOptionsSayOtherwise(t *testing.T) {
	for _, test := range []struct {
		limit, most int
		old         bool
		code        byte
	}{{0, 1000, false, 0x97}, {7, 7, true, 0x80}} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			address := testsupport.Start(t, server.Options{Limits: server.Limits{Subscriptions: test.limit}})
			c := testsupport.ConnectPacket{ID: "p", Old: test.old}.Connect(t, address)
			for _, filters := range slices.Collect(slices.Chunk(testsupport.Numbered(test.most), 100)) {
				c.Subscribe(filters...)
			}
			if codes := c.Filter(1, 0, "more", "00000"); !bytes.Equal(codes, []byte{test.code, 1}) {
				t.Errorf("SUBACK %x", codes)
			}
			testsupport.ConnectPacket{ID: "q"}.Connect(t, address).Subscribe("more") // each client has its own
			body := rawmqtt.Body(nil).Uint16(9)
			if !test.old {
				body = body.Properties(nil)
			}
			c.Write(rawmqtt.Packet(packets.UNSUBSCRIBE, 2, body.Text("00000")))
			c.Read()
			c.Subscribe("more")
		})
	}
}

func TestSharedSubscriptionsAreNeitherAnnouncedNorGranted(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	_, connack := testsupport.ConnectPacket{ID: "p"}.TryConnect(t, address)
	if !bytes.Contains(connack, []byte{packets.PropSharedSubAvailable, 0}) {
		t.Errorf("CONNACK %x", connack)
	}
	for _, old := range []bool{false, true} {
		c := testsupport.ConnectPacket{ID: "p", Old: old}.Connect(t, address)
		want := []byte{0x9e, 1}
		if old {
			want[0] = 0x80
		}
		if codes := c.Filter(1, 0, "$share/g/t", "t"); !bytes.Equal(codes, want) {
			t.Errorf("MQTT 3.1.1: %v, SUBACK %x, want %x", old, codes, want)
		}
	}
}

func TestAServerRetainsNothing(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	_, connack := testsupport.ConnectPacket{ID: "p"}.TryConnect(t, address)
	if !bytes.Contains(connack, []byte{packets.PropRetainAvailable, 0}) {
		t.Errorf("CONNACK %x", connack)
	}
	for _, old := range []bool{false, true} {
		for _, qos := range []byte{0, 1} {
			c := testsupport.ConnectPacket{ID: "p", Old: old}.Connect(t, address)
			c.Send(rawmqtt.Message{Topic: "t", QoS: qos, Payload: []byte("x"), Retain: true})
			if code := c.MustBeClosed(); code != 0x9a && !(old && code <= 0) {
				t.Errorf("MQTT 3.1.1: %v, QoS %d, DISCONNECT %#x", old, qos, code)
			}
		}
		will := testsupport.OrdinaryWill("t", 0)
		will.Retain = true
		want := byte(0x9a)
		if old {
			want, will.Properties = 5, nil
		}
		if _, connack := (testsupport.ConnectPacket{ID: "p", Old: old, Will: will}).TryConnect(t, address); connack == nil || codeOf(connack) != want {
			t.Errorf("MQTT 3.1.1: %v, CONNACK %x for a retained Will", old, connack)
		}
	}
}

// codeOf returns the return code or reason code in a CONNACK.
func codeOf(connack []byte) byte {
	_, header, _ := mqtt.Size(connack)
	return connack[header+1]
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
			if _, _, err := rawmqtt.Read(in, 1<<10); err != nil { // CONNACK, PINGRESP
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
