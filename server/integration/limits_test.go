package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

func TestTheClientKeepsToTheReceiveMaximumOfTheServer(t *testing.T) {
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

func TestAWatchThatNobodyReadsDelaysNoReply(t *testing.T) {
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
