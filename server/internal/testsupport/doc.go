// Package testsupport helps the tests of the server and of its clients: it starts servers, brokers
// and candidates of an election, puts a proxy between them, and has MQTT clients of three kinds.
//
//   - Dial returns a client of package transport.
//   - PahoClient is plain paho: what another application would use.
//   - RawClient writes and reads packets as bytes, in any order and however malformed.
//
// Each helper fails the test when something goes wrong, unless its name begins with Try, and
// bounds its waits with Patience. What it starts ends with the test.
package testsupport
