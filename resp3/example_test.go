package resp3_test

import (
	"fmt"

	"github.com/tenurelock/tenure/resp3"
)

// A client asks for the value of a key and reads the reply.
func Example() {
	request := resp3.AppendCommand(nil, "GET", "SETKEY2")
	fmt.Printf("%q\n", request)

	reply, err := resp3.DecodeValue([]byte("$6\r\nVALUE5\r\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	switch reply.Kind {
	case resp3.Bulk:
		fmt.Printf("found %s\n", reply.Text)
	case resp3.Null:
		fmt.Println("no such key")
	case resp3.Error:
		fmt.Printf("refused: %s\n", reply.Text)
	default:
		fmt.Println("not a reply to GET:", reply.Kind)
	}
	// Output:
	// "*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n"
	// found VALUE5
}
