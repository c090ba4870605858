package adminclient

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// maxRows bounds a list of a state, and maxWaiters the one of a lease. A state has no more.
	maxRows    = 1000
	maxWaiters = 64
	// maxTotals bounds the totals of a state as text, in bytes.
	maxTotals = 64 << 10
)

// readState reads a state. What answers may be another program, and what a few bytes of JSON become may
// take a thousand times the memory: so each list has a bound while it is read.
func readState(text []byte) (activity.State, error) {
	var read struct {
		activity.State
		// Each of these takes the place of the field above with its name.
		Leases      rows[leaseRow]                `json:"leases"`
		Clients     rows[activity.Client]         `json:"clients"`
		Timeline    rows[statestore.HolderChange] `json:"timeline"`
		StaleWrites rows[activity.StaleWrite]     `json:"staleWrites"`
		Totals      totals                        `json:"totals"`
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return activity.State{}, err
	}
	state := read.State
	state.Clients, state.Timeline, state.StaleWrites, state.Totals = read.Clients, read.Timeline, read.StaleWrites, activity.Totals(read.Totals)
	for _, row := range read.Leases {
		lease := row.Lease
		lease.Waiting = row.Waiting
		state.Leases = append(state.Leases, lease)
	}
	return state, nil
}

type leaseRow struct {
	statestore.Lease
	Waiting waiters `json:"waiting"`
}

type waiters []statestore.Waiter

// UnmarshalJSON implements json.Unmarshaler.
func (w *waiters) UnmarshalJSON(text []byte) (err error) {
	*w, err = readRows[statestore.Waiter](text, maxWaiters)
	return err
}

type rows[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (r *rows[T]) UnmarshalJSON(text []byte) (err error) {
	*r, err = readRows[T](text, maxRows)
	return err
}

// readRows reads a list of at most so many rows.
func readRows[T any](text []byte, limit int) (list []T, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	switch first, err := decoder.Token(); {
	case err != nil:
		return nil, err
	case first == nil: // null
		return nil, nil
	case first != json.Delim('['):
		return nil, fmt.Errorf("%v is not a list", first)
	}
	for decoder.More() {
		if len(list) == limit {
			return nil, fmt.Errorf("a list has more than %d rows", limit)
		}
		var row T
		if err := decoder.Decode(&row); err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, nil
}

type totals activity.Totals

// UnmarshalJSON implements json.Unmarshaler.
func (t *totals) UnmarshalJSON(text []byte) error {
	if len(text) > maxTotals {
		return fmt.Errorf("the totals have more than %d bytes", maxTotals)
	}
	return json.Unmarshal(text, (*activity.Totals)(t))
}
