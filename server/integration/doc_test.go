// Package integration_test tests what travels over MQTT, through public APIs alone. The clients of
// packages transport, lease and election meet the server, a store that is attached to mosquitto,
// and brokers without a store; raw clients send the server packets in any order and form. A proxy
// of package testsupport cuts, holds and drops what passes.
package integration_test
