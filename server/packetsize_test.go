package server_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

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
