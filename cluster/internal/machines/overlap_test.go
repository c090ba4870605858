//go:build unix

package machines

import (
	"os"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// The check must be able to fail.
func TestTheOverlapOfTwoStoresIsFound(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for _, test := range []struct {
		name        string
		again       int // when a serves again; 0: it does not
		began, ends int // of a request to a, after the first answer of b at 100
		want        bool
	}{
		{"sent before the first answer of the other store", 0, 90, 110, true},
		{"sent after it", 0, 101, 110, false},
		{"sent after it, by a store that serves again", 105, 106, 110, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			serves := map[string]time.Time{"a": at(1), "b": at(90)}
			store := func(name string) Store { return Store{Serves: func() time.Time { return serves[name] }} }
			o := &Overlap{stores: map[string]Store{"a": store("a"), "b": store("b")}}
			if !o.judge("a", at(2), at(3)) || !o.judge("b", at(95), at(100)) {
				t.Fatal("a takeover is taken for an overlap")
			}
			if test.again > 0 {
				serves["a"] = at(test.again)
			}
			if got := o.judge("a", at(test.began), at(test.ends)); got != test.want {
				t.Errorf("an answer of the former store may come: %t, want %t", got, test.want)
			}
		})
	}
}
