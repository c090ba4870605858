package bench_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// BenchmarkSpeedMosquitto is BenchmarkSpeed through mosquitto: with an attached store, and
// for stock with plain paho that answers. Each has a broker of its own. The allocations
// are of client and store; the broker is another process.
func BenchmarkSpeedMosquitto(b *testing.B) {
	b.Cleanup(func() {
		if b.Skipped() { // which is said of tests, but not of benchmarks
			fmt.Fprintln(os.Stderr, "SKIPPED: BenchmarkSpeedMosquitto, since mosquitto is not installed: apt-get install mosquitto")
		}
	})
	ofStock := mosquitto.Start(b, "").Address
	respond(b, ofStock)
	echo := dialStockBroker(b, ofStock)
	stock := echoes(echo)
	stock.bench(b, "Stock", row{run: workers(echo.ask)}, 1, 64)

	ofStore := mosquitto.Start(b, "").Address
	testsupport.Attach(b, ofStore, attach.Options{})
	ours := &speed{client: dialSpeed(b, ofStore)}
	stock.bench(b, "Set", row{run: workers(ours.set), echoes: 1}, 1, 64)
}

// respond answers requests, as stockBroker does, by a client of a broker.
func respond(b *testing.B, address string) {
	b.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		b.Fatal(err)
	}
	client := paho.NewClient(paho.ClientConfig{
		Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(event paho.PublishReceived) (bool, error) {
			request := event.Packet.Properties
			answer := &paho.PublishProperties{CorrelationData: request.CorrelationData}
			if len(request.User) > 0 {
				answer.ContentType = protocolFormat
				answer.User = paho.UserProperties{
					{Key: "__stat", Value: "200"},
					{Key: "__protVer", Value: "1.0"},
					{Key: "__ts", Value: echoVersion},
				}
			}
			// An error means that the connection is lost, which the client notices too.
			_, _ = event.Client.Publish(context.Background(), &paho.Publish{
				Topic: request.ResponseTopic, Payload: []byte(echoReply), Properties: answer,
			})
			return true, nil
		}},
	})
	ctx, cancel := context.WithTimeout(b.Context(), testsupport.Patience)
	defer cancel()
	if _, err := client.Connect(ctx, stockConnect("responder")); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = client.Disconnect(&paho.Disconnect{})
		await.Receive(client.Done())
	})
	_, err = client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: testsupport.InvokeTopic, QoS: 1}}})
	if err != nil {
		b.Fatal(err)
	}
}
