package hlc

// A Token is a fencing token: the version that the store gave to the write that
// granted a lease. Writes that the lease protects carry it, and a resource refuses a
// token that is lower than one it has seen.
//
// It has the fields, the order and the text form of a [Timestamp], but is a type of
// its own, so that the version of another value cannot be passed for a token by
// accident. Code that grants a lease converts: Token(version). The type is in this
// package because the store, the client and package fencing all use it, and this is
// the lowest package that they share.
//
// The zero value means "no token". Tokens are plain values: they may be copied,
// compared with ==, and used as map keys.
type Token Timestamp

// ParseToken reads the text form of a token. It is [Parse] for tokens: the same texts
// are accepted, and an error wraps [ErrMalformed].
func ParseToken(text string) (Token, error) {
	timestamp, err := Parse(text)
	return Token(timestamp), err
}

// String returns the text form of t, as [Timestamp.String] does.
func (t Token) String() string { return Timestamp(t).String() }

// MarshalText implements [encoding.TextMarshaler], as [Timestamp.MarshalText] does:
// the zero value becomes the empty text, and a malformed token is an error that wraps
// [ErrMalformed].
func (t Token) MarshalText() ([]byte, error) { return Timestamp(t).MarshalText() }

// UnmarshalText implements [encoding.TextUnmarshaler], as [Timestamp.UnmarshalText]
// does: the empty text becomes the zero value, and on error t is unchanged.
func (t *Token) UnmarshalText(text []byte) error { return (*Timestamp)(t).UnmarshalText(text) }

// Compare returns -1 if t is lower than u, +1 if it is higher, and 0 if they are
// equal, in the order of [Timestamp.Compare]: later tenures have higher tokens.
func (t Token) Compare(u Token) int { return Timestamp(t).Compare(Timestamp(u)) }

// IsZero reports whether t is the zero value, which means "no token".
func (t Token) IsZero() bool { return t == Token{} }
