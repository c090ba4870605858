package envelope

import (
	"encoding/hex"
	"strings"

	"github.com/tenurelock/tenure/internal/protocol"
)

const (
	// ClientTopics is the prefix of all topics that belong to one client:
	// clients/{client id}/… or clients/{upper-case hex of the client id}/….
	ClientTopics = "clients/"
	// StoreTopics is the level below it that belongs to the store. No client owns it,
	// whatever its id is.
	StoreTopics = ClientTopics + "statestore"
)

// WillNotAllowed is the reason of a server that refuses a Will to a topic of its store. By it, a store
// that is to be attached knows a server that has one.
const WillNotAllowed = "a Will may not be published to its topic, " +
	"which belongs to the state store of this server or to another client"

// IsBelow reports whether a topic equals a level, which is given with all levels above it, or
// stands below it.
func IsBelow(topic, level string) bool {
	rest, ok := strings.CutPrefix(topic, level)
	return ok && (rest == "" || rest[0] == '/')
}

// IsClientTopic reports whether a topic lies below clients/. The store's topics there count too.
func IsClientTopic(topic string) bool {
	return IsBelow(topic, strings.TrimSuffix(ClientTopics, "/"))
}

// SplitClientTopic splits clients/{level}/{rest}. It reports false for every other topic, and
// for the topics of the store.
func SplitClientTopic(topic string) (level, rest string, ok bool) {
	below, ok := strings.CutPrefix(topic, ClientTopics)
	if !ok || IsBelow(topic, StoreTopics) {
		return "", "", false
	}
	level, rest, ok = strings.Cut(below, "/")
	return level, rest, ok && level != ""
}

// IsRecommended reports whether a topic, given without clients/{level}/, is one on which
// clients expect the store's replies by default. These are reserved for every client at any
// time: another program could guess them, and publish there before the client sends its
// first request.
func IsRecommended(rest string) bool {
	return IsBelow(rest, "services/statestore") || // docs/protocol.md §1, and the SDK for Rust
		IsBelow(rest, protocol.Service) // what SDKs derive from the topic of requests if nothing is set
}

// HexLevel returns the level below clients/ that is the upper-case hex of a client id.
func HexLevel(client string) string {
	return strings.ToUpper(hex.EncodeToString([]byte(client)))
}

// FromHexLevel returns the client id of which a level is the upper-case hex. It reports false
// if the level is not of that form.
func FromHexLevel(level string) (client string, ok bool) {
	if level == "" || strings.Trim(level, "0123456789ABCDEF") != "" {
		return "", false // most levels are not; this needs no copy
	}
	decoded, err := hex.DecodeString(level)
	return string(decoded), err == nil
}
