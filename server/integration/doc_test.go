// Package integration_test tests packages transport, lease and election over MQTT: against the
// server, against a store that is attached to mosquitto, and against brokers without a store. A
// proxy of package testsupport cuts, holds and drops what passes.
package integration_test
