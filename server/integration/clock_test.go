package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// A refusal of the store carries its time, over each kind of broker.
func TestInvariant48AClientWhoseClockIsAheadLeadsOverEachBroker(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]func(t *testing.T) string{
		"our server": func(t *testing.T) string { return testsupport.Start(t, server.Options{}) },
		"an attached store": func(t *testing.T) string {
			broker := mosquitto.Start(t, "")
			testsupport.Attach(t, broker.Address, attach.Options{})
			return broker.Address
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := address(t)
			options := transport.Options{}
			ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
			defer cancel()
			options.Now = func() time.Time { return time.Now().Add(time.Hour) }
			client := testsupport.Dial(t, address, options)
			l, err := lease.New(client, "press-7/active", lease.Options{})
			if err != nil {
				t.Fatal(err)
			}
			tenure, err := l.Acquire(ctx) // nothing but the refusal tells the store's time
			if err != nil {
				t.Fatal(err)
			}
			if err := tenure.Release(ctx); err != nil {
				t.Error(err)
			}
			// Our stores keep all keys alike, and accept a SET with Persist.
			if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{Persist: true}); err != nil {
				t.Error(err)
			}
		})
	}
}
