package statestore

// Record is one piece of the state of a store, as a journal keeps it: a key, the fence of a
// key that is gone, a remembered reply, the identity of the data, or the bound of the
// versions. ID says what the record is about; the state has at most one record for each ID.
// A Value of nil says that the piece is gone. Both are at most a few bytes longer than what
// clients sent, and an ID has 1 to MaxID bytes.
//
// Only this package knows what the bytes mean. They must not be modified.
type Record struct {
	ID, Value []byte
}

// Group is what a journal must keep whole or not at all, in order: the records that one
// command changed, or one key that expired. It has at most MaxGroup records. If an ID comes
// twice, the later record counts.
type Group []Record

// MaxID is the largest length of the ID of a Record, in bytes.
const MaxID = 1_100

// MaxGroup is the largest number of records in a Group.
const MaxGroup = 64

// Effects are what a command or an expiry causes besides its reply.
type Effects struct {
	// Notifications are to be delivered in this order, after Groups are durable.
	Notifications []Notification
	// Groups are what a journal must keep, in this order, before the reply and the
	// notifications leave. The group of the command itself is the last; before it come
	// those of keys that had expired. Empty unless Options.Journaled: then nothing changed
	// that must survive a restart.
	Groups []Group
	// Keys are the keys that Groups are about. Until Groups are durable, no reply about one
	// of them may leave.
	Keys []string
}
