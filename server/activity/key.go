package activity

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// MaxKey bounds the key of an event, in bytes.
	MaxKey = 256
	// keySum is how much of the hash of a long key stands for what is cut off.
	keySum = 16
	cutAt  = MaxKey - keySum - len(cutMark)
	// cutMark stands between the beginning of a long key and its hash.
	cutMark = "…#"
)

// CutKey returns a key, or a client id, of MaxKey bytes or less as it is. A longer one is cut, and its hash is added, so that
// two long keys do not become one. The result shares no bytes with a longer key.
func CutKey(key string) string {
	if len(key) <= MaxKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return key[:cutAt] + cutMark + hex.EncodeToString(sum[:keySum/2])
}

// CutText returns the first MaxText bytes of a text, without the memory of the rest.
func CutText(text string) string {
	if len(text) <= MaxText {
		return text
	}
	return strings.Clone(text[:MaxText])
}
