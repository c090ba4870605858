package server

import (
	"cmp"
	"fmt"
	"math"

	"github.com/tenurelock/tenure/server/internal/defaults"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
	"github.com/tenurelock/tenure/statestore"
)

// Limits bounds what clients can make a server hold, besides what Options.Store bounds. A field
// that is 0 has its default, or what Options.MaxMemory allows. Over a limit the server refuses,
// with the reason code of the standard if there is one; a message that does not fit is dropped,
// and counted in Stats.DroppedMessages. All sizes are in bytes.
type Limits struct {
	// OutgoingBytes bounds the replies and notifications that wait to be written to one connection. A client for which a notification does not fit is disconnected. While half
	// of it is taken, the server reads nothing more from the client. Default 8 MiB.
	OutgoingBytes int64
	// AllOutgoingBytes bounds the same for all connections together. One may have at most
	// as much as is left for all others, and 8 KiB in any case. Default 256 MiB.
	AllOutgoingBytes int64
	// AllArrivingBytes bounds the packets of all connections that have begun to arrive, beyond 20 KiB
	// that each has in any case. One user may have at most as much as is left for all others; a
	// client whose packet does not fit is disconnected. Default 256 MiB, and at least four of the
	// largest packets.
	AllArrivingBytes int64
	// SessionBytes and SessionMessages bound the messages that wait for one client: those of QoS 1
	// until it acknowledges them, also while it is not connected. Default 4 MiB and 10,000.
	SessionBytes    int64
	SessionMessages int
	// AllSessionBytes bounds the same for all clients together. One may have at most as much
	// as is left for all others, and 16 KiB in any case: so clients with few messages may
	// pass it by 16 KiB each. Default 256 MiB.
	AllSessionBytes int64
	// Subscriptions bounds the subscriptions of one client. Default 1,000.
	Subscriptions int
	// AllSubscriptionBytes bounds what the subscriptions of all clients take up. One counts
	// for twice the length of its filter and 768 bytes, and one client may take at most as
	// much as is left for all others, and 16 KiB in any case, like AllSessionBytes.
	// Default 256 MiB.
	AllSubscriptionBytes int64
	// SessionsPerUser bounds how many sessions are kept for clients of one user that are not
	// connected. For one client more, the session ends with the connection. Clients without a
	// user name count as one user. Default 100.
	SessionsPerUser int
}

const (
	// leastMemory is the smallest Options.MaxMemory: less has no room even for a few packets.
	leastMemory = 32 << 20
	// leastPacket is the smallest Options.MaxPacketSize.
	leastPacket = 1024
	// clientMemory is about how much memory the buffers and stacks of a connected client take.
	clientMemory = 48 << 10
	// dedupEntryMemory is how much an entry of the store's deduplication window takes, see
	// package statestore.
	dedupEntryMemory = 128
)

