// Package shown has what the status page needs of what clients choose: names that are short and
// printable, and rows of which each client has its share.
package shown

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

const (
	// Max bounds a name, in bytes.
	Max = 256
	// keySum is how much of the hash of a long text stands for what is cut off, in hexadecimal digits.
	keySum = 16
	// summed is how many bytes at the beginning and at the end of a long key are hashed, with its
	// length. A key may have a mebibyte, and it is cut with the lock of the store held.
	summed = 256
	// keyMark stands between the beginning of a long key and its hash, and printableMark where Printable
	// has cut: so no result of one is a result of the other.
	keyMark, printableMark = "…#", "…~"
	cutAt                  = Max - keySum - len(keyMark)
)

// Cut returns a name, such as a key or a client id, of Max bytes or less as it is. A longer one is cut,
// and a hash is added, so that two long names do not become one, unless they have the same length and
// differ between their first and their last 256 bytes only. A short one that looks as if it was cut is
// cut too, so no name is taken for a longer one. It takes at most a few microseconds. The result shares
// no bytes with a longer name.
func Cut(name string) string {
	if len(name) <= Max && !looksCut(name, keyMark) {
		return name
	}
	return cut(name, keyMark)
}

// cut returns the beginning of a text, a mark and the hash of the text. Valid UTF-8 stays valid.
func cut(text, mark string) string {
	var buffer [8 + 2*summed]byte
	hashed := binary.BigEndian.AppendUint64(buffer[:0], uint64(len(text)))
	if len(text) <= 2*summed {
		hashed = append(hashed, text...)
	} else {
		hashed = append(append(hashed, text[:summed]...), text[len(text)-summed:]...)
	}
	sum := sha256.Sum256(hashed)
	begin := text[:min(len(text), cutAt)]
	for range utf8.UTFMax - 1 {
		if r, size := utf8.DecodeLastRuneInString(begin); r != utf8.RuneError || size != 1 {
			break
		}
		begin = begin[:len(begin)-1] // a part of a character
	}
	return begin + mark + hex.EncodeToString(sum[:keySum/2])
}

// looksCut reports whether a text could be the result of cut.
func looksCut(text, mark string) bool {
	begin := len(text) - keySum - len(mark)
	if begin <= cutAt-utf8.UTFMax || text[begin:begin+len(mark)] != mark {
		return false
	}
	return strings.Trim(text[begin+len(mark):], "0123456789abcdef") == ""
}
