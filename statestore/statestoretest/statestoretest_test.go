package statestoretest

import (
	"fmt"
	"testing"

	"github.com/tenurelock/tenure/statestore"
)

// A recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func ExampleTrace() {
	machine := NewMachine(&recorder{}, statestore.Options{})
	trace, err := Trace(&recorder{}, machine, "node-a SET lock node-a:1 NEX PX 2000\nnode-b SET lock node-b:1 NEX PX 2000\npass 2s\nnode-b GET lock")
	fmt.Println(trace, err)
	// Output:
	// node-a SET lock node-a:1 NEX PX 2000
	// = +OK @1696374425000:1:StateStore
	// node-b SET lock node-b:1 NEX PX 2000
	// = :-1 @1696374425000:1:StateStore
	// pass 2s
	// node-b GET lock
	// = $-1
	//  <nil>
}
