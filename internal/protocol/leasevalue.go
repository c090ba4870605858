package protocol

import "encoding/hex"

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
