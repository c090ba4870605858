package engine

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// A clean stop commits what was applied; the next store goes on with the same identity, and with
// versions that are just above the last ones.
func TestAStoppedStoreGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.apply("c", "SET", "kept", "1")
		d.hold()
		d.submit("first", "SET", "first", "1", "correlation~1")
		d.submit("second", "SET", "second", "1")
		d.stop()
		synctest.Wait()
		d.submit("too late", "SET", "third", "1")
		d.release()
		d.want("first: ok", "second: ok")
		if err := d.close(); err != nil {
			t.Fatalf("Run: %v", err)
		}
		d.submit("after the end", "GET", "kept")
		d.engine.EndSession("c") // whose reply is remembered
		if d.engine.waiting.Load() != 0 {
			t.Error("its records wait for a commit that never comes")
		}
		d.want()
		if _, err := d.engine.Apply(parse("c", []string{"GET", "kept"})); !errors.Is(err, ErrStopped) {
			t.Errorf("Apply: %v", err)
		}

		bound, err := statestore.Record{ID: []byte("b"), Value: d.disk.records["b"]}.Decode()
		if err != nil {
			t.Fatal(err)
		}
		again := open(t, d.disk, statestore.Options{})
		defer again.close()
		if got, want := again.engine.Identity(), d.engine.Identity(); got != want {
			t.Errorf("the identity is %q; want %q", got, want)
		}
		next := again.apply("c", "SET", "kept", "2").Version
		if next.Compare(bound.Version) <= 0 || next.Wall > time.Now().UnixMilli() {
			t.Errorf("the first version is %v; the last bound is %v, and it is %d", next, bound.Version, time.Now().UnixMilli())
		}
		for key, want := range map[string]statestore.Outcome{"first": statestore.Found, "second": statestore.Found, "third": statestore.Missing} {
			if got := again.apply("c", "GET", key); got.Outcome != want {
				t.Errorf("%s: %v", key, got.Outcome)
			}
		}
	})
}

// A commit that hangs does not keep Run for longer than stopTimeout.
func TestRunReturnsWhileACommitHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.hold()
		d.submit("first", "SET", "first", "1")
		d.submit("second", "SET", "second", "1")
		began := time.Now()
		err := d.close()
		if took := time.Since(began); took != stopTimeout {
			t.Errorf("it took %v", took)
		}
		if err == nil || !strings.Contains(err.Error(), "took longer") {
			t.Errorf("Run: %v", err)
		}
		d.want()
	})
}

// A panic while the store is changed ends an engine with a journal: nothing that is in doubt is
// committed.
func TestAPanicEndsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.apply("c", "SET", "held", "h", "PX", "60000")
		before := d.disk.commits()
		func() {
			defer func() {
				if _, ok := recover().(*InDoubt); !ok {
					t.Error("it is no panic with an InDoubt")
				}
			}()
			d.engine.Submit(parse("c", []string{"GET", "held"}), func(statestore.Reply) { panic("a bug") })
		}()
		d.submit("later", "GET", "held")
		var doubt *InDoubt
		if err := d.close(); !errors.As(err, &doubt) || doubt.Value != "a bug" {
			t.Errorf("Run: %v", err)
		}
		if got := d.disk.commits(); got != before {
			t.Errorf("%d batches were committed after the panic", got-before)
		}
		d.want()
	})
}
