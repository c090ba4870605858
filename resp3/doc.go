// Package resp3 encodes and decodes the part of RESP3 that the state store protocol
// uses (docs/protocol.md §2): requests and notifications, which are arrays of bulk
// strings, and the replies to requests.
//
// RESP3 is a text protocol of typed values. The first byte says what a value is, and
// CR LF ends each line:
//
//	*2\r\n$3\r\nGET\r\n$1\r\nk\r\n   an array of two bulk strings: GET, k
//	$5\r\nvalue\r\n                  a bulk string: any bytes, counted beforehand
//	$-1\r\n                          null: no such key
//	+OK\r\n                          a simple string: one line of text
//	-ERR syntax error\r\n            an error: one line of text
//	:1\r\n                           an integer
//
// The Append functions encode: they append to a slice and return it, like the
// built-in append. [DecodeArray] and [DecodeValue] decode one whole MQTT payload:
//
//	payload := resp3.AppendCommand(nil, "GET", key)
//	...
//	reply, err := resp3.DecodeValue(answer)
//	if err != nil {
//		return err
//	}
//	switch reply.Kind {
//	case resp3.Bulk:
//		return use(reply.Text)
//	case resp3.Null:
//		return errNoSuchKey
//	}
//
// # What is accepted
//
// Each value has one spelling, and the decoders accept no other: a number has no plus sign
// and no leading zero, and is not "-0"; lines end in CR LF; lengths are exact; nothing
// follows the value. So a decoded value encodes to the same bytes. The exceptions are two
// spellings of deployed stores, see [DecodeValue].
//
// The decoders are safe for input from untrusted peers. No input makes them panic, they do
// not recurse, and they allocate at most a constant times the length of the input, whatever
// lengths the input claims. [DecodeValue] does not allocate, and neither does [DecodeArray]
// if dst has space. Only an error is allocated, with the same small size for any input.
//
// # What it does not do
//
//   - It does not copy. Decoded texts are slices of the input: they keep it in memory, and
//     change when it changes. Copy what must outlive the payload.
//   - It does not know commands. The caller checks whether an array is a valid request,
//     including the number of its elements.
//   - It is not a general RESP3 codec: there are no maps, doubles, pushes or nested arrays,
//     and no decoding from a stream, because MQTT delivers whole payloads.
//
// # Errors
//
// Every error matches [ErrMalformed]. An error reply of the store
// is not an error of this package but a [Value] of the kind [Error].
//
// All functions are safe for concurrent use with different destinations.
package resp3
