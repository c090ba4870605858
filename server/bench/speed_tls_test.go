package bench_test

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"net"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkSpeedTLS is BenchmarkSpeed with all connections encrypted, also the connections of stock.
func BenchmarkSpeedTLS(b *testing.B) {
	ca := certificates.New(b, "authority")
	ofServer := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	ofClient := &tls.Config{RootCAs: ca.Pool}

	broker := startStockBroker(b, func(socket net.Listener) net.Listener { return tls.NewListener(socket, ofServer) })
	conn, err := tls.Dial("tcp", broker.address, ofClient)
	if err != nil {
		b.Fatal(err)
	}
	// paho v0.23.0 needs a connection with writes that are safe for concurrent use.
	echo := dialStock(b, packets.NewThreadSafeConn(conn), stockConnect(speedClient))
	stock := echoes(echo)
	stock.bench(b, "Stock", row{run: workers(echo.ask)}, 1, 64)

	client, err := transport.Dial(b.Context(), "mqtts://"+testsupport.Start(b, server.Options{TLS: ofServer}), transport.Options{
		ClientID: speedClient,
		TLS:      transport.TLSOptions{Config: ofClient},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	ours := &speed{client: client}
	stock.bench(b, "Set", row{run: workers(ours.set), echoes: 1}, 1, 64)
}
