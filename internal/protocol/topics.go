// Package protocol holds what both ends of the wire must spell alike: topics,
// property names, verbs, and the texts of the store's refusals.
//
// It is internal because a program never needs these: a client speaks through
// package transport, a store through package statestore. The source of every
// constant is the published description of the state store protocol.
package protocol

import (
	"encoding/hex"
	"strings"
)

// Service is the identifier that every topic of the store carries.
const Service = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"

// InvokeTopic is the system topic to which every request is published. The
// store alone reads it.
const InvokeTopic = Service + "/command/invoke"

// ReservedPrefix begins every topic below which only the store publishes. A
// request that names such a topic for its reply is an attempt to forge a
// notification: the store disconnects its sender.
const ReservedPrefix = "clients/" + Service

// FailBackSuffix follows the name of an election in the key at which a preferred node asks
// for the lead.
const FailBackSuffix = "/bid"

const notifyInfix = "/command/notify/"

// ResponseTopic returns the topic on which a client expects its replies.
func ResponseTopic(clientID string) string {
	return "clients/" + clientID + "/services/statestore/_any_/command/invoke/response"
}

// NotifyTopic returns the topic of the notifications about key for a client.
// Both names travel as upper-case Base16 (RFC 4648), since they may hold bytes
// that a topic may not.
func NotifyTopic(clientID, key string) string {
	return notifyPrefix(clientID) + upperHex(key)
}

// NotifyFilter returns the subscription that covers every key a client watches.
func NotifyFilter(clientID string) string {
	return notifyPrefix(clientID) + "+"
}

// ParseNotifyTopic returns the client and the key that a notification topic
// names, and false for any other topic. Lower-case digits are refused: the
// protocol writes upper case only, and one spelling for each key keeps two
// topics from meaning the same.
func ParseNotifyTopic(topic string) (clientID, key string, ok bool) {
	rest, ok := strings.CutPrefix(topic, ReservedPrefix+"/")
	if !ok {
		return "", "", false
	}
	client, rest, ok := strings.Cut(rest, "/")
	if !ok {
		return "", "", false
	}
	name, ok := strings.CutPrefix("/"+rest, notifyInfix)
	if !ok {
		return "", "", false
	}
	clientID, okClient := fromUpperHex(client)
	key, okKey := fromUpperHex(name)
	if !okClient || !okKey {
		return "", "", false
	}
	return clientID, key, true
}

func notifyPrefix(clientID string) string {
	return ReservedPrefix + "/" + upperHex(clientID) + notifyInfix
}

func upperHex(text string) string {
	return strings.ToUpper(hex.EncodeToString([]byte(text)))
}

func fromUpperHex(text string) (string, bool) {
	if text == "" || strings.ContainsAny(text, "abcdef") {
		return "", false
	}
	decoded, err := hex.DecodeString(text)
	return string(decoded), err == nil
}
