// Command election runs one node of an active/standby pair.
//
//	tenure serve                                  # in one terminal
//	go run ./examples/election --name gateway-a   # in another
//	go run ./examples/election --name gateway-b   # in a third: it takes over when the first ends
package main

import (
	"context"
	"flag"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/transport"
)

func main() {
	broker := flag.String("broker", "mqtt://localhost:1883", "address of the broker")
	name := flag.String("name", "gateway-a", "name of this node, which no other node has")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client, err := transport.Dial(ctx, *broker, transport.Options{ClientID: *name})
	if err != nil {
		log.Fatal(err)
	}
	elector, err := election.New(client, "press-7/active", election.Options{TTL: 2 * time.Second, Logger: slog.Default()})
	if err != nil {
		log.Fatal(err)
	}
	err = elector.Run(ctx, func(ctx context.Context, term *election.Term) error {
		// This node leads until ctx ends. The guard adds the term's token to the write.
		if _, err := term.Guard().Set(ctx, "press-7/setpoint", []byte("42")); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	if ctx.Err() == nil { // no signal came
		log.Fatal(err)
	}
}
