package hlc_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// noon is the physical clock of the examples, so that their output is always the same. Programs
// leave ClockOptions.Now nil.
func noon() time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
}

// A client stamps a request, the store answers with a version that comes after it,
// and all that the client does next comes after that version.
func Example() {
	client, err := hlc.NewClock("gateway-a", hlc.ClockOptions{Now: noon})
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := hlc.NewClock("StateStore", hlc.ClockOptions{Now: noon})
	if err != nil {
		fmt.Println(err)
		return
	}

	request, _ := client.Now()
	fmt.Println("request:", request)

	received, err := hlc.Parse(request.String())
	if err != nil {
		fmt.Println(err)
		return
	}
	version, _ := store.Update(received)
	fmt.Println("version:", version)

	_, _ = client.Update(version)
	next, _ := client.Now()
	fmt.Println("next:   ", next)
	// Output:
	// request: 1772366400000:0:gateway-a
	// version: 1772366400000:1:StateStore
	// next:    1772366400000:3:gateway-a
}

func ExampleTimestamp_Compare() {
	earlier := hlc.Timestamp{Wall: 9, Node: "a"}
	later := hlc.Timestamp{Wall: 10, Node: "a"}

	fmt.Println("as timestamps:", earlier.Compare(later) < 0)
	fmt.Println("as strings:   ", earlier.String() < later.String())
	// Output:
	// as timestamps: true
	// as strings:    false
}

func ExampleClock_Update() {
	clock, err := hlc.NewClock("gateway-a", hlc.ClockOptions{Now: noon})
	if err != nil {
		fmt.Println(err)
		return
	}

	// A peer's clock is half a second ahead: this one follows.
	now := noon().UnixMilli()
	timestamp, _ := clock.Update(hlc.Timestamp{Wall: now + 500, Counter: 7, Node: "gateway-b"})
	fmt.Println(timestamp)

	// Another one is an hour ahead: this one does not.
	_, err = clock.Update(hlc.Timestamp{Wall: now + time.Hour.Milliseconds(), Node: "gateway-c"})
	var skew *hlc.SkewError
	if errors.As(err, &skew) {
		fmt.Println(skew.Remote.Node, "is", skew.Ahead, "ahead, more than", skew.Limit)
	}
	timestamp, _ = clock.Now()
	fmt.Println(timestamp)
	// Output:
	// 1772366400500:8:gateway-a
	// gateway-c is 1h0m0s ahead, more than 1m0s
	// 1772366400500:9:gateway-a
}

func ExampleMerge() {
	// The example of the protocol: client and store are in the same millisecond.
	store := hlc.Timestamp{Node: "StateStore"}
	request := hlc.Timestamp{Wall: 1696374425000, Node: "CLIENT"}

	version, err := hlc.Merge(store, request, 1696374425000)
	fmt.Println(version, err)
	// Output: 1696374425000:1:StateStore <nil>
}

// The version of the write that grants a lease becomes its fencing token. The conversion makes
// that explicit: the version of another value does not compile as a token.
func ExampleToken() {
	granted := hlc.Timestamp{Wall: 1696374425000, Counter: 1, Node: "StateStore"}
	token := hlc.Token(granted)

	later, err := hlc.ParseToken("1696374427000:0:StateStore")
	fmt.Println(token, token.Compare(later) < 0, err)
	// Output: 1696374425000:1:StateStore true <nil>
}
