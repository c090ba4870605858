package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
)

// Several processes write a file, one after the other. A FileStore keeps the highest token in a
// second file.
func ExampleChecker() {
	dir, err := os.MkdirTemp("", "press-7")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	setpoint, fence := filepath.Join(dir, "setpoint"), filepath.Join(dir, "setpoint.fence")

	open := func() (*fencing.Checker, *fencing.FileStore) {
		store, err := fencing.OpenFileStore(fence)
		if err != nil {
			log.Fatal(err)
		}
		checker, err := fencing.NewChecker("setpoint", store.Highest(), store.Persist)
		if err != nil {
			log.Fatal(err)
		}
		return checker, store
	}
	write := func(checker *fencing.Checker, token hlc.Token, value string) {
		err := checker.Do(context.Background(), token, func() error {
			return os.WriteFile(setpoint, []byte(value), 0o600)
		})
		fmt.Printf("%s with %v: admitted %v, stale %v\n", value, token, err == nil, errors.Is(err, fencing.ErrStaleToken))
	}

	// The tokens of two tenures; lease.Tenure.Token returns them.
	older := hlc.Token{Wall: 1696374425000, Node: "StateStore"}
	newer := hlc.Token{Wall: 1696374427000, Node: "StateStore"}
	checker, store := open()
	write(checker, older, "41")
	write(checker, newer, "42")
	write(checker, older, "13")
	store.Close()
	checker, store = open() // as after a restart
	defer store.Close()
	write(checker, older, "13")
	write(checker, newer, "43")
	value, err := os.ReadFile(setpoint)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("the file holds %s\n", value)
	// Output:
	// 41 with 1696374425000:0:StateStore: admitted true, stale false
	// 42 with 1696374427000:0:StateStore: admitted true, stale false
	// 13 with 1696374425000:0:StateStore: admitted false, stale true
	// 13 with 1696374425000:0:StateStore: admitted false, stale true
	// 43 with 1696374427000:0:StateStore: admitted true, stale false
	// the file holds 43
}
