// Package hlc provides hybrid logical clocks: timestamps that follow physical time,
// and that also respect cause and effect when physical clocks disagree.
//
// A [Timestamp] is a wall clock reading in milliseconds, a counter, and the id of the
// node that issued it. The counter orders events within one millisecond. It also lets a
// node with a clock that is slow, or was set back, answer a message with a later timestamp
// than the message carried. The state store uses such timestamps as the versions of its
// values. The version of a lock is the fencing token of its holder, a [Token]: the order
// of tokens is what keeps a former leader from overwriting its successor.
//
// # Use
//
// [Tick] and [Merge] are functions of the last timestamp and the time, and read no clock. A node calls
// Tick for the timestamp of a local event or of a message to send, and Merge for each timestamp that
// it receives. Both clocks of this library do. The state store is a pure function of its commands and
// the time that its caller passes, and checks the skew of timestamps and tokens. A client's clock
// limits the skew too, and goes back to the store's time when it was wrong, because the store orders
// the versions, not the client:
//
//	last := hlc.Timestamp{Node: "gateway-a"}     // before the first event
//	last, err := hlc.Tick(last, wall)            // send last.String() along
//	...
//	version, err := hlc.Parse(reply)             // what the peer sent back
//	last, err = hlc.Merge(last, version, wall)   // later events are ordered after it
//
// The rules come from Kulkarni et al., "Logical Physical Clocks" (2014), cited below as
// HLC. The text form and the skew limit of one minute come from the state store protocol
// (docs/protocol.md §3).
//
// # What a timestamp does not say
//
//   - If one event caused another, its timestamp is lower. The reverse does not hold:
//     of two unrelated events, the one with the lower timestamp may have happened later.
//   - The wall part is not the physical time of the event. It may be ahead of the node's
//     physical clock: by as much as a peer may be ahead, or by as much as that clock was
//     set back.
//   - Timestamps are unique only if node ids are. Two clocks with the same id can issue
//     the same timestamp.
//   - A timestamp lives in memory. A node that must not go back over a restart stores a
//     bound and starts above it.
//   - Tick and Merge never go back. A node with a physical clock that was an hour ahead for a
//     moment issues timestamps that are an hour ahead until an hour has passed, and
//     peers may refuse them.
//   - Nothing here authenticates a timestamp. A peer may send any. The limit of
//     [Merge] and a limit of the skew bound the damage.
//
// # Errors
//
//	ErrMalformed        the text is not a timestamp: correct the sender
//	ErrCounterOverflow  the counter is used up for this millisecond: try again when
//	                    physical time has passed the timestamp's wall part
//
// An error changes no timestamp. One that is not merged may still be stored, compared and
// sent back as data: the refusal concerns the local clock only.
package hlc