// completeLimits sets the limits that are 0, from MaxMemory or to their defaults.
//
// Of MaxMemory, a quarter is for keys and values. An eighth each is for what waits for
// connections, for what waits in sessions, for watches, and for clients with their
// deduplication windows. A sixteenth each is for subscriptions and for packets that arrive. The rest is
// for overhead, and for what each client is assured even if others have reached a limit.
func (o *Options) completeLimits() error {
	l := &o.Limits
	for _, limit := range []struct {
		name  string
		value int64
	}{
		{"MaxMemory", o.MaxMemory}, {"MaxClients", int64(o.MaxClients)}, {"PasswordChecks", int64(o.PasswordChecks)},
		{"MaxUnauthenticated", int64(o.MaxUnauthenticated)}, {"MaxUnauthenticatedPerAddress", int64(o.MaxUnauthenticatedPerAddress)},
		{"Limits.OutgoingBytes", l.OutgoingBytes}, {"Limits.AllOutgoingBytes", l.AllOutgoingBytes},
		{"Limits.AllArrivingBytes", l.AllArrivingBytes},
		{"Limits.SessionBytes", l.SessionBytes}, {"Limits.SessionMessages", int64(l.SessionMessages)},
		{"Limits.AllSessionBytes", l.AllSessionBytes}, {"Limits.Subscriptions", int64(l.Subscriptions)},
		{"Limits.AllSubscriptionBytes", l.AllSubscriptionBytes},
		{"Limits.SessionsPerUser", int64(l.SessionsPerUser)},
	} {
		if limit.value < 0 {
			return &OptionError{Package: "server", Field: limit.name, Value: limit.value, Problem: "is negative; 0 means the default"}
		}
	}
	if o.MaxMemory > 0 && o.MaxMemory < leastMemory {
		return &OptionError{Package: "server", Field: "MaxMemory", Value: o.MaxMemory, Problem: fmt.Sprintf(
			"is below %d (%d MiB), the least with which a server can work; 0 means no limit", int64(leastMemory), leastMemory>>20)}
	}
	o.Store.DedupWindow = cmp.Or(o.Store.DedupWindow, statestore.DefaultDedupWindow)
	share := func(parts, standard int64) int64 {
		if o.MaxMemory == 0 {
			return standard
		}
		return min(o.MaxMemory/parts, standard)
	}
	if o.MaxMemory > 0 {
		o.Store.MaxBytes = cmp.Or(o.Store.MaxBytes, o.MaxMemory/4)
		o.Store.MaxKeys = cmp.Or(o.Store.MaxKeys, int(min(o.MaxMemory/4/1024, math.MaxInt32))) // a key costs some hundred bytes besides its own
	}
	l.AllOutgoingBytes = cmp.Or(l.AllOutgoingBytes, share(8, 256<<20))
	l.OutgoingBytes = cmp.Or(l.OutgoingBytes, min(8<<20, l.AllOutgoingBytes))
	l.AllArrivingBytes = cmp.Or(l.AllArrivingBytes, max(share(16, 256<<20), 4*int64(o.MaxPacketSize)))
	messages := pubsub.DefaultLimits()
	l.AllSessionBytes = cmp.Or(l.AllSessionBytes, share(8, messages.TotalBytes))
	l.SessionBytes = cmp.Or(l.SessionBytes, min(messages.SessionBytes, l.AllSessionBytes))
	l.SessionMessages = cmp.Or(l.SessionMessages, messages.SessionMessages)
	l.Subscriptions = cmp.Or(l.Subscriptions, messages.Subscriptions)
	l.AllSubscriptionBytes = cmp.Or(l.AllSubscriptionBytes, share(16, messages.SubscriptionBytes))
	l.SessionsPerUser = cmp.Or(l.SessionsPerUser, 100)
	window := int64(min(max(o.Store.DedupWindow, 0), math.MaxUint16)) // complete refuses others
	o.MaxClients = cmp.Or(o.MaxClients, int(max(1, share(8*(clientMemory+window*dedupEntryMemory), defaults.Clients))))
	defaults.FillWatches(&o.Store, share(8, defaults.AllWatchBytes))
	return nil
}

// bounds returns all limits as attributes of a log line. 0 means no limit.
func (o *Options) bounds() []any {
	l := &o.Limits
	return []any{
		"memory", o.MaxMemory, "clients", o.MaxClients,
		"keys", o.Store.MaxKeys, "key-bytes", o.Store.MaxBytes,
		"watches", o.Store.MaxWatches, "watch-bytes", o.Store.MaxWatchBytes, "all-watch-bytes", o.Store.MaxAllWatchBytes,
		"dedup-window", o.Store.DedupWindow,
		"outgoing-bytes", l.OutgoingBytes, "all-outgoing-bytes", l.AllOutgoingBytes,
		"all-arriving-bytes", l.AllArrivingBytes,
		"session-messages", l.SessionMessages, "session-bytes", l.SessionBytes, "all-session-bytes", l.AllSessionBytes,
		"sessions-per-user", l.SessionsPerUser,
		"subscriptions", l.Subscriptions, "all-subscription-bytes", l.AllSubscriptionBytes,
	}
}

// quotas are bounds that all connections share.
type quotas struct {
	outgoing *sharedquota.Quota // what waits to be written, and replies that wait for a commit
	arriving *sharedquota.Users // large packets that are not handled
}

func newQuotas(limits *Limits) quotas {
	return quotas{
		outgoing: sharedquota.New(limits.AllOutgoingBytes),
		arriving: sharedquota.NewUsers(limits.AllArrivingBytes),
	}
}

// messageLimits returns the limits for package pubsub.
func (o *Options) messageLimits() pubsub.Limits {
	return pubsub.Limits{
		Subscriptions:     o.Limits.Subscriptions,
		SubscriptionBytes: o.Limits.AllSubscriptionBytes,
		SessionMessages:   o.Limits.SessionMessages,
		SessionBytes:      o.Limits.SessionBytes,
		TotalBytes:        o.Limits.AllSessionBytes,
	}
}
