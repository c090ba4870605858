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
	}
	// Output:
	// "*2\r\n$3\r\nGET\r\n$7\r\nSETKEY2\r\n"
	// found VALUE5
}

func ExampleDecodeArray() {
	payloads := []string{
		"*3\r\n$3\r\nset\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n",
		"*2\r\n$3\r\nget\r\n$7\r\nSETKEY2\r\n",
		"*1000000000\r\n",
	}
	var arguments [][]byte // used again for each payload
	for _, payload := range payloads {
		var err error
		arguments, err = resp3.DecodeArray(arguments[:0], []byte(payload))
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("%s %q\n", arguments[0], arguments[1:])
	}
	// Output:
	// set ["SETKEY2" "VALUE5"]
	// get ["SETKEY2"]
	// resp3: malformed payload: length beyond the payload at byte 1
}

func ExampleDecodeValue() {
	for _, payload := range []string{"+OK\r\n", ":-1\r\n", "-1\r\n", "$-1\r\n", "-ERR syntax error"} {
		value, err := resp3.DecodeValue([]byte(payload))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %q %d\n", value.Kind, value.Text, value.Integer)
	}
	// Output:
	// simple string: "OK" 0
	// integer: "" -1
	// integer: "" -1
	// null: "" 0
	// error: "ERR syntax error" 0
}
