package fencing

import (
	"fmt"

	"github.com/tenurelock/tenure/hlc"
)

// SortableText returns a text of the token for resources that compare bytes, such
// as databases: the order of the texts, byte by byte, is that of the tokens. The
// usual text has another order, in which 10 comes before 9.
//
// The numbers are padded with zeros to their greatest widths, 19 and 20 digits, as in
// "0000001696374425000:00000000000000000000:StateStore". That makes 41 bytes and the
// node id, 1024 at most. hlc.Parse reads it back. The zero token is an error that matches ErrMissingToken, one that
// is no timestamp matches hlc.ErrMalformed.
//
// A row is then protected by its own update, without a gap between the check and
// the write, and without a Checker:
//
//	UPDATE setpoints SET value = ?, fence = ? WHERE id = ? AND fence <= ?
//
// where both fences are the token. If it changes no row the token is stale, provided
// that the row exists: create it beforehand, with the empty text as fence, which is
// below every token. In a transaction do this update first, so that the row stays
// locked for the rest.
//
// Let the column compare bytes (COLLATE "C" in PostgreSQL, BINARY in SQLite,
// VARBINARY in MySQL), because other collations order and equate letters in their
// own ways. MySQL counts rows that really changed, unless the connection asks for
// those that were found (clientFoundRows=true).
func SortableText(token hlc.Token) (string, error) {
	if _, err := tokenText(token); err != nil {
		return "", fmt.Errorf("fencing: sortable text: %w", err)
	}
	return fmt.Sprintf("%019d:%020d:%s", token.Wall, token.Counter, token.Node), nil
}
