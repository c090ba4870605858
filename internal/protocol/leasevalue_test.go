package protocol

import (
	"strings"
	"testing"
)

func TestTheValueOfALeaseNamesItsHolder(t *testing.T) {
	const digits = "0123456789abcdef0123456789abcdef"
	for _, row := range []struct {
		value, holder string
		hasNonce      bool
	}{
		{LeaseValue("gateway-a", [nonceSize]byte{0: 0xff, 15: 0x01}), "gateway-a", true},
		{LeaseValue("", [nonceSize]byte{}), "", true},
		{"urn:node:a:" + digits, "urn:node:a", true},
		{":" + digits, "", true},
		{"a:" + strings.ToUpper(digits), "a", false},
		{"a:" + digits[1:], "a", false},
		{"a:" + digits + "0", "a", false},
		{"a:" + digits[1:] + "g", "a", false},
		{"a:1", "a", false},
		{"a:", "a", false},
		{"gateway-a", "gateway-a", false},
		{digits, digits, false},
		{"", "", false},
	} {
		holder, hasNonce := HolderOf(row.value)
		if holder != row.holder || hasNonce != row.hasNonce {
			t.Errorf("%q: holder %q, with a nonce: %t; want %q, %t", row.value, holder, hasNonce, row.holder, row.hasNonce)
		}
		if inBytes, has := HolderOf([]byte(row.value)); string(inBytes) != holder || has != hasNonce {
			t.Errorf("%q in bytes: holder %q, with a nonce: %t", row.value, inBytes, has)
		}
	}
}
