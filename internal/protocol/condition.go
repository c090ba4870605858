package protocol

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
