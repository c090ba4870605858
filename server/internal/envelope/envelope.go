// Package envelope has the rules for the MQTT message around a request to the state store:
// what makes a message a request, why one is dropped, and which topics belong to which
// client. The server with its own broker and the store that is attached to another broker
// follow the same rules (docs/protocol.md §1).
//
// Its functions are pure, and safe for concurrent use.
package envelope

import (
	"strings"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

// DropReason is why a request was not given to the store. Its text is what the sender reads
// in the acknowledgement, as far as its version of MQTT has space for one.
type DropReason string

// The reasons that need no more than the message and its sender.
const (
	DroppedRetained       DropReason = "a request may not be retained"
	DroppedQoS            DropReason = "a request needs QoS 1"
	DroppedNoResponse     DropReason = "a request needs a response topic"
	DroppedNoCorrelation  DropReason = "a request needs correlation data"
	DroppedForbiddenTopic DropReason = "the response topic belongs to the state store"
	DroppedInvalidTopic   DropReason = "nothing can be published to this response topic"
	DroppedForeignTopic   DropReason = "this client may not be answered on this response topic"
	DroppedExpired        DropReason = "the request had expired"
)

// Check returns why a message to the store's topic is not a request, or "" if nothing is
// wrong with it. It does not know the sender, so it does not judge whether the response
// topic is the sender's own.
func Check(retain bool, qos byte, responseTopic string, correlation []byte) DropReason {
	switch {
	case responseTopic == protocol.InvokeTopic || strings.HasPrefix(responseTopic, protocol.ReservedPrefix):
		return DroppedForbiddenTopic // first: it ends the connection, whatever else is wrong
	case retain:
		return DroppedRetained
	case qos != 1:
		return DroppedQoS
	case responseTopic == "":
		return DroppedNoResponse
	case len(correlation) == 0:
		return DroppedNoCorrelation
	case strings.ContainsAny(responseTopic, "+#") || strings.HasPrefix(responseTopic, "$"):
		return DroppedInvalidTopic
	}
	return ""
}

// notificationOverhead is what a notification costs besides its key and value while it waits,
// in bytes.
const notificationOverhead = 256

// NotificationCost returns how many bytes a notification of a change counts for while it
// waits to be sent.
func NotificationCost(change *statestore.Change) int64 {
	return notificationOverhead + int64(len(change.Key)+len(change.Value))
}

// ValueCost returns how many bytes the value of a reply to a request about key counts for while it
// waits to be sent; 0: the reply has none. The value is a part of the memory that has the key too, which
// stays as long as the reply does, also if the key is gone.
func ValueCost(key string, reply *statestore.Reply) int64 {
	if reply.Outcome != statestore.Found {
		return 0
	}
	return int64(len(key) + len(reply.Value))
}
