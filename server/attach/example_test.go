package attach_test

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"github.com/tenurelock/tenure/server/attach"
)

// A store on the broker of this machine, until the program is interrupted.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	store, err := attach.New("mqtt://localhost:1883", attach.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Serve(ctx); err != nil {
		log.Fatal(err)
	}
}
