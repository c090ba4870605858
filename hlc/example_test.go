package hlc_test

import (
	"fmt"

	"github.com/tenurelock/tenure/hlc"
)

// A client stamps a request, the store answers with a version that comes after it,
// and all that the client does next comes after that version.
func Example() {
	const noon = 1772366400000 // both physical clocks show it
	client, store := hlc.Timestamp{Node: "gateway-a"}, hlc.Timestamp{Node: "StateStore"}

	client, _ = hlc.Tick(client, noon)
	fmt.Println("request:", client)

	received, err := hlc.Parse(client.String())
	if err != nil {
		fmt.Println(err)
		return
	}
	store, _ = hlc.Merge(store, received, noon)
	fmt.Println("version:", store)

	client, _ = hlc.Merge(client, store, noon)
	client, _ = hlc.Tick(client, noon)
	fmt.Println("next:   ", client)
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
