package fencing

import (
	"fmt"

	"github.com/tenurelock/tenure/hlc"
)

// SortableText returns a text of the token for resources that compare bytes, such as databases:
// texts have the order of their tokens, byte by byte. (In the usual text 10 comes before 9.)
//
// The numbers are padded with zeros to their greatest widths, 19 and 20 digits, as in
// "0000001696374425000:00000000000000000000:StateStore": 41 bytes and the node id, at most
// 1024 in all. [hlc.ParseToken] parses it. SortableText returns an error that matches
// ErrMissingToken for the zero token, and hlc.ErrMalformed for a malformed one.
//
// With this text the update of a row protects the row. There is no gap between the check and
// the write, and no need for a Checker:
//
//	UPDATE setpoints SET value = ?, fence = ? WHERE id = ? AND fence <= ?
//
// Both fences are the token. If the UPDATE changes no row, the token is stale, provided that
// the row exists: create it beforehand with the empty text as fence, which is below every
// token. In a transaction do this update first, so that the row stays locked for the rest.
//
// The column must compare bytes (COLLATE "C" in PostgreSQL, BINARY in SQLite, VARBINARY in
// MySQL): other collations have other orders, and treat some letters as equal. MySQL by
// default counts only rows that got a new value; with clientFoundRows=true it counts the
// rows that were found.
func SortableText(token hlc.Token) (string, error) {
	if err := validate(token); err != nil {
		return "", fmt.Errorf("fencing: sortable text: %w", err)
	}
	return fmt.Sprintf("%019d:%020d:%s", token.Wall, token.Counter, token.Node), nil
}
