package fencing_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
)

// execer is implemented by *sql.DB, *sql.Conn and *sql.Tx.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// updateSetpoint is the core of the example. The statement that writes the row also compares
// the token: there is no gap between the check and the write, no lock, and no limit to the
// number of programs.
func updateSetpoint(ctx context.Context, db execer, token hlc.Token, id, value string) error {
	fence, err := fencing.SortableText(token)
	if err != nil {
		return err
	}
	result, err := db.ExecContext(ctx,
		"UPDATE setpoints SET value = ?, fence = ? WHERE id = ? AND fence <= ?",
		value, fence, id, fence)
	if err != nil {
		return fmt.Errorf("update setpoint %q: %w", id, err)
	}
	changed, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("update setpoint %q: %w", id, err)
	}
	if changed == 0 { // the row exists, so its fence is higher
		return fmt.Errorf("update setpoint %q: %w", id, &fencing.StaleTokenError{Resource: id, Token: token})
	}
	return nil
}

// A row of a database compares tokens as text. The row was created with
//
//	INSERT INTO setpoints (id, value, fence) VALUES ('press-7', '', '')
//
// because the empty text is below every token.
func ExampleSortableText() {
	ctx := context.Background()
	db := &setpoints{rows: map[string]*setpoint{"press-7": {}}} // in a program: sql.Open

	// The tokens of two tenures; lease.Tenure.Token returns them. As plain texts they
	// would be in the wrong order.
	older := hlc.Token{Wall: 1696374425000, Counter: 9, Node: "StateStore"}
	newer := hlc.Token{Wall: 1696374425000, Counter: 10, Node: "StateStore"}
	for _, write := range []struct {
		token hlc.Token
		value string
	}{{older, "41"}, {newer, "42"}, {older, "13"}, {newer, "43"}} {
		err := updateSetpoint(ctx, db, write.token, "press-7", write.value)
		switch {
		case errors.Is(err, fencing.ErrStaleToken):
			fmt.Println(err) // the tenure is over: tenure.FencedOut(err)
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Printf("%s was written with %v\n", write.value, write.token)
		}
	}
	fmt.Printf("the row holds %s, fence %s\n", db.rows["press-7"].value, db.rows["press-7"].fence)
	// Output:
	// 41 was written with 1696374425000:9:StateStore
	// 42 was written with 1696374425000:10:StateStore
	// update setpoint "press-7": the token 1696374425000:9:StateStore is stale: a newer one was seen
	// 43 was written with 1696374425000:10:StateStore
	// the row holds 43, fence 0000001696374425000:00000000000000000010:StateStore
}

// setpoints is a fake database: a table with the columns id, value and fence, for one statement,
// that compares texts as bytes.
type setpoints struct {
	mu   sync.Mutex
	rows map[string]*setpoint
}

type setpoint struct{ value, fence string }

func (s *setpoints) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	if query != "UPDATE setpoints SET value = ?, fence = ? WHERE id = ? AND fence <= ?" || len(args) != 4 {
		return nil, fmt.Errorf("syntax error in %q", query)
	}
	value, fence, id, limit := args[0].(string), args[1].(string), args[2].(string), args[3].(string)
	s.mu.Lock()
	defer s.mu.Unlock()
	row := s.rows[id]
	if row == nil || row.fence > limit {
		return driver.RowsAffected(0), nil
	}
	row.value, row.fence = value, fence
	return driver.RowsAffected(1), nil
}
