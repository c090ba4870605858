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

// User properties of requests, replies and notifications.
const (
	// PropertyTimestamp carries a hybrid logical timestamp: the sender's in a request, the
	// version of the value in a reply or a notification.
	PropertyTimestamp = "__ts"
	// PropertyFencingToken carries the fencing token of a protected write.
	PropertyFencingToken = "__ft"
	// PropertyPersistence with the value "true" asks the store to keep the key of a SET on
	// disk.
	PropertyPersistence = "aio-persistence"
	// PropertySourceID repeats the client id. No broker checks it, so it proves nothing.
	PropertySourceID = "__srcId"
	// PropertyProtocolVersion is the version of the protocol.
	PropertyProtocolVersion = "__protVer"
	// PropertyPartition routes requests to one of the store's partitions.
	PropertyPartition = "$partition"
	// PropertyStatus and PropertyStatusMessage are the result of the invocation, not of
	// the command: 200 even for a refusal, 400 and above if the store could not evaluate
	// the request.
	PropertyStatus        = "__stat"
	PropertyStatusMessage = "__stMsg"
	// PropertyStore names the data of a store. The store sends it with each reply and
	// notification, and refuses a request that names another. It is an extension of this
	// project: other stores and clients ignore it.
	PropertyStore = "tenure-store"
	// PropertyInstance names the process of a store that is not its clients' broker. A store that keeps its data over
	// a restart has the same PropertyStore and another PropertyInstance: what clients watched is forgotten. So it is
	// for one client whose watches the store has ended. It is an extension like PropertyStore.
	PropertyInstance = "tenure-instance"
	// PropertyForced says that a DEL or VDEL takes a lease from its holder on purpose, and why, or on
	// which person's demand. A store of this project logs it; it changes nothing else.
	PropertyForced = "tenure-forced"
	// PropertyWaiting says that the client of a KEYNOTIFY waits for the lease with that key. It is an extension
	// like PropertyStore.
	PropertyWaiting = "tenure-waiting"
)

const (
	// ProtocolVersion is the value of PropertyProtocolVersion.
	ProtocolVersion = "1.0"
	// StatusOK is the value of PropertyStatus in every reply with a payload.
	StatusOK = "200"
	// StatusUnavailable is the value of PropertyStatus if the store could not take the request now. The
	// request may be a redelivery of one that was applied.
	StatusUnavailable = "503"
	// ContentType is the MQTT content type of every payload.
	ContentType = "application/octet-stream"
)

// Verbs and options, as they are sent.
const (
	VerbSet       = "SET"
	VerbGet       = "GET"
	VerbDel       = "DEL"
	VerbVDel      = "VDEL"
	VerbKeyNotify = "KEYNOTIFY"

	OptionNX   = "NX"
	OptionNEX  = "NEX"
	OptionPX   = "PX"
	OptionStop = "STOP"
)

// Words of a notification.
const (
	NotifyWord   = "NOTIFY"
	NotifyValue  = "VALUE"
	NotifySet    = "SET"
	NotifyDelete = "DELETE"
	// NotifyDel is the documented spelling of NotifyDelete.
	NotifyDel = "DEL"
)

// Condition says when a SET applies.
type Condition uint8

const (
	// Always applies whatever the key holds.
	Always Condition = iota
	// IfMissing (NX) applies only to a key that does not exist.
	IfMissing
	// IfMissingOrEqual (NEX) applies only to a key that does not exist, or that holds the expected value:
	// the value being set, unless the command names another. A holder renews its lease with it.
	IfMissingOrEqual
)

// nonceSize is the length of a nonce in bytes. In a value it has two hexadecimal digits for each.
const nonceSize = 16

// LeaseValue returns the value of a lease's key: the holder's name, a colon and a nonce, which tells
// the tenures of one holder apart.
func LeaseValue(holder string, nonce [nonceSize]byte) string {
	return holder + ":" + hex.EncodeToString(nonce[:])
}

// HolderOf returns the name of the holder in the value of a lease's key: what is before the last colon, or
// all of it if there is none. A name may contain colons.
//
// hasNonce says whether a nonce follows as LeaseValue writes it. Other stores' clients write other
// values, and a value that is no lease's may be secret up to any of its bytes: a URL with a password has
// colons too. So a caller that shows a name without the value must ask for the nonce.
func HolderOf[T string | []byte](value T) (holder T, hasNonce bool) {
	for i := len(value) - 1; i >= 0; i-- {
		if value[i] == ':' {
			return value[:i], isNonce(value[i+1:])
		}
	}
	return value, false
}

func isNonce[T string | []byte](text T) bool {
	if len(text) != 2*nonceSize {
		return false
	}
	for i := range len(text) {
		if b := text[i]; (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return false
		}
	}
	return true
}
