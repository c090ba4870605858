package adminclient

import (
	"encoding/json"
	"fmt"
	"time"
)

// maxRows bounds the leases of a state: what answers may be another program. A state has no more.
const maxRows = 1000

// State is what commands read of what a page shows.
type State struct {
	At   time.Time `json:"at"`
	Info struct {
		Mode    string `json:"mode"`
		Role    string `json:"role"`
		Data    string `json:"data"`
		Address string `json:"address"`
	} `json:"info"`
	Leases       Leases `json:"leases"`
	LeasesHidden int    `json:"leasesHidden"`
}

// Lease is a name that one client at a time holds. Its texts are escaped, as package activity does it.
type Lease struct {
	Name           string    `json:"name"`
	Held           bool      `json:"held"`
	Holder         string    `json:"holder"` // or the last one
	Since          time.Time `json:"since"`  // it is held
	LeftMillis     int64     `json:"leftMillis"`
	NoHolderMillis int64     `json:"noHolderMillis"`
}

// Leases are the leases of a state.
type Leases []Lease

// UnmarshalJSON implements json.Unmarshaler. It counts the rows before it reads them.
func (l *Leases) UnmarshalJSON(text []byte) error {
	var rows []json.RawMessage
	if err := json.Unmarshal(text, &rows); err != nil {
		return err
	}
	if len(rows) > maxRows {
		return fmt.Errorf("%d leases are more than %d", len(rows), maxRows)
	}
	*l = make(Leases, len(rows))
	for i, row := range rows {
		if err := json.Unmarshal(row, &(*l)[i]); err != nil {
			return err
		}
	}
	return nil
}
