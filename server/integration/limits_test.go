package integration_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

func TestTheClientKeepsToTheReceiveMaximumOfTheServer(t *testing.T) {
	t.Parallel()
	const receiveMaximum, requests = 3, 20
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{Store: statestore.Options{DedupWindow: receiveMaximum}}))
	client := testsupport.Dial(t, through.Address(), transport.Options{})
	through.Hold(testsupport.ToClient) // acknowledgements among them
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	results := make(chan error, requests)
	for i := range requests {
		go func() {
			_, err := client.Set(ctx, fmt.Sprint("k", i), nil, transport.SetOptions{})
			results <- err
		}()
	}
	sent := 0
	for range requests {
		switch err := await.Receive(results); {
		case errors.Is(err, transport.ErrOutcomeUnknown):
			sent++
		case !errors.Is(err, transport.ErrNotSent) || !strings.Contains(err.Error(), fmt.Sprint("Receive Maximum ", receiveMaximum)):
			t.Errorf("%v, want ErrNotSent for the Receive Maximum", err)
		}
	}
	if sent != receiveMaximum {
		t.Errorf("%d requests were sent, and none is acknowledged", sent)
	}
	through.Release(testsupport.ToClient)
	for i := range requests {
		if _, err := client.Set(t.Context(), fmt.Sprint("k", i), nil, transport.SetOptions{}); err != nil {
			t.Errorf("after the acknowledgements: %v", err)
		}
	}
	if status := client.Connection(); status.Connections != 1 {
		t.Errorf("the connection was lost: %+v", status)
	}
}

func TestAnUnreadWatchDelaysNoReply(t *testing.T) {
	t.Parallel()
	address := testsupport.Start(t, server.Options{})
	client, other := testsupport.Dial(t, address, transport.Options{}), testsupport.Dial(t, address, transport.Options{})
	if _, err := client.Watch("k"); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 { // more than are queued anywhere
		if _, err := other.Set(t.Context(), "k", fmt.Append(nil, i), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if _, err := client.Get(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if status := client.Connection(); status.Connections != 1 {
		t.Errorf("the connection was lost: %+v", status)
	}
}

func TestAValueThatIsLargerThanItsReaderTakesIsAnErrorAtOnce(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	writer := testsupport.Dial(t, address, transport.Options{})
	reader := testsupport.Dial(t, address, transport.Options{MaxPacketSize: 4096, ClientOptions: transport.ClientOptions{RequestTimeout: testsupport.Patience}})
	for key, size := range map[string]int{"small": 3000, "large": 10_000} {
		if _, err := writer.Set(t.Context(), key, make([]byte, size), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if entry, err := reader.Get(t.Context(), "small"); err != nil || len(entry.Value) != 3000 {
		t.Errorf("a value that fits: %d bytes, %v", len(entry.Value), err)
	}
	var refused *transport.RefusedError
	const want = "the reply is larger than the client takes"
	began := time.Now()
	if _, err := reader.Get(t.Context(), "large"); !errors.As(err, &refused) || refused.Text != want {
		t.Errorf("a value that does not: %v", err)
	}
	if took := time.Since(began); took > testsupport.Patience/2 {
		t.Errorf("it took %v", took)
	}
	watch, err := reader.Watch("large")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case _, open := <-watch.Changes():
		if open || !errors.As(watch.Err(), &refused) {
			t.Errorf("its watch: open: %t, %v", open, watch.Err())
		}
	case <-time.After(testsupport.Patience):
		t.Error("its watch is silent")
	}
	if status := reader.Connection(); status.Connections != 1 {
		t.Errorf("the connection was lost: %+v", status)
	}
}

func TestLargePacketsThatAreNotCompleteHaveALimitForAllConnections(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Limits: server.Limits{AllArrivingBytes: 48 << 10}})
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
		if first, _, err := rawmqtt.Read(in, 1<<10); err != nil || first>>4 != packets.CONNACK {
			t.Fatalf("%s: %x, %v", id, first, err)
		}
		_, _ = conn.Write(packet[:20_000]) // it has a buffer of 32 KiB then, of which 12 count
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
	use(func(used int64) bool { return used == 12<<10 }, "a packet has begun to arrive")
	second, _ := send("second")
	use(func(used int64) bool { return used == 24<<10 }, "another has begun")
	_, inOfThird := send("third")
	reason := "large packets of this user take as much as they may while they arrive: send fewer at a time"
	// The rest of its packet may reset the connection.
	if rest, err := io.ReadAll(inOfThird); string(rest) != string(mqtt.Encode(&packets.Disconnect{ReasonCode: 0x97, Properties: &packets.Properties{ReasonString: reason}})) {
		t.Errorf("the third is told %q, %v", rest, err)
	}
	use(func(used int64) bool { return used == 24<<10 }, "the third is refused")
	if got := testsupport.Connect(t, address, "small", nil).Do("SET", "k", "v"); got != "+OK\r\n" {
		t.Errorf("a small request: %q", got)
	}
	_ = first.Close()
	_ = second.Close()
	use(func(used int64) bool { return used == 0 }, "the connections are over")
	conn, in := send("fourth")
	_, _ = conn.Write(packet[20_000:])
	_, _ = conn.Write(rawmqtt.Packet(packets.PINGREQ, 0, nil))
	if kind, _, err := rawmqtt.Read(in, 1<<10); err != nil || kind>>4 != packets.PINGRESP {
		t.Errorf("afterwards there is no room for one: %x, %v", kind, err)
	}
	use(func(used int64) bool { return used == 0 }, "it was handled")
}

// By itself the kernel takes megabytes for a client that does not read.
func TestTheKernelHoldsLittleForAClientThatDoesNotRead(t *testing.T) {
	const large, limit = 64 << 10, 256 << 10
	const kernel = 1 << 20 // for both sockets
	ca := certificates.New(t, "authority")
	serving := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	for name, config := range map[string]*tls.Config{"TCP": nil, "TLS": serving} {
		t.Run(name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{TLS: config, Limits: server.Limits{SessionBytes: limit}})
			dial := func(id string) *testsupport.RawClient {
				conn := testsupport.DialTCP(t, address)
				_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10) // more is needed if it fails
				if config != nil {
					conn = tls.Client(conn, &tls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1"})
				}
				return testsupport.ConnectRaw(t, conn, id, 60, "")
			}
			deaf, publisher := dial("deaf"), dial("publisher")
			deaf.Subscribe("t")
			message := rawmqtt.Message{Topic: "t", Payload: make([]byte, large)}
			for sent := 0; s.Stats().DroppedMessages["session full"] == 0; sent += large {
				publisher.Send(message)
				publisher.Write([]byte{0xc0, 0})
				publisher.Read()
				if sent > limit+kernel {
					t.Fatalf("%d bytes were not read, and none is dropped", sent)
				}
			}
		})
	}
}
