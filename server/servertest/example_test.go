package servertest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/servertest"
)

// A holder learns that a restarted server has forgotten its lease.
func Example() {
	t := new(exampleT) // in a test, its *testing.T
	defer t.end()

	s := servertest.New(t)
	l, err := lease.New(s.Client(t, "node-a"), "press-7/active", lease.Options{TTL: 10 * time.Second})
	if err != nil {
		t.Fatalf("%v", err)
	}
	tenure, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatalf("%v", err)
	}

	s.Restart()
	<-tenure.Context().Done()
	fmt.Println(errors.Is(context.Cause(tenure.Context()), lease.ErrStoreReplaced))
	// Output: true
}
