//go:build unix

package bench_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkIdleConnections measures the memory of connections that do nothing, heap and
// stacks, in bytes for each, and their goroutines: first with clients that have no memory
// but a socket, which shows the broker's share, then with real ones, which shows both. A
// client has two subscriptions, for replies and for notifications.
//
// PahoDefaults is plain paho and mochi as they come; Stock is the same with a Receive
// Maximum as low as ours, without which paho makes room for 65,535 messages.
func BenchmarkIdleConnections(b *testing.B) {
	stock := func(b *testing.B) string { return startStockBroker(b, nil).address }
	few := uint16(256)
	for _, bench := range []struct {
		name    string
		broker  func(*testing.B) (address string)
		connect func(b *testing.B, address, id string) (leave func() error, err error)
	}{
		{"of=Tenure", func(b *testing.B) string { return testsupport.Start(b, server.Options{}) }, dialIdle},
		{"of=Stock", stock, func(b *testing.B, address, id string) (func() error, error) {
			return connectIdle(b, address, id, &paho.ConnectProperties{ReceiveMaximum: &few})
		}},
		{"of=PahoDefaults", stock, func(b *testing.B, address, id string) (func() error, error) {
			return connectIdle(b, address, id, nil)
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			for b.Loop() {
				address := bench.broker(b)
				// The first connection makes what all have in common.
				newIdle(b, 1, func(id string) (func() error, error) { return bench.connect(b, address, "warm-"+id) })
				bare := newIdle(b, idleConnections, func(id string) (func() error, error) { return connectBare(address, "bare-"+id) })
				both := newIdle(b, idleConnections, func(id string) (func() error, error) { return bench.connect(b, address, "idle-"+id) })
				report := func(unit string, bare, both int64) {
					perBare, perBoth := float64(bare)/idleConnections, float64(both)/idleConnections
					b.ReportMetric(perBoth, unit)
					b.ReportMetric(perBare, unit+"-server")
					b.ReportMetric(perBoth-perBare, unit+"-client")
				}
				report("B/connection", bare.heap, both.heap)
				report("goroutines/connection", bare.goroutines, both.goroutines)
			}
			b.ReportMetric(0, "ns/op") // says nothing
		})
	}
}

const idleConnections = 1000

// newIdle makes connections, measures what they came to, and ends them.
func newIdle(b *testing.B, connections int, connect func(id string) (leave func() error, err error)) measured {
	b.Helper()
	leaves := make([]func() error, connections)
	before := settled()
	for i := range leaves {
		var err error
		if leaves[i], err = connect(fmt.Sprintf("%04d", i)); err != nil {
			b.Fatal(err)
		}
	}
	after := settled()
	var leaving sync.WaitGroup
	failures := make([]error, connections)
	for i, leave := range leaves {
		leaving.Go(func() { failures[i] = leave() })
	}
	await.Done(leaving.Wait)
	if err := errors.Join(failures...); err != nil {
		b.Fatal(err)
	}
	for end := time.Now().Add(testsupport.Patience); int64(runtime.NumGoroutine()) > before.goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("the connections do not end")
		}
	}
	return measured{after.heap - before.heap, after.goroutines - before.goroutines}
}

// settled measures after two garbage collections, which empty the pools.
func settled() measured {
	runtime.GC()
	runtime.GC()
	return measure()
}

// dialIdle connects a client of ours.
func dialIdle(b *testing.B, address, id string) (leave func() error, err error) {
	client, err := transport.Dial(b.Context(), "mqtt://"+address, transport.Options{ClientID: id})
	if err != nil {
		return nil, err
	}
	return client.Close, nil
}

// connectIdle connects plain paho.
func connectIdle(b *testing.B, address, id string, properties *paho.ConnectProperties) (leave func() error, err error) {
	ctx, cancel := context.WithTimeout(b.Context(), testsupport.Patience)
	defer cancel()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	client := paho.NewClient(paho.ClientConfig{Conn: conn})
	if _, err := client.Connect(ctx, &paho.Connect{ClientID: id, CleanStart: true, KeepAlive: 60, Properties: properties}); err != nil {
		return nil, err
	}
	subscribe := &paho.Subscribe{}
	for _, topic := range idleTopics(id) {
		subscribe.Subscriptions = append(subscribe.Subscriptions, paho.SubscribeOptions{Topic: topic, QoS: 1})
	}
	if _, err := client.Subscribe(ctx, subscribe); err != nil {
		return nil, err
	}
	return func() error {
		err := client.Disconnect(&paho.Disconnect{})
		await.Receive(client.Done())
		return err
	}, nil
}

// idleTopics are what a client of ours subscribes to.
func idleTopics(id string) [2]string {
	return [2]string{
		"clients/" + id + "/services/statestore/_any_/command/invoke/response",
		fmt.Sprintf("%s/%X/command/notify/+", testsupport.ReservedPrefix, id),
	}
}

// connectBare connects a socket that nothing in this process knows but its number.
func connectBare(address, id string) (leave func() error, err error) {
	broker, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	leave = func() error { return syscall.Close(socket) }
	subscribe := &packets.Subscribe{PacketID: 1, Properties: &packets.Properties{}}
	for _, topic := range idleTopics(id) {
		subscribe.Subscriptions = append(subscribe.Subscriptions, packets.SubOptions{Topic: topic, QoS: 1})
	}
	err = syscall.Connect(socket, &syscall.SockaddrInet4{Port: int(broker.Port()), Addr: broker.Addr().As4()})
	if err == nil {
		err = converse(socket, testsupport.ConnectPacket{ID: id}.Packet(), packets.CONNACK)
	}
	if err == nil {
		err = converse(socket, mqtt.Encode(subscribe), packets.SUBACK)
	}
	if err != nil {
		return nil, errors.Join(err, leave())
	}
	return leave, nil
}

// converse sends a packet and takes the answer to it, which is small enough to come in one
// piece.
func converse(socket int, packet []byte, answer byte) error {
	if _, err := syscall.Write(socket, packet); err != nil {
		return err
	}
	var received [256]byte
	n, err := syscall.Read(socket, received[:])
	if err != nil {
		return err
	}
	if n == 0 || received[0]>>4 != answer {
		return fmt.Errorf("got % x, want a packet of type %d", received[:n], answer)
	}
	return nil
}
