// Package protocol has the constants of the state store protocol that client and store
// share: topics, property names, verbs, the texts of the store's refusals, and the value of
// a lease's key.
//
// It is internal because programs do not need it: a client uses package transport, and a
// store package statestore. docs/protocol.md explains the constants.
package protocol

import (
	"encoding/hex"
	"slices"
	"strings"
)

// Service is the identifier in every topic of the store.
const Service = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"

// InvokeTopic is the topic to which clients publish all requests. Only the store may
// subscribe to it.
const InvokeTopic = Service + "/command/invoke"

// ReservedPrefix is the prefix of the topics to which only the store may publish. A request
// with such a response topic is an attempt to forge a notification: the store disconnects
// the sender.
const ReservedPrefix = "clients/" + Service

// FailBackSuffix is the suffix of the key at which a preferred node asks for the lead; the
// name of the election comes before it.
const FailBackSuffix = "/bid"

const notifyInfix = "/command/notify/"

// ResponseTopic returns the topic on which a client expects its replies.
func ResponseTopic(clientID string) string {
	return "clients/" + clientID + "/services/statestore/_any_/command/invoke/response"
}

// NotifyTopic returns the topic of the notifications about key for a client. Both names are
// in upper-case Base16 (RFC 4648), because they may have bytes that a topic cannot have.
func NotifyTopic(clientID, key string) string {
	return string(AppendNotifyTopic(nil, clientID, key))
}

// AppendNotifyTopic appends NotifyTopic to dst and returns the extended slice: a server needs it
// for each notification.
func AppendNotifyTopic(dst []byte, clientID, key string) []byte {
	return appendUpperHex(appendNotifyPrefix(dst, clientID), key)
}

// CanNotify reports whether the topic of notifications about a key for a client is one that MQTT can
// have: in hexadecimal both names are twice as long [MQTT-1.5.4].
func CanNotify(clientID, key string) bool {
	const most = 1<<16 - 1
	return len(ReservedPrefix)+len("/")+2*len(clientID)+len(notifyInfix)+2*len(key) <= most
}

// NotifyFilter returns the topic filter for the notifications about all keys of a client.
func NotifyFilter(clientID string) string {
	return string(append(appendNotifyPrefix(nil, clientID), '+'))
}

// ParseNotifyTopic returns the client and the key of a notification topic, and false for any
// other topic. It accepts upper-case digits only, so that each key has one topic.
func ParseNotifyTopic(topic string) (clientID, key string, ok bool) {
	rest, ours := strings.CutPrefix(topic, ReservedPrefix+"/")
	client, name, found := strings.Cut(rest, notifyInfix)
	clientID, okClient := fromUpperHex(client)
	key, okKey := fromUpperHex(name)
	if !ours || !found || !okClient || !okKey {
		return "", "", false
	}
	return clientID, key, true
}

func appendNotifyPrefix(dst []byte, clientID string) []byte {
	dst = append(append(dst, ReservedPrefix...), '/')
	return append(appendUpperHex(dst, clientID), notifyInfix...)
}

func appendUpperHex(dst []byte, text string) []byte {
	const digits = "0123456789ABCDEF"
	dst = slices.Grow(dst, 2*len(text))
	for _, b := range []byte(text) {
		dst = append(dst, digits[b>>4], digits[b&0xf])
	}
	return dst
}

func fromUpperHex(text string) (string, bool) {
	if text == "" || strings.ContainsAny(text, "abcdef") {
		return "", false
	}
	decoded, err := hex.DecodeString(text)
	return string(decoded), err == nil
}
