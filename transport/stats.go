package transport

import "sync/atomic"

// Ignored is why a message that came in was of no use. A [Conn] reports what it sees
// of that with [Events.Ignored].
type Ignored uint8

const (
	// UnexpectedReply: nobody waits for a reply with this correlation data. It
	// came too late, or twice, or it was never asked for.
	UnexpectedReply Ignored = iota
	// ForeignNotification: it tells another client of a change.
	ForeignNotification
	// MalformedNotification: its topic or its payload is not that of a
	// notification.
	MalformedNotification
	// ForeignMessage: it came on a topic that this client never subscribed to.
	ForeignMessage

	ignoredKinds = iota
)

// Stats counts what a client ignored since it was made. Each of them is harmless by
// itself; many of them are a sign of a network or a broker in trouble, or of somebody
// who tries to deceive.
type Stats struct {
	UnexpectedReplies      uint64 // replies that came too late, or twice, or were never asked for
	ForeignNotifications   uint64 // notifications for other clients
	MalformedNotifications uint64 // notifications whose topic or payload could not be read
	ForeignMessages        uint64 // messages on topics that this client never subscribed to
}

// Stats returns the counts as they are now.
func (c *Client) Stats() Stats {
	return Stats{
		UnexpectedReplies:      c.ignored[UnexpectedReply].Load(),
		ForeignNotifications:   c.ignored[ForeignNotification].Load(),
		MalformedNotifications: c.ignored[MalformedNotification].Load(),
		ForeignMessages:        c.ignored[ForeignMessage].Load(),
	}
}

// counts has one for each kind of Ignored.
type counts [ignoredKinds]atomic.Uint64

// ignore counts a message that was of no use.
func (c *Client) ignore(why Ignored) {
	if int(why) < len(c.ignored) {
		c.ignored[why].Add(1)
	}
}
