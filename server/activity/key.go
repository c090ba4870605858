package activity

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

const (
	// MaxKey bounds the key of an event, in bytes.
	MaxKey = 256
	// keySum is how much of the hash of a long key stands for what is cut off, in hexadecimal digits.
	keySum = 16
	// summed is how many bytes at the beginning and at the end of a long key are hashed, with its
	// length. A key may have a mebibyte, and that of an expiry is cut with the lock of the store held.
	summed = 4096
	cutAt  = MaxKey - keySum - len(cutMark)
	// cutMark stands between the beginning of a long key and its hash.
	cutMark = "…#"
)

// CutKey returns a key, or a client id, of MaxKey bytes or less as it is. A longer one is cut, and a hash
// is added, so that two long keys do not become one, unless they have the same length and differ
// between their first and their last 4096 bytes only. It takes microseconds for any key. The result
// shares no bytes with a longer key.
func CutKey(key string) string {
	if len(key) <= MaxKey {
		return key
	}
	var room [8 + 2*summed]byte
	text := binary.BigEndian.AppendUint64(room[:0], uint64(len(key)))
	if len(key) <= 2*summed {
		text = append(text, key...)
	} else {
		text = append(append(text, key[:summed]...), key[len(key)-summed:]...)
	}
	sum := sha256.Sum256(text)
	return key[:cutAt] + cutMark + hex.EncodeToString(sum[:keySum/2])
}

// CutText returns the first MaxText bytes of a text, without the memory of the rest.
func CutText(text string) string {
	if len(text) <= MaxText {
		return text
	}
	return strings.Clone(text[:MaxText])
}
