package testsupport

import (
	"log/slog"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// The topics of the protocol, spelled out: the tests must notice when the constants of
// package protocol change.
const (
	InvokeTopic    = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	ReservedPrefix = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
)

// Patience bounds each wait for something that must happen. It is long enough for a busy
// machine.
const Patience = 20 * time.Second

// Discard is a logger without output.
var Discard = slog.New(slog.DiscardHandler)

// Reason codes of a DISCONNECT.
const (
	ReasonTakenOver     = packets.DisconnectSessionTakenOver
	ReasonShuttingDown  = packets.DisconnectServerShuttingDown
	ReasonNotAuthorized = packets.DisconnectNotAuthorized
)

// RecommendedResponseTopics returns the default response topics of the deployed SDKs.
// level is the client id, or what stands in its place.
func RecommendedResponseTopics(level string) []string {
	return []string{
		"clients/" + level + "/services/statestore/_any_/command/invoke/response",
		"clients/" + level + "/services/" + InvokeTopic + "/response",
		"clients/" + level + "/" + InvokeTopic,
		"clients/" + level + "/" + InvokeTopic + "/response",
	}
}
