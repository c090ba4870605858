package server_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/transport"
)

func Example() {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()

	client, err := transport.Dial(ctx, "mqtt://"+s.Addr().String(), transport.Options{ClientID: "gateway-a"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Set(ctx, "hello", []byte("world"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}
	entry, err := client.Get(ctx, "hello")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", entry.Value)

	_ = client.Close()
	stop()
	fmt.Println(<-served)
	// Output:
	// world
	// <nil>
}

// A server that keeps its data in a directory has it again after a restart. The program that opens
// the journal closes it.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	run := func(use func(context.Context, *transport.Client)) error {
		kept, err := journal.Open(dir, journal.Options{})
		if err != nil {
			return err
		}
		defer func() { _ = kept.Close() }()
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		s, err := server.Open(ctx, server.Options{Addr: "127.0.0.1:0", Journal: kept}) // loads the data
		if err != nil {
			return err
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx) }()
		client, err := transport.Dial(ctx, "mqtt://"+s.Addr().String(), transport.Options{ClientID: "gateway-a"})
		if err != nil {
			return err
		}
		use(ctx, client)
		_ = client.Close()
		stop()
		return <-served // what the program answers is in the journal
	}
	err = run(func(ctx context.Context, client *transport.Client) {
		_, err := client.Set(ctx, "hello", []byte("world"), transport.SetOptions{})
		fmt.Println("set:", err)
	})
	fmt.Println("stopped:", err)
	err = run(func(ctx context.Context, client *transport.Client) {
		entry, err := client.Get(ctx, "hello")
		fmt.Printf("after a restart: %s, %v\n", entry.Value, err)
	})
	fmt.Println("stopped:", err)
	// Output:
	// set: <nil>
	// stopped: <nil>
	// after a restart: world, <nil>
	// stopped: <nil>
}

// A client that trusts the authority in a file gets two addresses, and uses the one that answers.
func Example_overTLS() {
	certified := httptest.NewTLSServer(nil) // it brings a certificate
	defer certified.Close()
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	caFile := filepath.Join(folder, "ca.pem")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certified.Certificate().Raw})
	if err := os.WriteFile(caFile, authority, 0o600); err != nil {
		log.Fatal(err)
	}

	s, err := server.New(server.Options{Addr: "127.0.0.1:0", TLS: &tls.Config{Certificates: certified.TLS.Certificates}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()

	addresses := "mqtts://127.0.0.1:1,mqtts://" + s.Addr().String() // nothing listens at the first
	client, err := transport.Dial(ctx, addresses, transport.Options{
		ClientID: "gateway-a",
		TLS:      transport.TLSOptions{CAFile: caFile},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Set(ctx, "recipe", []byte("42"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}
	status := client.Connection()
	fmt.Println(status.Connected, status.Broker == "mqtts://"+s.Addr().String())

	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.Connection().Ended)
	stop()
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	// Output:
	// true true
	// true
}
